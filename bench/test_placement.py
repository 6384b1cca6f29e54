"""One decision: price all engines, pick one, say whether the request may come in, and take its seat; and what
anything costs that happens while many wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from narwhal.admission.grant import Grant
from narwhal.admission.line import SeatRequest
from narwhal.fleet.table import Phase
from narwhal.outcomes import Ending
from narwhal.profiles.curves import DecodeCurve, HandoffCurve, PrefillCurve
from narwhal.profiles.model import EngineModel
from tests.unit.fleets import Engine, Rooms

NOBODY: frozenset[int] = frozenset()
NEVER = 1e9


def rooms_of(engines: int) -> Rooms:
    """Half prefill engines, half decode engines."""
    half = engines // 2
    names = [Engine(f"p{n:04}", "prefill", 8) for n in range(half)]
    names += [Engine(f"d{n:04}", "decode", 8, 256) for n in range(half)]
    model = EngineModel(
        PrefillCurve(1.5e-9, 2.5e-5, 0.008), DecodeCurve(0.008, 4e-5, 1e-8), HandoffCurve(2e-7, 0.01)
    )
    rooms = Rooms(names, [model] * engines, queue_capacity=20_000)
    rooms.table.set_depth(0.05)
    for engine in range(half):
        rooms.work.begin_decode(half + engine, 1000 + engine, 100, now=0.0)
    return rooms


def ask(
    phase: Phase,
    arrived: float = 0.0,
    target: float = 2.0,
    on_grant: Callable[[Grant], None] = lambda grant: None,
) -> SeatRequest:
    return SeatRequest(
        phase,
        arrived,
        NOBODY,
        on_grant,
        lambda ending: None,
        tokens=1000,
        output_tokens=150,
        target=target,
        tpot_s=0.05 if target < NEVER else NEVER,
        refusable=phase is Phase.PREFILL,
    )


class Busy:
    """Prefill engines that each have one request and no room for another, and a line before them."""

    def __init__(self, engines: int, waiting: int) -> None:
        rooms = rooms_of(engines)
        rooms.table.set_depth(1e-6)
        self.door = rooms.door
        self.grants: deque[Grant] = deque()
        for n in range(engines // 2 + waiting):
            self.come(-1.0 + n / 1e5)

    def come(self, now: float) -> None:
        """One more request, which may wait for as long as it takes."""
        grant = self.door.ask(ask(Phase.PREFILL, now, NEVER, self.grants.append), now)
        if grant is not None:
            self.grants.append(grant)


def decide(benchmark: Any, rooms: Rooms, phase: Phase, limit_us: float) -> None:
    """A request that is let in at once, and gives its seat back."""

    def decision() -> None:
        grant = rooms.door.ask(ask(phase), 0.0)
        assert grant is not None
        grant.release_all(0.0)

    benchmark(decision)
    benchmark.extra_info |= {
        "us_per_decision": round(benchmark.stats.stats.min * 1e6, 2),
        "limit_us": limit_us,
    }


@pytest.mark.parametrize(("engines", "limit_us"), [(16, 10), (64, 25), (1000, 300)])
def test_a_prefill_leg(benchmark: Any, engines: int, limit_us: float) -> None:
    decide(benchmark, rooms_of(engines), Phase.PREFILL, limit_us)


@pytest.mark.parametrize(("engines", "limit_us"), [(16, 10), (64, 25), (1000, 300)])
def test_a_decode_leg(benchmark: Any, engines: int, limit_us: float) -> None:
    decide(benchmark, rooms_of(engines), Phase.DECODE, limit_us)


@pytest.mark.parametrize(("engines", "waiting"), [(16, 100), (64, 250), (1000, 250)])
def test_a_refusal_with_others_in_line(benchmark: Any, engines: int, waiting: int) -> None:
    """The whole line is played forward, and the reason put in words."""
    line = Busy(engines, waiting)

    def decision() -> None:
        with suppress(Ending):
            line.door.ask(ask(Phase.PREFILL, target=0.3), 0.0)

    benchmark(decision)
    benchmark.extra_info |= {"us_per_decision": round(benchmark.stats.stats.min * 1e6, 2)}


# With a long line, what one thing that happens costs: right after another (pause 0), and after so long that
# the line is played forward again.
LONG_LINES = [(engines, pause_s) for engines in (16, 64, 1000) for pause_s in (0.0, 1.0)]


@pytest.mark.parametrize(("engines", "pause_s"), LONG_LINES)
@pytest.mark.parametrize("what", ["arrival", "seat", "look"])
def test_ten_thousand_wait(benchmark: Any, what: str, engines: int, pause_s: float) -> None:
    """One comes and goes; the first in line takes a seat and another one comes; the look at the line that
    is taken ten times a second."""
    line, now = Busy(engines, 10_000), 0.0

    def arrival() -> None:
        newcomer = ask(Phase.PREFILL, now, NEVER)
        assert line.door.ask(newcomer, now) is None
        line.door.leave(newcomer, now)

    def seat() -> None:
        line.grants.popleft().release_all(now)
        line.come(now)

    def look() -> None:
        line.door.look_again(now)

    does = {"arrival": arrival, "seat": seat, "look": look}[what]

    def after_a_pause() -> None:
        nonlocal now
        now += pause_s
        does()

    benchmark(after_a_pause)
    assert line.door.waiting(Phase.PREFILL) == 10_000
    benchmark.extra_info |= {"us": round(benchmark.stats.stats.min * 1e6, 2)}
