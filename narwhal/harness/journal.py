"""`narwhal report journal.jsonl`: the same plots and figures from a router's journal.

Times count from each request's arrival at the router; what its client waited before that, the router can't
know. Each request is judged by the targets in its own row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from narwhal.harness.figures import number
from narwhal.harness.load import Point
from narwhal.harness.measures import Round, point_summary
from narwhal.harness.page import page
from narwhal.harness.run import Measured
from narwhal.harness.sample import Outcome, Sample, Targets, TokensFrom

_REFUSING = ("rejected", "refused")
_FROM = {
    "token_ids": TokensFrom.TOKEN_IDS,
    "tokenizer": TokensFrom.TOKEN_IDS,
    "usage": TokensFrom.USAGE,
    "events": TokensFrom.EVENTS,
    "estimate": TokensFrom.ESTIMATE,
}


class JournalError(Exception):
    """A journal without anything to report; the message says why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("journal", type=Path, metavar="JOURNAL", help="a router's journal (JSON Lines)")
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="FILE", help="default: %(default)s"
    )


def run(args: argparse.Namespace) -> int:
    """Write the report; the exit status."""
    try:
        with args.journal.open("rb") as lines:
            text = report(lines, str(args.journal))
        args.out.write_text(text)
    except (OSError, JournalError) as error:
        what = (
            f"{error.filename}: {error.strerror}"
            if isinstance(error, OSError)
            else f"{args.journal}: {error}"
        )
        print(f"narwhal report: {what}", file=sys.stderr)
        return 1
    print(f"Written to {args.out}")
    return 0


def report(lines: Iterable[bytes], name: str) -> str:
    """The page. Raises JournalError."""
    rows, unreadable = _rows(lines)
    if not rows:
        raise JournalError("there is no row of a router's journal in it")
    begin = min(row["received_at"] for row in rows)
    rows.sort(key=lambda row: row["received_at"])
    samples = [_sample(index, row, begin) for index, row in enumerate(rows)]
    # Open at its end, so that the last request lies within.
    end = max(sample.due_s for sample in samples) + 1e-6
    measured = Measured(Point(), [Round(0.0, end, samples)])
    figures = point_summary(measured.rounds)
    figures |= {"label": "all requests", "rate": None, "concurrency": None, "generator": None}
    targets = {
        key: _only({row[f"slo_{key}"] for row in rows if row["slo_ttft_s"] is not None})
        for key in ("ttft_s", "tpot_s")
    }
    summary = {
        "started_at": f"{_date(begin)} to {_date(max(row['received_at'] for row in rows))}",
        "points": [figures],
        "targets": targets,
        "knee": None,
        "warnings": [f"{unreadable} lines are no rows of a journal and were left out."] if unreadable else [],
    }
    settings = {
        "requests": f"{len(rows):,}",
        "mean rate": f"{number(len(rows) / end)} requests per second",
        "time": "counts from a request's arrival at the router",
        "good": "met the targets in its own row",
    }
    return page("A router's journal", name, [measured], summary, settings)


def _rows(lines: Iterable[bytes]) -> tuple[list[dict[str, Any]], int]:
    rows, unreadable = [], 0
    for line in lines:
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            row = None
        if isinstance(row, dict) and isinstance(row.get("received_at"), float) and "outcome" in row:
            rows.append(row)
        else:
            unreadable += 1
    return rows, unreadable


def _sample(index: int, row: dict[str, Any], begin: float) -> Sample:
    due = row["received_at"] - begin

    def moment(name: str) -> float | None:
        return None if row.get(name) is None else due + float(row[name])

    outcome, reason = _outcome(row)
    sample = Sample(
        index,
        due_s=due,
        handed_s=due,
        first_s=moment("first_token_s"),
        last_s=moment("last_token_s"),
        ended_s=moment("ended_s"),
        status=row.get("status"),
        outcome=outcome,
        reason=reason,
        detail=row.get("error") or "",
        input_tokens=row.get("input_tokens") or 0,
        input_from=_FROM.get(row.get("input_tokens_from") or "", TokensFrom.PLAN),
        output_tokens=row.get("output_tokens") or 0,
        output_from=_FROM.get(row.get("output_tokens_from") or "", TokensFrom.EVENTS),
    )
    if outcome is Outcome.REFUSED:
        sample.refusals[reason] += 1
    sample.good = sample.meets(Targets(row.get("slo_ttft_s"), row.get("slo_tpot_s")))
    return sample


def _outcome(row: dict[str, Any]) -> tuple[Outcome, str]:
    if row["outcome"] == "served":
        return Outcome.SERVED, ""
    if row["outcome"] in _REFUSING:
        return Outcome.REFUSED, f"{row.get('status')} {row.get('reason')}"
    return Outcome.FAILED, f"{row['outcome']}: {row.get('reason')}"


def _only(values: set[float]) -> float | None:
    """The one value there is; None for several."""
    return next(iter(values)) if len(values) == 1 else None


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
