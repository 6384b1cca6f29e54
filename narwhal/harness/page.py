"""The report: one HTML file that needs no network, in the reader's light or dark theme."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from narwhal.harness import plots
from narwhal.harness.figures import (
    LATENCY_COLUMNS,
    RATE_NAMES,
    REQUEST_COLUMNS,
    duration,
    knee_in_words,
    latency_rows,
    number,
    rate_cells,
    remarks,
    request_row,
    share,
    targets_in_words,
)
from narwhal.harness.plots import At, Stretch
from narwhal.harness.run import Measured, Run
from narwhal.harness.sample import Outcome, Sample
from narwhal.harness.style import STYLE


def of_run(run: Run, summary: dict[str, Any]) -> str:
    """The report of a run of `narwhal bench`."""
    head = f"{summary['target']}{summary['path']}"
    return page("Load on an endpoint", head, run.points, summary, _settings(summary))


def page(
    title: str, head: str, points: Sequence[Measured], summary: dict[str, Any], settings: dict[str, Any]
) -> str:
    """A report: `points` with their samples, and the figures made of them, of which `summary` must have
    `points`, `targets`, `knee`, `warnings` and `started_at`."""
    body = "".join(
        (
            f"<header><p class=kicker>narwhal</p><h1>{escape(title)}</h1><p class=where>{escape(head)}</p>",
            f"<p class=when>{escape(str(summary['started_at']))}</p></header>",
            *(f"<p class=warning>{escape(warning)}</p>" for warning in summary["warnings"]),
            *_cards(summary),
            f"<section class=plots>{''.join(_plots(points, summary))}</section>",
            *_tables(summary),
            *_remarks(summary),
            _list("How it was measured", settings),
        )
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}: {escape(head)}</title><style>{STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _cards(summary: dict[str, Any]) -> Iterator[str]:
    points = summary["points"]
    if not points:
        yield "<p class=warning>Nothing was measured.</p>"
        return
    knee = knee_in_words(summary)
    shown, note = points[0], ""
    if summary["knee"] is not None:
        rate = summary["knee"]["rate"]
        shown = next((point for point in points if point["rate"] == rate), points[0])
        note = f"The figures below are those at {shown['label']}."
        yield f"<p class=finding>{escape(knee or '')} {escape(note)}</p>"
    elif len(points) > 1:
        yield f"<p class=finding>The figures below are those at {escape(shown['label'])}.</p>"
    requests, latency, rates = shown["requests"], shown["latency"], shown["rates"]
    cards = []
    for name, title in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "end to end")):
        figures = latency[name]
        if figures is not None:
            cards.append((title, duration(figures["p50"]), f"p99 {duration(figures['p99'])}"))
    if requests["good"] is not None:
        good = rates["goodput_per_s"]["value"]
        cards.append(
            ("goodput", f"{number(good)}/s", f"{share(requests['good'], requests['sent'])} of requests")
        )
    tokens = rates["output_tokens_per_s"]["value"]
    cards.append(("output tokens", f"{number(tokens)}/s", f"{shown['tokens']['output']:,} in all"))
    for outcome in (Outcome.REFUSED, Outcome.FAILED):
        count = requests[outcome]
        cards.append((str(outcome), share(count, requests["sent"]), f"{count:,} of {requests['sent']:,}"))
    yield "<section class=cards>"
    for title, value, beside in cards:
        yield f"<div><b>{escape(title)}</b><strong>{escape(value)}</strong>"
        yield f"<span>{escape(beside)}</span></div>"
    yield "</section>"


def _plots(points: Sequence[Measured], summary: dict[str, Any]) -> Iterator[str]:
    targets = summary["targets"]
    measured = [(str(of.point), [s for one in of.rounds for s in one.measured]) for of in points]
    everything = [sample for _, samples in measured for sample in samples]
    stretches = [Stretch(one.start_s, one.end_s, str(of.point)) for of in points for one in of.rounds]
    drawn = [
        _distribution("Time to first token (TTFT)", measured, "ttft_s", targets["ttft_s"]),
        _distribution("Time per output token (TPOT)", measured, "tpot_s", targets["tpot_s"]),
        plots.over_time("TTFT over time", everything, lambda s: s.ttft_s, stretches, targets["ttft_s"]),
        plots.over_time("TPOT over time", everything, lambda s: s.tpot_s, stretches, targets["tpot_s"]),
        plots.against_rate(_at(summary, "served_per_s"), _at(summary, "goodput_per_s"), _knee(summary)),
        plots.outcomes_over_time(everything, stretches),
    ]
    if sum(plot is None for plot in drawn):
        drawn.insert(2, _distribution("End to end", measured, "e2e_s", None))
    yield from (plot for plot in drawn if plot is not None)


def _distribution(
    title: str, measured: Sequence[tuple[str, list[Sample]]], name: str, target: float | None
) -> str | None:
    series = []
    for label, samples in measured:
        values = (getattr(sample, name) for sample in samples if sample.outcome is Outcome.SERVED)
        series.append((label, [value for value in values if value is not None]))
    return plots.distribution(title, series, target)


def _at(summary: dict[str, Any], name: str) -> list[At]:
    return [
        At(point["rates"]["offered_per_s"]["value"], rate["value"], rate["interval_95"])
        for point in summary["points"]
        if point["rate"] is not None and (rate := point["rates"].get(name)) is not None
    ]


def _knee(summary: dict[str, Any]) -> float | None:
    """The offered rate at the knee, as it turned out."""
    rate = (summary["knee"] or {}).get("rate")
    for point in summary["points"]:
        if rate is not None and point["rate"] == rate:
            return float(point["rates"]["offered_per_s"]["value"])
    return None


def _tables(summary: dict[str, Any]) -> Iterator[str]:
    points = summary["points"]
    yield "<section><h2>Latency</h2>"
    for point in points:
        yield _table(
            f"{point['label']}, ms", LATENCY_COLUMNS, [(row.name, *row.cells) for row in latency_rows(point)]
        )
    yield "</section><section><h2>Requests</h2>"
    yield _table("requests", REQUEST_COLUMNS, [(point["label"], *request_row(point)) for point in points])
    yield _table(
        "per second", tuple(RATE_NAMES.values()), [(point["label"], *rate_cells(point)) for point in points]
    )
    targets = targets_in_words(summary)
    good = f"Good: {targets}." if targets else "No targets were given, so nothing was judged."
    yield f"<p>{escape(good)}</p></section>"


def _remarks(summary: dict[str, Any]) -> Iterator[str]:
    yield "<section><h2>Remarks</h2>"
    for point in summary["points"]:
        lines = "".join(f"<li>{escape(line)}</li>" for line in remarks(point))
        head = f"<h3>{escape(point['label'])}</h3>" if len(summary["points"]) > 1 else ""
        yield f"{head}<ul>{lines}</ul>"
    yield "</section>"


def _table(first: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in (first, *columns))
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>" + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _list(title: str, entries: dict[str, Any]) -> str:
    items = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>"
        for name, value in entries.items()
        if value is not None
    )
    return f"<section><h2>{escape(title)}</h2><dl>{items}</dl></section>"


def _settings(summary: dict[str, Any]) -> dict[str, Any]:
    load = summary["load"]
    closed = load["pattern"] is None
    return {
        "model": summary["model"],
        "replies": "streamed" if summary["stream"] else "whole",
        "load": "closed loop" if closed else f"open loop, {load['pattern']} arrivals",
        "prompt tokens": load["input_tokens"],
        "output tokens": load["output_tokens"],
        "prompts": load["prompts"],
        "rounds": load["rounds"],
        "a round": _round(load),
        "warm-up": f"{load['warmup_s']:g} s before each round",
        "seed": load["seed"],
        "time": "counts from when a request was due, whether it could be sent then or not",
        "intervals": "95 %, by Student's t over the rounds' own figures",
        "narwhal": summary["narwhal"],
    }


def _round(load: dict[str, Any]) -> str | None:
    if load["duration_s"] is not None:
        return f"{load['duration_s']:g} s"
    return None if load["requests"] is None else f"{load['requests']:,} requests"
