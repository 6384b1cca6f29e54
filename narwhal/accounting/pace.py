"""What the router knows of each engine's pace and has it do, copied for whoever reads."""

from __future__ import annotations

from typing import NamedTuple

from narwhal.fleet.table import FleetTable, Phase
from narwhal.placement.place import Placement
from narwhal.profiles.model import WorkReport
from narwhal.profiles.models import FleetModels


class Drifting(NamedTuple):
    """How an engine has changed against its peers, in one phase."""

    state: str
    score: float | None  # 0: not at all; log(2): twice as slow; None: nothing to compare yet


class EnginePace(NamedTuple):
    """One engine's."""

    work: dict[str, WorkReport]  # what is known of prefill, handoff and interval, where it does them
    drift: dict[Phase, Drifting]
    prefill_left_s: float
    kv_tokens: int  # held, as counted by the router


class FleetPace(NamedTuple):
    """The fleet's."""

    engines: list[EnginePace]
    known: bool  # of any engine, how long prompts take: else nobody can be refused for being late
    wait_factor: float  # how forecast waits have turned out, and are corrected
    unserved: tuple[int, ...]  # by phase: legs placed where they miss their target, for want of better


def pace_of(table: FleetTable, models: FleetModels, placement: Placement, now: float) -> FleetPace:
    """The figures of this instant."""
    board = placement.board
    engines = []
    for index, model in enumerate(models.engines):
        phases = table.needs(index)
        work = {}
        if Phase.PREFILL in phases:
            work["prefill"] = model.prefill.report()
        else:
            work["handoff"] = model.handoff.report()
        if Phase.DECODE in phases:
            work["interval"] = model.interval.report()
        drift = {
            phase: Drifting(models.drift[phase].state(index).name.lower(), models.drift[phase].score(index))
            for phase in Phase
        }
        engines.append(EnginePace(work, drift, board.left_s(index, now), table.kv_tokens[index]))
    return FleetPace(engines, board.known(), board.wait_factor, tuple(placement.unserved))
