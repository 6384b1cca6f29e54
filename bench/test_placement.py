"""One decision: price all engines, pick one, say whether the request may come in, and take its seat."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from narwhal.admission.door import SeatRequest
from narwhal.fleet.table import Phase
from narwhal.outcomes import Ending
from narwhal.profiles.curves import DecodeCurve, HandoffCurve, PrefillCurve
from narwhal.profiles.model import EngineModel
from tests.unit.fleets import Engine, Rooms

NOBODY: frozenset[int] = frozenset()


def rooms_of(engines: int, busy: float) -> Rooms:
    """Half prefill engines, half decode engines. `busy`: seconds of work that each prefill engine has."""
    half = engines // 2
    names = [Engine(f"p{n:04}", "prefill", 8) for n in range(half)]
    names += [Engine(f"d{n:04}", "decode", 8, 256) for n in range(half)]
    model = EngineModel(
        PrefillCurve(1.5e-9, 2.5e-5, 0.008), DecodeCurve(0.008, 4e-5, 1e-8), HandoffCurve(2e-7, 0.01)
    )
    rooms = Rooms(names, [model] * engines, queue_capacity=1000)
    rooms.table.set_depth(0.05)
    for engine in range(half):
        if busy:
            rooms.work.begin_prefill(engine, 1000, 1100, busy + engine / 1e4, now=0.0)
        rooms.work.begin_decode(half + engine, 1000 + engine, 100, now=0.0)
    return rooms


def ask(rooms: Rooms, phase: Phase, arrived: float = 0.0, target: float = 2.0) -> SeatRequest:
    return SeatRequest(
        phase,
        arrived,
        NOBODY,
        lambda grant: None,
        lambda ending: None,
        tokens=1000,
        output_tokens=150,
        target=target,
        tpot_s=0.05,
        refusable=phase is Phase.PREFILL,
    )


def decide(benchmark: Any, rooms: Rooms, phase: Phase, limit_us: float) -> None:
    """A request that is let in at once, and gives its seat back."""

    def decision() -> None:
        grant = rooms.door.ask(ask(rooms, phase), 0.0)
        assert grant is not None
        grant.release_all(0.0)

    benchmark(decision)
    benchmark.extra_info |= {
        "us_per_decision": round(benchmark.stats.stats.min * 1e6, 2),
        "limit_us": limit_us,
    }


@pytest.mark.parametrize(("engines", "limit_us"), [(16, 10), (64, 25), (1000, 300)])
def test_a_prefill_leg(benchmark: Any, engines: int, limit_us: float) -> None:
    decide(benchmark, rooms_of(engines, 0.0), Phase.PREFILL, limit_us)


@pytest.mark.parametrize(("engines", "limit_us"), [(16, 10), (64, 25), (1000, 300)])
def test_a_decode_leg(benchmark: Any, engines: int, limit_us: float) -> None:
    decide(benchmark, rooms_of(engines, 0.0), Phase.DECODE, limit_us)


@pytest.mark.parametrize(("engines", "waiting"), [(16, 100), (64, 250), (1000, 250)])
def test_a_refusal_with_others_in_line(benchmark: Any, engines: int, waiting: int) -> None:
    """The whole line is played forward, and the reason put in words."""
    rooms = rooms_of(engines, 0.5)
    for n in range(waiting):
        assert rooms.door.ask(ask(rooms, Phase.PREFILL, -1.0 + n / 1000, target=1e9), 0.0) is None

    def decision() -> None:
        with suppress(Ending):
            rooms.door.ask(ask(rooms, Phase.PREFILL, target=0.3), 0.0)

    benchmark(decision)
    benchmark.extra_info |= {"us_per_decision": round(benchmark.stats.stats.min * 1e6, 2)}
