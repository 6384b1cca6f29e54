"""What was measured, as a table."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from narwhal.profiles.store import EngineProfile


def table(profiles: Mapping[str, EngineProfile]) -> Table:
    """Each curve with its terms, the range it was measured in, and its leave-one-out error."""
    made = Table(title="L: prompt tokens, n: running sequences, kv: KV tokens held")
    for column in ("engine", "curve", "fit"):
        made.add_column(column, no_wrap=True)
    made.add_column("measured")
    made.add_column("points", justify="right")
    made.add_column("error", justify="right")
    for name, profile in profiles.items():
        for row in _rows(profile):
            made.add_row(name, *row)
        made.add_section()
    return made


def _rows(profile: EngineProfile) -> list[tuple[str, str, str, str, str]]:
    rows = []
    if profile.prefill:
        curve = profile.prefill.curve
        fit = _sum((curve.c, ""), (curve.b, "L"), (curve.a, "L²"))
        rows.append(
            ("prefill", fit, f"{curve.lo:,} to {curve.hi:,} L", len(profile.prefill.points), curve.error)
        )
    if profile.decode:
        decode = profile.decode.curve
        fit = _sum((decode.c, ""), (decode.p, "n"), (decode.q, "kv"))
        span = f"to {decode.running_hi:,} n, {decode.kv_hi:,} kv"
        rows.append(("interval", fit, span, len(profile.decode.points), decode.error))
    if profile.handoff:
        handoff = profile.handoff.curve
        fit = _sum((handoff.c, ""), (handoff.b, "L"))
        span = f"{handoff.lo:,} to {handoff.hi:,} L"
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
