"""A run's folder: rows.jsonl (a row a request), summary.json, report.html."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from narwhal.harness.run import Run

ROWS, SUMMARY, REPORT = "rows.jsonl", "summary.json", "report.html"


class ResultsError(Exception):
    """Results that can't be read or written; the message says why."""


def prepare(folder: Path) -> None:
    """See that results can be written there. Raises ResultsError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultsError(f"{folder}: {error.strerror}") from None


def write(folder: Path, run: Run, summary: dict[str, Any], page: str) -> None:
    """Write a run's three files. Raises ResultsError."""
    try:
        with (folder / ROWS).open("wb") as rows:
            for sample in sorted(run.samples, key=lambda sample: sample.number):
                rows.write(orjson.dumps(sample.as_row(), option=orjson.OPT_APPEND_NEWLINE))
        (folder / SUMMARY).write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2))
        (folder / REPORT).write_text(page)
    except OSError as error:
        raise ResultsError(f"{folder}: {error.strerror}") from None


def read_summary(path: Path) -> dict[str, Any]:
    """The summary of a run's folder, or of the file itself. Raises ResultsError."""
    path = path / SUMMARY if path.is_dir() else path
    try:
        summary = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise ResultsError(f"{path}: not JSON: {error}") from None
    if not isinstance(summary, dict) or not isinstance(summary.get("points"), list):
        raise ResultsError(f"{path}: not the summary of a `narwhal bench`")
    return summary
