"""The door lets in what fits, in order of arrival, and every seat comes back.

The rules one by one, then all of them at once: a state machine drives the door and a slow, obvious model of
it with the same steps, and wants the same things said in the same order. What is told of a grant may act on
it there and then, as the router does: give it back, go on to decode, try elsewhere, make someone else leave.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from narwhal.admission.door import Door
from narwhal.admission.grant import Grant
from narwhal.admission.line import SeatRequest
from narwhal.admission.readiness import Readiness, State
from narwhal.fleet.table import FleetTable, Phase
from narwhal.outcomes import OUTCOMES, Ending
from tests.unit.fleets import Engine, Rooms

PREFILL, DECODE = Phase.PREFILL, Phase.DECODE
NOW = 0.0  # nothing in here takes time


class Told:
    """Requests for seats by name, and what each was told."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.log: list[str] = []
        self.grants: dict[str, Grant] = {}
        self.requests: dict[str, SeatRequest] = {}

    def ask(
        self,
        name: str,
        arrived: float,
        phase: Phase = PREFILL,
        avoid: tuple[int, ...] = (),
        again: bool = False,
    ) -> Grant | None:
        def on_grant(grant: Grant) -> None:
            self.grants[name] = grant
            self.log.append(name)

        def on_ending(ending: Ending) -> None:
            assert ending.name == "backend_unavailable"
            self.log.append(f"{name} unavailable")

        request = SeatRequest(phase, arrived, frozenset(avoid), on_grant, on_ending, again=again)
        self.requests[name] = request
        grant = self.door.ask(request, NOW)
        if grant is not None:
            self.grants[name] = grant
        return grant


def door_of(
    *engines: Engine, retention_limit: int = 100, queue_capacity: int = 100
) -> tuple[FleetTable, Door, Told]:
    rooms = Rooms(engines, retention_limit=retention_limit, queue_capacity=queue_capacity)
    return rooms.table, rooms.door, Told(rooms.door)


def ending(call: Callable[[], Any]) -> Ending:
    with pytest.raises(Ending) as caught:
        call()
    return caught.value


# The rules, one by one.


def test_seats_go_by_arrival_even_to_one_who_asked_last() -> None:
    _, door, told = door_of(Engine("p", "prefill", 1), Engine("d", "decode", 1))
    assert told.ask("first", 1.0)
    assert told.ask("late", 3.0) is None
    assert told.ask("tried again", 2.0) is None
    assert door.waiting(PREFILL) == 2
    told.grants["first"].release_all(NOW)
    told.grants["tried again"].release_all(NOW)
    assert told.log == ["tried again", "late"]


def test_one_who_avoids_the_free_engine_may_be_passed_and_nobody_else() -> None:
    _, _, told = door_of(Engine("p0", "prefill", 1), Engine("p1", "prefill", 1))
    told.ask("on p0", 0.0)
    told.ask("on p1", 0.0)
    told.ask("avoids p0", 1.0, avoid=(0,))
    told.ask("any", 2.0)
    told.ask("avoids p1", 3.0, avoid=(1,))
    told.grants["on p0"].release_all(NOW)
    assert told.log == ["any"]
    told.grants["any"].release_all(NOW)
    assert told.log == ["any", "avoids p1"]
    told.grants["on p1"].release_all(NOW)
    assert told.log == ["any", "avoids p1", "avoids p0"]


def test_one_who_avoids_an_engine_is_served_by_another_in_its_turn() -> None:
    _, _, told = door_of(Engine("p0", "prefill", 1), Engine("p1", "prefill", 1))
    told.ask("on p0", 0.0)
    told.ask("on p1", 0.0)
    told.ask("avoids p0", 1.0, avoid=(0,))
    told.ask("any", 2.0)
    told.grants["on p1"].release_all(NOW)
    assert told.log == ["avoids p0"]


def test_one_who_leaves_before_it_is_told_of_its_seat_is_told_nothing_and_the_seat_goes_on() -> None:
    table, door, told = door_of(Engine("p", "prefill", 1))
    told.ask("runs", 0.0)

    def first_is_told(grant: Grant) -> None:
        told.grants["first"] = grant
        door.leave(told.requests["second"], NOW)

    door.ask(SeatRequest(PREFILL, 1.0, frozenset(), first_is_told, lambda ending: None), NOW)
    told.ask("second", 2.0)
    told.ask("third", 3.0)
    table.set_limit(0, PREFILL, 3)
    door.look_again(NOW)
    assert told.log == ["third"]
    for name in ("runs", "first", "third"):
        told.grants[name].release_all(NOW)
    assert table.idle


def test_one_who_leaves_frees_its_place_at_once() -> None:
    _, door, told = door_of(Engine("p", "prefill", 1), queue_capacity=1)
    told.ask("runs", 0.0)
    told.ask("leaves", 1.0)
    assert ending(lambda: told.ask("turned away", 2.0)).name == "queue_full"
    door.leave(told.requests["leaves"], NOW)
    door.leave(told.requests["leaves"], NOW)
    assert told.ask("waits", 3.0) is None
    told.grants["runs"].release_all(NOW)
    assert told.log == ["waits"]


def test_refusals_name_the_limit_the_value_and_the_setting() -> None:
    _, door, told = door_of(Engine("p", "prefill", 1), retention_limit=2, queue_capacity=0)
    door.hold()
    door.hold()
    full = ending(door.hold)
    assert full.name == "retention_full"
    assert "2 requests are held already (serving.retention_limit is 2)" in full.message
    told.ask("runs", 0.0)
    queue = ending(lambda: told.ask("would wait", 1.0))
    assert queue.name == "queue_full"
    assert "serving.queue_capacity is 0" in queue.message
    none = ending(lambda: told.ask("no engine", 1.0, DECODE))
    assert none.name == "backend_unavailable"
    assert "no engine can run the decode leg" in none.message


def test_a_request_that_started_waits_even_if_the_queue_is_full() -> None:
    _, door, told = door_of(
        Engine("p0", "prefill", 1), Engine("p1", "prefill", 1), Engine("d", "decode", 1, 1), queue_capacity=0
    )
    for name in ("a", "b"):
        told.ask(name, 0.0)
    told.ask("decodes", 0.0, DECODE)
    assert told.ask("finished prefill", 1.0, DECODE) is None
    assert told.ask("tried again", 1.0, avoid=(0,)) is None
    assert told.ask("tried again with no other engine", 1.0, again=True) is None
    assert (door.waiting(PREFILL), door.waiting(DECODE)) == (2, 1)


def test_a_whole_request_gives_its_prefill_seat_back_first_and_its_decode_seat_last() -> None:
    table, _, told = door_of(Engine("b", "both", 1, 2))
    grant = told.ask("whole", 0.0)
    assert grant is not None
    assert grant.both
    assert set(grant.held) == {PREFILL, DECODE}
    assert told.ask("next", 1.0) is None
    grant.release(PREFILL, NOW)
    assert set(grant.held) == {DECODE}
    assert told.log == ["next"]
    assert table.decode_seats[0] == 2
    grant.release(DECODE, NOW)
    told.grants["next"].release_all(NOW)
    assert table.idle


def test_a_whole_request_waits_for_a_decode_seat_as_well() -> None:
    _, _, told = door_of(Engine("b", "both", 2, 1))
    grant = told.ask("whole", 0.0)
    assert grant is not None
    assert told.ask("next", 1.0) is None
    grant.release(PREFILL, NOW)
    assert told.log == []
    grant.release(DECODE, NOW)
    assert told.log == ["next"]


def test_a_seat_given_back_twice_is_an_error_and_giving_all_back_twice_is_not() -> None:
    table, _, told = door_of(Engine("p", "prefill", 1))
    grant = told.ask("a", 0.0)
    assert grant is not None
    grant.release(PREFILL, NOW)
    with pytest.raises(RuntimeError, match="holds no prefill seat"):
        grant.release(PREFILL, NOW)
    grant.release_all(NOW)
    assert table.idle


def test_those_without_any_engine_left_are_told_and_the_others_wait_on() -> None:
    table, door, told = door_of(Engine("p0", "prefill", 1), Engine("p1", "prefill", 1))
    for name in ("on p0", "on p1"):
        told.ask(name, 0.0)
    told.ask("avoids p1", 1.0, avoid=(1,))
    told.ask("any", 2.0)
    table.set_available(0, False)
    door.look_again(NOW)
    assert told.log == ["avoids p1 unavailable"]
    told.grants["on p0"].release_all(NOW)  # the engine is out: its seat is no use to anyone
    assert door.waiting(PREFILL) == 1
    table.set_available(0, True)
    door.look_again(NOW)
    assert told.log == ["avoids p1 unavailable", "any"]


def test_a_raised_limit_serves_as_many_waiters_as_it_has_new_seats() -> None:
    table, door, told = door_of(Engine("p", "prefill", 1))
    for n in range(4):
        told.ask(str(n), float(n))
    table.set_limit(0, PREFILL, 3)
    door.look_again(NOW)
    assert told.log == ["1", "2"]


def test_a_thousand_waiters_who_each_give_their_seat_back_at_once_do_not_exhaust_the_stack() -> None:
    table, door, _ = door_of(Engine("p", "prefill", 1), queue_capacity=5000)
    served = []

    def pass_on(grant: Grant) -> None:
        served.append(grant)
        grant.release_all(NOW)

    first = door.ask(SeatRequest(PREFILL, 0.0, frozenset(), pass_on, lambda ending: None), NOW)
    assert first is not None
    for n in range(5000):
        door.ask(SeatRequest(PREFILL, float(n), frozenset(), pass_on, lambda ending: None), NOW)
    first.release_all(NOW)
    assert len(served) == 5000
    assert table.idle


def test_asking_twice_and_letting_go_of_nothing_are_errors() -> None:
    _, door, told = door_of(Engine("p", "prefill", 1))
    told.ask("a", 0.0)
    with pytest.raises(RuntimeError, match="asked before"):
        door.ask(told.requests["a"], NOW)
    with pytest.raises(RuntimeError, match="no request is held"):
        door.let_go()


# Readiness.


def test_every_state_but_ready_is_a_row_of_the_table_of_outcomes() -> None:
    assert [OUTCOMES[state].code for state in State if state is not State.READY] == [
        state.value for state in State if state is not State.READY
    ]


def test_a_state_stays_until_each_source_that_raised_it_has_cleared_it() -> None:
    readiness = Readiness()
    readiness.set(State.MAINTENANCE, "operator", "kernel upgrade")
    readiness.set(State.MAINTENANCE, "drain", "all engines drain")
    assert readiness.blocker == (State.MAINTENANCE, "kernel upgrade; all engines drain")
    readiness.clear(State.MAINTENANCE, "operator")
    readiness.clear(State.STANDBY, "operator")
    assert readiness.blocker == (State.MAINTENANCE, "all engines drain")
    readiness.clear(State.MAINTENANCE, "drain")
    assert readiness.blocker is None
    assert readiness.status is State.READY


def test_the_severest_state_is_told_to_newcomers_with_its_reason() -> None:
    readiness = Readiness()
    door = Rooms([Engine("p", "prefill")], readiness=readiness).door
    severest_last = ("monitoring_degraded", "maintenance", "standby", "fenced", "stopping")
    for state in severest_last:
        readiness.set(State(state), "test", f"why {state}")
        refusal = ending(door.hold)
        assert (refusal.name, door.held) == (state, 0)
        assert f"why {state}" in refusal.message
    with pytest.raises(ValueError, match="ready"):
        readiness.set(State.READY, "test", "")


# All at once.


@dataclass
class Ask:
    """One ask, with what is done about its grant: the first of `plan`, the rest being for what follows it."""

    name: int
    phase: Phase
    arrived: int
    avoid: frozenset[int]
    plan: list[str]


class World(ABC):
    """Requests that ask, act on what they are told, and log it; the door's and the model's alike."""

    def __init__(self) -> None:
        self.log: list[tuple[object, ...]] = []
        self.asks: dict[int, Ask] = {}
        self.waiting: dict[int, Ask] = {}  # not told yet, as far as the asker knows
        self.running: dict[int, int] = {}  # name -> engine
        self.calm = False  # plans are over

    def ask(self, phase: Phase, arrived: int, avoid: frozenset[int], plan: list[str]) -> None:
        ask = Ask(len(self.asks), phase, arrived, avoid, plan)
        self.asks[ask.name] = ask
        answer = self.admit(ask)
        if isinstance(answer, str):
            self.log.append(("refused", ask.name, answer))
        elif answer is None:
            self.waiting[ask.name] = ask
            self.log.append(("waits", ask.name))
        else:
            self.granted(ask, answer)

    def granted(self, ask: Ask, engine: int) -> None:
        self.waiting.pop(ask.name, None)
        self.running[ask.name] = engine
        self.log.append(("granted", ask.name, engine))
        doing = ask.plan[0] if ask.plan and not self.calm else "keep"
        rest = ask.plan[1:]
        if doing == "release":
            self.end(ask.name)
        elif doing == "decode":
            self.end(ask.name)
            self.ask(DECODE, ask.arrived, frozenset(), rest)
        elif doing == "decode first":
            self.ask(DECODE, ask.arrived, frozenset(), rest)
            self.end(ask.name)
        elif doing == "retry":
            self.end(ask.name)
            self.ask(ask.phase, ask.arrived, ask.avoid | {engine}, rest)
        elif doing == "another leaves" and self.waiting:
            self.leave(max(self.waiting))
        elif doing == "first leaves" and self.waiting:
            self.leave(min(self.waiting))

    def unavailable(self, ask: Ask) -> None:
        del self.waiting[ask.name]
        self.log.append(("unavailable", ask.name))
        if ask.plan and not self.calm:
            self.ask(ask.phase, ask.arrived, frozenset(), ask.plan[1:])

    def leave(self, name: int) -> None:
        del self.waiting[name]
        self.log.append(("left", name))
        self.forget(name)

    def end(self, name: int) -> None:
        del self.running[name]
        self.log.append(("ended", name))
        self.give_all(name)

    @abstractmethod
    def admit(self, ask: Ask) -> int | str | None:
        """The engine, the name of the refusal, or None for a wait."""

    @abstractmethod
    def forget(self, name: int) -> None:
        """It left."""

    @abstractmethod
    def give_all(self, name: int) -> None:
        """Its seats go back."""


class RealWorld(World):
    """On the door."""

    def __init__(self, engines: list[Engine], capacity: int) -> None:
        super().__init__()
        self.readiness = Readiness()
        rooms = Rooms(engines, readiness=self.readiness, retention_limit=2, queue_capacity=capacity)
        self.table, self.door = rooms.table, rooms.door
        self.requests: dict[int, SeatRequest] = {}
        self.grants: dict[int, Grant] = {}

    def admit(self, ask: Ask) -> int | str | None:
        def on_grant(grant: Grant) -> None:
            self.grants[ask.name] = grant
            self.granted(ask, grant.engine)

        request = SeatRequest(
            ask.phase, float(ask.arrived), ask.avoid, on_grant, lambda ending: self.unavailable(ask)
        )
        self.requests[ask.name] = request
        try:
            grant = self.door.ask(request, NOW)
        except Ending as refusal:
            return refusal.name
        if grant is None:
            return None
        self.grants[ask.name] = grant
        return grant.engine

    def forget(self, name: int) -> None:
        self.door.leave(self.requests[name], NOW)

    def give_all(self, name: int) -> None:
        self.grants.pop(name).release_all(NOW)


@dataclass
class ModelEngine:
    id: str
    role: str
    limit: list[int]
    seats: list[int] = field(default_factory=lambda: [0, 0])
    available: bool = True

    @property
    def phases(self) -> list[int]:
        return {"prefill": [0], "decode": [1], "both": [0, 1]}[self.role]

    @property
    def free(self) -> bool:
        return self.available and all(self.seats[p] < self.limit[p] for p in self.phases)

    @property
    def share(self) -> Fraction:
        return max(Fraction(self.seats[p], self.limit[p]) for p in self.phases)


class ModelWorld(World):
    """The rules, written down as plainly as they can be."""

    def __init__(self, engines: list[ModelEngine], capacity: int) -> None:
        super().__init__()
        self.engines = engines
        self.capacity = capacity
        self.line: list[Ask] = []
        self.placed: dict[int, tuple[int, list[int]]] = {}  # name -> engine, phases held
        self.to_tell: list[tuple[Ask, int | None]] = []
        self.telling = False

    def able(self, ask: Ask) -> list[int]:
        roles = ("decode",) if ask.phase is DECODE else ("prefill", "both")
        return [
            n
            for n, engine in enumerate(self.engines)
            if engine.role in roles and engine.available and n not in ask.avoid
        ]

    def choose(self, ask: Ask) -> int | None:
        free = [n for n in self.able(ask) if self.engines[n].free]
        return min(free, key=lambda n: (self.engines[n].share, self.engines[n].id), default=None)

    def seat(self, ask: Ask, engine: int) -> None:
        self.placed[ask.name] = (engine, list(self.engines[engine].phases))
        for phase in self.engines[engine].phases:
            self.engines[engine].seats[phase] += 1

    def admit(self, ask: Ask) -> int | str | None:
        if not self.able(ask):
            return "backend_unavailable"
        engine = self.choose(ask)
        if engine is not None:
            self.seat(ask, engine)
            return engine
        newcomers_wait = sum(other.phase is PREFILL for other in self.line) >= self.capacity
        if ask.phase is PREFILL and not ask.avoid and newcomers_wait:
            return "queue_full"
        self.line.append(ask)
        return None

    def forget(self, name: int) -> None:
        self.line = [ask for ask in self.line if ask.name != name]
        self.to_tell = [(ask, engine) for ask, engine in self.to_tell if ask.name != name]
        if name in self.placed:
            self.give_all(name)

    def give_all(self, name: int) -> None:
        for phase in list(self.placed[name][1]):
            self.give(name, phase, settle=False)
        self.settle()

    def give(self, name: int, phase: int, settle: bool = True) -> None:
        engine, phases = self.placed[name]
        phases.remove(phase)
        self.engines[engine].seats[phase] -= 1
        if not phases:
            del self.placed[name]
        if settle:
            self.settle()

    def settle(self) -> None:
        for phase in Phase:
            here = sorted((a for a in self.line if a.phase is phase), key=lambda a: (a.arrived, a.name))
            hopeless = [ask for ask in here if not self.able(ask)]
            for ask in hopeless + [ask for ask in here if ask not in hopeless]:
                engine = self.choose(ask)
                if ask in hopeless or engine is not None:
                    self.line.remove(ask)
                    self.to_tell.append((ask, engine))
                    if engine is not None:
                        self.seat(ask, engine)
        if self.telling:
            return
        self.telling = True
        while self.to_tell:
            ask, engine = self.to_tell.pop(0)
            if engine is None:
                self.unavailable(ask)
            else:
                self.granted(ask, engine)
        self.telling = False


ACTIONS = ["keep", "release", "decode", "decode first", "retry", "another leaves", "first leaves"]
PLANS = st.lists(st.sampled_from(ACTIONS), max_size=3)
ROLES = ["prefill", "decode", "both"]
ENGINES = st.tuples(st.sampled_from(ROLES), st.integers(1, 2), st.integers(1, 2))
IDS = st.permutations(["e1", "e10", "e2", "b"])
AVOID: st.SearchStrategy[frozenset[int]] = st.one_of(
    st.just(frozenset()), st.frozensets(st.integers(0, 2), max_size=2)
)
ARRIVALS = st.tuples(st.sampled_from([PREFILL, PREFILL, DECODE]), st.integers(0, 9), AVOID, PLANS)
SEVEREST_LAST = ["monitoring_degraded", "maintenance", "standby", "fenced", "stopping"]


class DoorMachine(RuleBasedStateMachine):
    """Both worlds, step by step."""

    @initialize(engines=st.lists(ENGINES, min_size=1, max_size=4), ids=IDS, capacity=st.integers(0, 9))
    def start(self, engines: list[tuple[str, int, int]], ids: list[str], capacity: int) -> None:
        specs = [Engine(name, *engine) for name, engine in zip(ids, engines, strict=False)]
        self.real = RealWorld(specs, capacity)
        self.model = ModelWorld([ModelEngine(e.id, e.role, [e[2], e[3]]) for e in specs], capacity)
        self.before = ([0] * len(specs), [0] * len(specs))
        self.held = 0
        self.raised: set[tuple[str, str]] = set()

    @rule(asks=st.lists(ARRIVALS, min_size=1, max_size=6))
    def ask(self, asks: list[tuple[Phase, int, frozenset[int], list[str]]]) -> None:
        for world in (self.real, self.model):
            for ask in asks:
                world.ask(*ask)

    @precondition(lambda self: self.model.waiting)
    @rule(which=st.integers(0, 99))
    def leave(self, which: int) -> None:
        name = sorted(self.model.waiting)[which % len(self.model.waiting)]
        for world in (self.real, self.model):
            world.leave(name)
        self.real.forget(name)  # once more: nothing happens

    @precondition(lambda self: self.model.running)
    @rule(which=st.integers(0, 99))
    def end(self, which: int) -> None:
        name = sorted(self.model.running)[which % len(self.model.running)]
        grant = self.real.grants[name]
        for world in (self.real, self.model):
            world.end(name)
        grant.release_all(NOW)  # once more: nothing happens

    def whole(self) -> list[int]:
        """Requests that hold a seat in both phases."""
        return sorted(name for name, (_, phases) in self.model.placed.items() if len(phases) == 2)

    @precondition(lambda self: self.whole())
    @rule(which=st.integers(0, 99))
    def first_output_of_a_whole_request(self, which: int) -> None:
        name = self.whole()[which % len(self.whole())]
        self.real.grants[name].release(PREFILL, NOW)
        self.model.give(name, 0)

    @rule(
        which=st.integers(0, 99),
        available=st.sampled_from([True, True, False]),
        limits=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    )
    def an_engine_changes(self, which: int, available: bool, limits: tuple[int, int]) -> None:
        engine = which % len(self.model.engines)
        self.model.engines[engine].available = available
        self.model.engines[engine].limit = list(limits)
        self.real.table.set_available(engine, available)
        for phase in Phase:
            self.real.table.set_limit(engine, phase, limits[phase])
        self.real.door.look_again(NOW)
        self.model.settle()

    @rule(
        hold=st.booleans(),
        state=st.sampled_from(SEVEREST_LAST),
        source=st.sampled_from(["ha", "drain"]),
        up=st.sampled_from([True, False, False]),
    )
    def readiness_or_the_held_change(self, hold: bool, state: str, source: str, up: bool) -> None:
        if up:
            self.real.readiness.set(State(state), source, "for a reason")
            self.raised.add((state, source))
        else:
            self.real.readiness.clear(State(state), source)
            self.raised.discard((state, source))
        states = [state for state, _ in self.raised]
        refusal = max(states, key=SEVEREST_LAST.index, default="retention_full" if self.held == 2 else "")
        if hold and refusal:
            assert ending(self.real.door.hold).name == refusal
        elif hold:
            self.real.door.hold()
            self.held += 1
        elif self.held:
            self.real.door.let_go()
            self.held -= 1

    @invariant()
    def both_worlds_say_the_same(self) -> None:
        assert self.real.log == self.model.log

    @invariant()
    def seats_are_those_of_the_grants(self) -> None:
        for phase in Phase:
            held = [0] * len(self.model.engines)
            for grant in self.real.grants.values():
                held[grant.engine] += phase in grant.held
            assert held == list(self.real.table.seats[phase])
        assert self.real.table.idle == (not self.real.grants)
        assert self.real.door.held == self.held

    @invariant()
    def no_limit_is_exceeded(self) -> None:
        table = self.real.table
        for phase in Phase:
            for engine, seats in enumerate(table.seats[phase]):
                # A limit lowered below what ran already is not exceeded further.
                assert seats <= max(table.limit[phase][engine], self.before[phase][engine])
        self.before = (list(table.prefill_seats), list(table.decode_seats))

    @invariant()
    def nobody_waits_who_could_use_a_free_seat(self) -> None:
        for phase in Phase:
            waiting = [ask for ask in self.real.waiting.values() if ask.phase is phase]
            assert len(waiting) == self.real.door.waiting(phase)
            for ask in waiting:
                usable = set(self.real.table.serving[phase]) - ask.avoid
                assert not any(self.real.table.has_room(engine) for engine in usable)

    def teardown(self) -> None:
        if not hasattr(self, "real"):
            return
        self.real.calm = True
        for name in list(self.real.waiting):
            self.real.leave(name)
        for name in list(self.real.running):
            self.real.end(name)
        for _ in range(self.held):
            self.real.door.let_go()
        assert self.real.table.idle
        assert [self.real.door.waiting(phase) for phase in Phase] == [0, 0]
        assert self.real.door.held == 0


DoorMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestEverythingAtTheDoorAtOnce = DoorMachine.TestCase


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_door_and_its_model_agree_over_long_busy_runs(seed: int) -> None:
    """The same machine, driven by plain chance: longer, and with fuller queues."""
    chance = Random(seed)
    machine = DoorMachine()
    engines = [(chance.choice(ROLES), chance.randint(1, 2), chance.randint(1, 2)) for _ in range(4)]
    machine.start(engines, ["e1", "e10", "e2", "b"], chance.randint(0, 30))
    for _ in range(200):
        which, kind = chance.randrange(100), chance.random()
        if kind < 0.4:
            avoid = frozenset(chance.sample(range(4), chance.choice([0, 0, 1, 1, 3])))
            plan = chance.choices(ACTIONS, k=chance.randint(0, 3))
            machine.ask([(chance.choice(list(Phase)), chance.randint(0, 9), avoid, plan)])
        elif kind < 0.6 and machine.model.running:
            machine.end(which)
        elif kind < 0.7 and machine.model.waiting:
            machine.leave(which)
        elif kind < 0.8 and machine.whole():
            machine.first_output_of_a_whole_request(which)
        elif kind > 0.9:
            limits = (chance.randint(1, 4), chance.randint(1, 4))
            machine.an_engine_changes(which, chance.random() < 0.8, limits)
        machine.both_worlds_say_the_same()
        machine.seats_are_those_of_the_grants()
        machine.no_limit_is_exceeded()
        machine.nobody_waits_who_could_use_a_free_seat()
    machine.teardown()
