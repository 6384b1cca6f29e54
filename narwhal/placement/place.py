"""Which engine? One decision: eligible, then priced, then picked."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from narwhal.fleet.table import FleetTable, Phase
from narwhal.placement.eligible import eligible
from narwhal.placement.pick import pick
from narwhal.placement.price import prices


class NoEligibleEngine(Exception):
    """No engine may run the leg, free seats or not. Its text says how many there are and why none will do."""


def place(table: FleetTable, phase: Phase, avoid: AbstractSet[int]) -> int | None:
    """The engine for one more leg, by index; None if every eligible one is full.

    Raises NoEligibleEngine if there is none to wait for.
    """
    engines = eligible(table, phase, avoid)
    if not engines:
        raise NoEligibleEngine(_why_none(table, phase, avoid))
    return pick(engines, prices(table, phase, engines))


def _why_none(table: FleetTable, phase: Phase, avoid: AbstractSet[int]) -> str:
    engines = table.serving[phase]
    available = len(eligible(table, phase, frozenset()))
    text = f"no engine can run the {phase.name.lower()} leg: {available} of {len(engines)} are available"
    return f"{text}, and this request failed on those already" if available and avoid else text
