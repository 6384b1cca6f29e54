"""`narwhal bench compare A B`: two results side by side, and which of their differences are noise.

Each figure has a value from every round of its run. A difference counts if Welch's t-test on these values
finds it at 95 %; else it is noise: rounds of one and the same thing differ as much.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from narwhal.harness.figures import LATENCY_NAMES, RATE_NAMES, milliseconds, number
from narwhal.harness.measures import t95
from narwhal.harness.results import ResultsError, read_summary

if TYPE_CHECKING:
    from rich.console import Console

_PERCENTILES = ("p50", "p99")
_MORE_IS_BETTER = ("served_per_s", "goodput_per_s", "output_tokens_per_s")
_ALIKE = ("path", "stream", "load", "targets")  # what must agree for a comparison to mean much


class Verdict(StrEnum):
    """What is to be made of a difference, B against A."""

    SAME = "same"
    NOISE = "noise"
    BETTER = "better"
    WORSE = "worse"
    UNKNOWN = "unknown: needs 2 rounds or more of each"


class Difference(NamedTuple):
    """One figure of both results."""

    name: str
    a: float
    b: float
    verdict: Verdict
    unit: str

    @property
    def ratio(self) -> float | None:
        """B/A; None when A is 0."""
        return self.b / self.a if self.a else None


def judge(a: Sequence[float], b: Sequence[float], *, more_is_better: bool) -> Verdict:
    """What two runs' values, one a round, say of B against A."""
    if list(a) == list(b):
        return Verdict.SAME
    if len(a) < 2 or len(b) < 2:
        return Verdict.UNKNOWN
    (mean_a, of_a), (mean_b, of_b) = _mean(a), _mean(b)
    error = of_a + of_b
    if error > 0:
        degrees = error**2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1))
        if abs(mean_b - mean_a) <= t95(degrees) * math.sqrt(error):
            return Verdict.NOISE
    elif mean_a == mean_b:
        return Verdict.SAME
    return Verdict.BETTER if (mean_b > mean_a) is more_is_better else Verdict.WORSE


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and its squared standard error."""
    n = len(values)
    mean = sum(values) / n
    return mean, sum((value - mean) ** 2 for value in values) / (n - 1) / n


def differences(a: dict[str, Any], b: dict[str, Any]) -> Iterator[Difference]:
    """Every figure that two points both have."""
    for name, title in LATENCY_NAMES.items():
        of_a, of_b = a["latency"][name], b["latency"][name]
        if name == "queued_s" or of_a is None or of_b is None:
            continue
        for percentile in _PERCENTILES:
            verdict = judge(of_a["rounds"][percentile], of_b["rounds"][percentile], more_is_better=False)
            yield Difference(f"{title} {percentile}", of_a[percentile], of_b[percentile], verdict, "ms")
    for name in _MORE_IS_BETTER:
        of_a, of_b = a["rates"].get(name), b["rates"].get(name)
        if of_a is not None and of_b is not None:
            verdict = judge(of_a["rounds"], of_b["rounds"], more_is_better=True)
            yield Difference(RATE_NAMES[name], of_a["value"], of_b["value"], verdict, "/s")


def compare(path_a: Path, path_b: Path, console: Console) -> int:
    """Print the comparison; the exit status."""
    try:
        a, b = read_summary(path_a), read_summary(path_b)
    except ResultsError as error:
        print(f"narwhal bench compare: {error}", file=sys.stderr)
        return 1
    console.print(f"A: {path_a}, {a['target']}, {a['started_at']}", markup=False)
    console.print(f"B: {path_b}, {b['target']}, {b['started_at']}", markup=False)
    unlike = [name for name in _ALIKE if a.get(name) != b.get(name)]
    if unlike:
        names = ", ".join(unlike)
        console.print(f"They were not measured alike ({names} differ), so differences may come from that.")
    of_b = {point["label"]: point for point in b["points"]}
    shared = [(point, of_b[point["label"]]) for point in a["points"] if point["label"] in of_b]
    if not shared:
        labels = " and ".join(", ".join(point["label"] for point in of["points"]) for of in (a, b))
        print(f"narwhal bench compare: they have no load in common ({labels})", file=sys.stderr)
        return 1
    for one, other in shared:
        console.print()
        console.print(_table(one["label"], list(differences(one, other))))
    return 0


_STYLES = {Verdict.BETTER: "green", Verdict.WORSE: "red"}


def _table(label: str, rows: Sequence[Difference]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column(label)
    for heading in ("A", "B", "B/A"):
        table.add_column(heading, justify="right")
    table.add_column("B is")
    for row in rows:
        a, b = (milliseconds(value) if row.unit == "ms" else number(value) for value in (row.a, row.b))
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        name = f"{row.name}, {row.unit}" if row.unit == "ms" else f"{row.name}{row.unit}"
        table.add_row(name, a, b, ratio, str(row.verdict), style=_STYLES.get(row.verdict))
    return table
