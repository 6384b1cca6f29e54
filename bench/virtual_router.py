"""The router in virtual time: its own door, placement and models, before modelled engines.

A request goes the way it goes in `serving/exchange.py`: it asks for a prefill seat, is prefilled, asks for a
decode seat, is handed over, decodes. What the exchange tells its grants is told here as well, so the models
learn the same. Only what moves bytes is missing.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from narwhal._fast.price import Waiter
from narwhal.admission.door import Door
from narwhal.admission.grant import Grant
from narwhal.admission.line import SeatRequest
from narwhal.admission.readiness import Readiness
from narwhal.fleet.table import DEPTH_SHARE, FleetTable, Phase
from narwhal.fleet.work import Work
from narwhal.outcomes import Ending
from narwhal.placement.eligible import eligible
from narwhal.placement.place import Placement
from narwhal.profiles.curves import DecodeCurve, HandoffCurve, PrefillCurve
from narwhal.profiles.model import EngineModel
from narwhal.profiles.models import FleetModels
from narwhal.profiles.output_lengths import OutputLengths
from narwhal.sim.timing import Curve, Timing
from narwhal.sim.virtual import Clock, DecodeEngine, Noise, PrefillEngine


class Arrival(NamedTuple):
    """One request of a load."""

    moment: float
    prompt_tokens: int
    output_tokens: int
    prefill_noise: float
    handoff_noise: float


class EngineSpec(NamedTuple):
    """One modelled engine."""

    id: str
    role: str
    timing: Timing
    handoff: Curve = Curve(b=2e-7, c=0.002)  # fetching the KV cache
    prefill_concurrency: int = 8
    decode_concurrency: int = 256
    kv_capacity_tokens: int | None = None

    def model(self, off_by: float) -> EngineModel:
        """What a profile of it would say, if it was off by a factor."""
        scale = off_by / self.timing.speed
        if self.role == "prefill":
            curve = self.timing.prefill
            return EngineModel(prefill=PrefillCurve(curve.a * scale, curve.b * scale, curve.c * scale))
        interval = self.timing.interval
        return EngineModel(
            decode=DecodeCurve(
                interval.base * scale, interval.per_seq * scale, interval.per_kv_token * scale
            ),
            handoff=HandoffCurve(
                self.handoff.b * off_by, self.handoff.c * off_by + 1.5 * interval.base * scale
            ),
        )


Load = Sequence[Arrival]  # all requests of a run, by time


class RoundRobin(Placement):
    """For comparison: engines with room in turn."""

    def __init__(self, table: FleetTable, models: FleetModels) -> None:
        super().__init__(table, models)
        self._last = [-1, -1]

    def place(self, request: Waiter, phase: Phase, now: float) -> int | None:
        """The next one after the last."""
        free = [
            engine for engine in eligible(self._table, phase, request.avoid) if self._table.has_room(engine)
        ]
        if not free:
            return None
        self._last[phase] = min(free, key=lambda engine: (engine <= self._last[phase], engine))
        return self._last[phase]


class LeastBusy(Placement):
    """For comparison: the engine with the smallest share of its seats taken."""

    def place(self, request: Waiter, phase: Phase, now: float) -> int | None:
        """The first of equals."""
        seats, limit = self._table.seats[phase], self._table.limit[phase]
        free = [
            engine for engine in eligible(self._table, phase, request.avoid) if self._table.has_room(engine)
        ]
        return min(free, key=lambda engine: seats[engine] / limit[engine], default=None)


@dataclass(frozen=True, slots=True)
class Policy:
    """How the router decides."""

    predictive: bool = True
    placement: type[Placement] = Placement
    profiles: float | None = 1.0  # by what factor they are off; None: there are none


@dataclass(frozen=True, slots=True)
class Setting:
    """A fleet and what is promised."""

    engines: tuple[EngineSpec, ...]
    ttft_s: float = 2.0
    tpot_s: float = 0.05
    noise: Noise = field(default_factory=Noise)


class Request:
    """One request on its way."""

    __slots__ = (
        "arrival", "first_at", "grant", "last_at", "output_tokens", "prefill_noise",
        "prompt_tokens", "refusal", "refused_at", "router",
    )  # fmt: skip

    def __init__(self, router: VirtualRouter, arrival: Arrival) -> None:
        self.router = router
        self.arrival = arrival
        self.prompt_tokens = arrival.prompt_tokens
        self.output_tokens = arrival.output_tokens
        self.prefill_noise = arrival.prefill_noise
        self.grant: Grant | None = None
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.refusal: Ending | None = None
        self.refused_at: float | None = None

    @property
    def ttft_s(self) -> float | None:
        """None: it has no first token."""
        return None if self.first_at is None else self.first_at - self.arrival.moment

    @property
    def tpot_s(self) -> float:
        """0: it has not ended, or has one token."""
        if self.first_at is None or self.last_at is None or self.output_tokens < 2:
            return 0.0
        return (self.last_at - self.first_at) / (self.output_tokens - 1)

    def begin(self, *, refusable: bool) -> None:
        """Ask for a prefill seat."""
        router = self.router
        expected = router.output_lengths.expect(self.prompt_tokens, None, 0.7)
        ask = SeatRequest(
            Phase.PREFILL,
            self.arrival.moment,
            frozenset(),
            self.prefill_on,
            self.turned_away,
            tokens=self.prompt_tokens,
            output_tokens=round(expected),
            target=self.arrival.moment + router.setting.ttft_s,
            tpot_s=router.setting.tpot_s,
            refusable=refusable,
        )
        try:
            grant = router.door.ask(ask, router.clock.now)
        except Ending as ending:
            self.turned_away(ending)
            return
        if grant is not None:
            self.prefill_on(grant)

    def turned_away(self, ending: Ending) -> None:
        """It is refused, on arrival or while it waits."""
        self.refusal, self.refused_at = ending, self.router.clock.now
        self.router.refused(self)

    def prefill_on(self, grant: Grant) -> None:
        """It has a prefill seat."""
        self.grant = grant
        engine = self.router.engines[grant.engine]
        assert isinstance(engine, PrefillEngine)
        engine.submit(self)

    def prefilled(self) -> None:
        """The prefill leg has answered."""
        router, grant = self.router, self.grant
        assert grant is not None
        now = router.clock.now
        grant.prefilled(self.prompt_tokens, now)
        grant.release(Phase.PREFILL, now)
        expected = router.output_lengths.expect(self.prompt_tokens, None, 0.7)
        ask = SeatRequest(
            Phase.DECODE,
            self.arrival.moment,
            frozenset(),
            self.hand_over_to,
            self.turned_away,
            tokens=self.prompt_tokens,
            output_tokens=round(expected),
            tpot_s=router.setting.tpot_s,
            producer=grant.engine,
        )
        decode_grant = router.door.ask(ask, now)
        if decode_grant is not None:
            self.hand_over_to(decode_grant)

    def hand_over_to(self, grant: Grant) -> None:
        """It has a decode seat; its KV cache is fetched."""
        self.grant = grant
        router = self.router
        handoff = router.setting.engines[grant.engine].handoff(self.prompt_tokens)
        router.clock.at(router.clock.now + handoff * self.arrival.handoff_noise, self.join)

    def join(self) -> None:
        """Its KV cache is there."""
        assert self.grant is not None
        engine = self.router.engines[self.grant.engine]
        assert isinstance(engine, DecodeEngine)
        engine.join(self)

    def first_token(self) -> None:
        """The first token came."""
        assert self.grant is not None
        self.first_at = self.router.clock.now
        self.grant.first_token(self.first_at)

    def decoded(self) -> None:
        """The last token came."""
        router, grant = self.router, self.grant
        assert grant is not None
        self.last_at = router.clock.now
        grant.decoded(self.output_tokens, self.last_at)
        router.output_lengths.learn(self.prompt_tokens, None, self.output_tokens)
        grant.release_all(self.last_at)


class VirtualRouter:
    """The router's rooms that decide, wired to modelled engines."""

    def __init__(self, setting: Setting, policy: Policy, load: Load, seed: int) -> None:
        self.setting = setting
        self.policy = policy
        self.clock = Clock()
        self.table = FleetTable(setting.engines)
        if policy.placement is Placement:
            self.table.set_depth(DEPTH_SHARE * setting.ttft_s)
        self.models = FleetModels(
            [
                engine.model(policy.profiles) if policy.profiles is not None else EngineModel()
                for engine in setting.engines
            ]
        )
        self.work = Work(self.table, self.models, 0.0)
        self.placement = policy.placement(self.table, self.models)
        self.door = Door(
            self.table,
            Readiness(),
            self.placement,
            self.work,
            retention_limit=1024,
            queue_capacity=256,
        )
        self.output_lengths = OutputLengths()
        self.engines: list[PrefillEngine | DecodeEngine] = [
            PrefillEngine(self.clock, engine.timing)
            if engine.role == "prefill"
            else DecodeEngine(self.clock, engine.timing, setting.noise, seed + number)
            for number, engine in enumerate(setting.engines)
        ]
        self.requests: list[Request] = []
        self._refused: list[Request] = []  # just now
        self.load = load
        self.arrived = 0
        self._next()
        self._every_second()

    def _every_second(self) -> None:
        self.models.tick(self.clock.now)
        self.door.look_again(self.clock.now)
        self.clock.at(self.clock.now + 1, self._every_second)

    def _next(self) -> None:
        if self.arrived < len(self.load):
            self.clock.at(self.load[self.arrived].moment, self._arrive)

    def _arrive(self) -> None:
        request = Request(self, self.load[self.arrived])
        self.arrived += 1
        self.requests.append(request)
        self._next()
        request.begin(refusable=self.policy.predictive)

    def refused(self, request: Request) -> None:
        """A request was turned away."""
        self._refused.append(request)

    def let_in(self, request: Request) -> float:
        """Had this request been let in when it was refused: its TTFT. To be called right then.

        Infinite if there was no place in the line for it either. Another process goes on with the run to see,
        which is as it is here but for this request.
        """
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(writing, struct.pack("d", self._ttft_of(request.arrival)))
            finally:
                os._exit(0)
        os.close(writing)
        told = os.read(reading, 8)
        os.close(reading)
        os.waitpid(child, 0)
        return float(struct.unpack("d", told)[0])

    def _ttft_of(self, arrival: Arrival) -> float:
        again = Request(self, arrival)
        again.begin(refusable=False)
        while again.ttft_s is None:
            if again.refusal is not None:
                return math.inf
            self.clock.step()
        return again.ttft_s

    def run(self, until: float) -> Iterator[Request]:
        """Go on until a moment, and yield each request when it has been refused."""
        while self.clock.now < until and self.clock.step():
            refused, self._refused = self._refused, []
            yield from refused
