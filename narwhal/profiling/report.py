"""What was measured, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from narwhal.profiles.store import EngineProfile

LEGEND = "L: prompt tokens, n: running sequences, kv: KV tokens held"


def tables(profiles: Mapping[str, EngineProfile]) -> Iterator[Table]:
    """For each engine its curves, with their terms, the range they were measured in, and their leave-one-out
    error. They fit 80 columns, as no table of all engines does."""
    for name, profile in profiles.items():
        made = Table(
            box=SIMPLE_HEAD,
            show_edge=False,
            padding=(0, 1, 0, 0),
            title=Text(name),
            title_justify="left",
            title_style="bold",
        )
        for column in ("curve", "fit"):
            made.add_column(column, no_wrap=True)
        made.add_column("measured for")
        made.add_column("points", justify="right", no_wrap=True)
        made.add_column("error", justify="right", no_wrap=True)
        for row in _rows(profile):
            made.add_row(*row)
        yield made


def _rows(profile: EngineProfile) -> list[tuple[str, str, str, str, str]]:
    rows = []
    if profile.prefill:
        curve = profile.prefill.curve
        fit = _sum((curve.c, ""), (curve.b, "L"), (curve.a, "L²"))
        rows.append(
            ("prefill", fit, f"L {curve.lo:,} to {curve.hi:,}", len(profile.prefill.points), curve.error)
        )
    if profile.decode:
        decode = profile.decode.curve
        fit = _sum((decode.c, ""), (decode.p, "n"), (decode.q, "kv"))
        span = f"n to {decode.running_hi:,}, kv to {decode.kv_hi:,}"
        rows.append(("interval", fit, span, len(profile.decode.points), decode.error))
    if profile.handoff:
        handoff = profile.handoff.curve
        fit = _sum((handoff.c, ""), (handoff.b, "L"))
        span = f"L {handoff.lo:,} to {handoff.hi:,}"
        rows.append(("handoff", fit, span, len(profile.handoff.points), handoff.error))
    return [
        (name, fit, span, str(points), "-" if error is None else f"{error:.1%}")
        for name, fit, span, points, error in rows
    ]


def _sum(*terms: tuple[float, str]) -> str:
    return " + ".join(f"{_duration(value)} {unit}".rstrip() for value, unit in terms if value > 0) or "0"


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
