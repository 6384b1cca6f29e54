"""How engines leave the fleet and come back: rule by rule, then whatever happens in whatever order."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from narwhal.fleet.health import Evidence, Remedy
from narwhal.fleet.lifecycle import DRAINS, Change, Lifecycle, State
from narwhal.fleet.table import FleetTable, Phase, RoleCode
from tests.unit.fleets import Engine, fleet

PAIRS = (
    Engine("p0", "prefill", 4),
    Engine("p1", "prefill", 4),
    Engine("d0", "decode", 4, 8),
    Engine("d1", "decode", 4, 8),
)
P0, P1, D0, D1 = range(4)
SERVING, PROBING, EJECTED, READMITTING = State.SERVING, State.PROBING, State.EJECTED, State.READMITTING
DRAINING, DRAINED = State.DRAINING, State.DRAINED


@dataclass
class Rules:
    eject_after: int = 3
    liveness_misses: int = 3
    readmit_ramp_s: float = 10.0


class Fleet:
    """A lifecycle over a table, and what it told."""

    def __init__(self, *engines: Engine) -> None:
        self.changes: list[Change] = []
        self.table: FleetTable = fleet(*(engines or PAIRS))
        self.held = 0
        self.lives = Lifecycle(self.table, Rules(), 0.0, self.changes.append, lambda: self.held)

    def fail(self, engine: int, evidence: Evidence, times: int = 3, now: float = 1.0) -> None:
        for _ in range(times):
            refused = evidence is Evidence.CONNECTION
            self.lives.failed(engine, evidence, "it broke", now, refused=refused)

    def state(self, engine: int) -> State:
        return self.lives.lives[engine].state

    def able(self) -> list[int]:
        return [engine for engine in range(len(self.table)) if self.table.available[engine]]


@pytest.mark.parametrize(
    ("evidence", "state", "remedy"),
    [
        (Evidence.CONNECTION, EJECTED, None),
        (Evidence.TIMEOUT, PROBING, Remedy.PROBE_HEALTH),
        (Evidence.OVERLOAD, PROBING, Remedy.PROBE_HEALTH),
        (Evidence.STATUS, PROBING, Remedy.PROBE_INFERENCE),
        (Evidence.HANDOFF, PROBING, Remedy.PROBE_INFERENCE),
        (Evidence.STREAM, PROBING, Remedy.PROBE_INFERENCE),
        (Evidence.TOKEN_IDS, PROBING, Remedy.PROBE_INFERENCE),
    ],
)
def test_failures_of_one_class_in_a_row_lead_to_its_remedy_and_new_requests_go_elsewhere(
    evidence: Evidence, state: State, remedy: Remedy | None
) -> None:
    one = Fleet()
    one.fail(P0, evidence, 2)
    assert one.state(P0) is SERVING
    one.fail(P0, evidence, 1)
    assert one.state(P0) is state
    assert one.lives.lives[P0].remedy is remedy
    assert one.able() == [P1, D0, D1]
    assert [(change.engine, change.before, change.after) for change in one.changes] == [(P0, SERVING, state)]
    assert "3" in one.changes[0].why
    assert "it broke" in one.changes[0].why


def test_a_success_clears_its_own_class_only() -> None:
    one = Fleet()
    one.fail(P0, Evidence.TIMEOUT, 2)
    one.fail(P0, Evidence.STREAM, 2)
    one.lives.succeeded(P0, [Evidence.TIMEOUT])
    one.fail(P0, Evidence.TIMEOUT, 2)
    assert one.state(P0) is SERVING
    assert one.lives.tainted == {P0}
    one.fail(P0, Evidence.STREAM, 1)
    assert one.state(P0) is PROBING
    assert one.lives.lives[P0].doubt is Evidence.STREAM


def test_an_engine_that_became_far_slower_is_out_until_it_proves_itself_unless_it_is_the_last() -> None:
    one = Fleet()
    one.lives.slowed(P0, "it drifts", 1.0)
    assert (one.state(P0), one.able()) == (EJECTED, [P1, D0, D1])
    one.lives.slowed(P0, "it drifts", 2.0)
    one.lives.slowed(P1, "it drifts", 3.0)
    assert one.able() == [P1, D0, D1]
    one.lives.passed(P0, 4.0)
    assert one.state(P0) is SERVING
    assert [(change.engine, change.after) for change in one.changes[:2]] == [(P0, EJECTED), (P1, EJECTED)]


def test_failures_of_different_classes_do_not_add_up() -> None:
    one = Fleet()
    for evidence in Evidence:
        one.fail(P0, evidence, 2)
    assert one.state(P0) is SERVING


def test_an_engine_that_says_it_is_well_and_is_late_again_must_compute_something() -> None:
    one = Fleet()
    one.fail(D0, Evidence.TIMEOUT)
    one.lives.passed(D0, 2.0)
    assert one.state(D0) is SERVING
    one.fail(D0, Evidence.TIMEOUT)
    assert one.lives.lives[D0].remedy is Remedy.PROBE_INFERENCE
    one.lives.passed(D0, 3.0)
    one.lives.succeeded(D0, [Evidence.TIMEOUT])
    one.fail(D0, Evidence.TIMEOUT)
    assert one.lives.lives[D0].remedy is Remedy.PROBE_HEALTH


def test_an_engine_that_fails_its_probe_is_out_until_it_proves_itself_and_comes_back_little_by_little() -> (
    None
):
    one = Fleet()
    one.fail(D0, Evidence.TOKEN_IDS)
    one.lives.flunked(D0, "no token IDs", 2.0)
    assert one.state(D0) is EJECTED
    assert one.lives.ejections[D0] == 1
    one.lives.flunked(D0, "still none", 3.0)
    assert one.lives.lives[D0].why == "still none"
    one.lives.passed(D0, 10.0)
    assert one.state(D0) is READMITTING
    assert one.table.limit[Phase.DECODE][D0] == 1
    assert one.table.has_room(D0)
    one.lives.tick(15.0)
    assert one.table.limit[Phase.DECODE][D0] == 4
    one.lives.tick(20.0)
    assert one.state(D0) is SERVING
    assert one.table.limit[Phase.DECODE][D0] == 8
    assert one.lives.tainted == set()


def test_an_engine_that_is_alone_in_its_role_comes_back_whole() -> None:
    one = Fleet(PAIRS[0], PAIRS[2])
    one.fail(1, Evidence.CONNECTION)
    one.lives.passed(1, 5.0)
    assert one.state(1) is SERVING
    assert one.table.limit[Phase.DECODE][1] == 8


def test_liveness_probes_missed_in_a_row_eject() -> None:
    one = Fleet()
    for _ in range(2):
        one.lives.missed(P0, "silence", 1.0, refused=False)
    one.lives.alive(P0, 1.5)
    for _ in range(2):
        one.lives.missed(P0, "silence", 2.0, refused=False)
    assert one.state(P0) is SERVING
    one.lives.missed(P0, "silence", 3.0, refused=False)
    assert one.state(P0) is EJECTED
    assert "silence" in one.changes[-1].why


def test_the_last_of_its_role_stays_in_marked_unless_it_can_not_be_connected_to() -> None:
    one = Fleet()
    one.fail(D0, Evidence.STATUS)
    one.fail(D1, Evidence.STATUS, now=2.0)
    assert (one.state(D0), one.state(D1)) == (PROBING, PROBING)
    assert one.able() == [P0, P1, D1]
    assert one.lives.lives[D1].kept
    one.lives.flunked(D1, "no", 3.0)
    assert one.able() == [P0, P1, D1]
    # As soon as there is another, it goes.
    one.lives.passed(D0, 4.0)
    assert one.able() == [P0, P1, D0]
    assert not one.lives.lives[D1].kept
    one.fail(D0, Evidence.CONNECTION, now=5.0)
    assert one.able() == [P0, P1, D1]  # doubtful, but it can be reached
    one.fail(D1, Evidence.CONNECTION, now=6.0)
    assert one.able() == [P0, P1]
    # It is reached again, by a probe: better than none, even before it has proved itself.
    one.lives.alive(D1, 7.0)
    assert one.able() == [P0, P1, D1]


def test_the_last_of_its_role_stays_in_though_it_resets_every_connection() -> None:
    one = Fleet(PAIRS[0], PAIRS[2])
    for _ in range(3):
        one.lives.failed(1, Evidence.CONNECTION, "it was reset", 1.0, refused=False)
    assert one.state(1) is EJECTED
    assert one.able() == [0, 1]
    assert one.lives.lives[1].generation == 0
    one.fail(1, Evidence.CONNECTION, 1)
    assert one.able() == [0]


def test_engines_of_the_other_role_run_whole_requests_while_a_role_is_empty() -> None:
    one = Fleet()
    one.fail(D0, Evidence.CONNECTION)
    one.fail(D1, Evidence.CONNECTION)
    assert [one.table.role[engine] for engine in (P0, P1)] == [RoleCode.BOTH, RoleCode.BOTH]
    assert one.table.serving == ((P0, P1), (D0, D1))
    assert one.table.needs(P0) == (Phase.PREFILL, Phase.DECODE)
    one.lives.passed(D0, 9.0)
    assert [one.table.role[engine] for engine in (P0, P1)] == [RoleCode.PREFILL, RoleCode.PREFILL]

    one = Fleet()
    one.fail(P0, Evidence.CONNECTION)
    one.fail(P1, Evidence.CONNECTION)
    assert one.table.serving == ((D0, D1, P0, P1), ())


def test_another_process_is_told_from_the_one_before_by_its_start() -> None:
    one = Fleet()
    assert not one.lives.started(P0, 100.0)
    assert not one.lives.started(P0, 100.0)
    assert one.lives.lives[P0].generation == 0
    assert one.lives.started(P0, 160.0)
    assert one.lives.lives[P0].generation == 1
    assert one.lives.restarts == [1, 0, 0, 0]


def test_what_an_old_process_did_does_not_speak_against_a_new_one() -> None:
    one = Fleet()
    one.lives.started(P0, 100.0)
    one.fail(P0, Evidence.STREAM, 2)
    one.lives.started(P0, 160.0)
    one.fail(P0, Evidence.STREAM, 2)
    assert one.state(P0) is SERVING
    assert one.lives.lives[P0].health.counts == {Evidence.STREAM: 2}


def test_what_an_engine_held_is_gone_when_it_can_not_be_connected_to() -> None:
    one = Fleet()
    one.fail(P0, Evidence.CONNECTION)
    assert one.lives.lives[P0].generation == 1
    one.fail(P1, Evidence.STATUS)
    one.lives.flunked(P1, "no", 2.0)
    assert one.lives.lives[P1].generation == 0


def test_a_draining_engine_gets_nothing_new_and_is_safe_to_stop_when_nothing_runs_or_at_the_deadline() -> (
    None
):
    one = Fleet()
    one.table.take(P0, Phase.PREFILL)
    one.table.take(P1, Phase.PREFILL)
    one.lives.drain([P0, P1, D0], 60.0, 1.0, "an upgrade")
    assert (one.state(P0), one.state(P1), one.state(D0)) == (DRAINING, DRAINING, DRAINED)
    assert one.able() == [D1]
    one.table.give(P0, Phase.PREFILL)
    one.lives.lives[P0].handoffs = 1  # a decode engine is still to fetch its KV cache
    one.lives.tick(2.0)
    assert one.state(P0) is DRAINING
    one.lives.lives[P0].handoffs = 0
    one.lives.tick(3.0)
    assert (one.state(P0), one.state(P1)) == (DRAINED, DRAINING)
    one.lives.tick(60.0)
    assert one.state(P1) is DRAINED
    assert "1 legs running" in one.changes[-1].why


def test_a_drain_called_off_returns_the_engine_at_once_and_a_completed_one_once_it_proves_itself() -> None:
    one = Fleet()
    one.table.take(P0, Phase.PREFILL)
    one.lives.drain([P0, P1], None, 1.0, "an upgrade")
    one.lives.readmit([P0, P1], 2.0)
    assert (one.state(P0), one.state(P1)) == (SERVING, EJECTED)
    assert one.lives.ejections[P1] == 0
    assert not one.changes[-1].is_fault
    one.lives.passed(P1, 3.0)
    assert one.state(P1) is READMITTING


def test_no_evidence_moves_a_draining_engine() -> None:
    one = Fleet()
    one.table.take(P0, Phase.PREFILL)
    one.lives.drain([P0], None, 1.0, "an upgrade")
    for evidence in Evidence:
        one.fail(P0, evidence, 5)
    for _ in range(5):
        one.lives.missed(P0, "silence", 2.0, refused=True)
    assert one.state(P0) is DRAINING


def test_the_whole_fleet_is_in_maintenance_when_every_engine_drains() -> None:
    one = Fleet()
    one.lives.drain([P0, P1, D0], None, 1.0, "an upgrade")
    assert not one.lives.all_drained
    one.lives.drain([D1], None, 1.0, "an upgrade")
    assert one.lives.all_drained
    one.lives.readmit([D1], 2.0)
    assert not one.lives.all_drained


def test_requests_that_are_held_may_use_a_fleet_that_drains_as_a_whole_until_there_are_none() -> None:
    one = Fleet()
    one.held = 2
    one.lives.drain(range(4), None, 1.0, "an upgrade")
    assert [one.state(engine) for engine in range(4)] == [DRAINING] * 4
    assert one.able() == [P0, P1, D0, D1]
    assert [one.table.role[engine] for engine in range(4)] == [0, 0, 1, 1]
    one.held = 0
    one.lives.tick(2.0)
    assert [one.state(engine) for engine in range(4)] == [DRAINED] * 4
    assert one.able() == []


ENGINES = st.integers(0, 4)


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens: the table follows from the states."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.one = Fleet(*PAIRS, Engine("b0", "both", 4, 8))
        self.seats: list[tuple[int, Phase]] = []

    @rule(engine=ENGINES, evidence=st.sampled_from(Evidence), times=st.integers(1, 4))
    def fail(self, engine: int, evidence: Evidence, times: int) -> None:
        self.one.fail(engine, evidence, times, self.now)

    @rule(engine=ENGINES, classes=st.sets(st.sampled_from(Evidence)))
    def succeed(self, engine: int, classes: set[Evidence]) -> None:
        self.one.lives.succeeded(engine, classes)

    @rule(engine=ENGINES, refused=st.booleans())
    def miss(self, engine: int, refused: bool) -> None:
        self.one.lives.missed(engine, "silence", self.now, refused=refused)

    @rule(engine=ENGINES)
    def answer(self, engine: int) -> None:
        self.one.lives.alive(engine, self.now)

    @rule(engine=ENGINES)
    def passes(self, engine: int) -> None:
        self.one.lives.passed(engine, self.now)

    @rule(engine=ENGINES, refused=st.booleans())
    def flunk(self, engine: int, refused: bool) -> None:
        self.one.lives.flunked(engine, "no", self.now, refused=refused)

    @rule(engines=st.sets(ENGINES, min_size=1), deadline=st.none() | st.floats(0, 20))
    def drain(self, engines: set[int], deadline: float | None) -> None:
        until = None if deadline is None else self.now + deadline
        self.one.lives.drain(engines, until, self.now, "an upgrade")

    @rule(engines=st.sets(ENGINES, min_size=1))
    def readmit(self, engines: set[int]) -> None:
        self.one.lives.readmit(engines, self.now)

    @rule(engine=ENGINES)
    def place(self, engine: int) -> None:
        table = self.one.table
        if table.has_room(engine):
            for phase in table.needs(engine):
                table.take(engine, phase)
                self.seats.append((engine, phase))

    @rule()
    def end(self) -> None:
        if self.seats:
            self.one.table.give(*self.seats.pop())

    @rule(seconds=st.floats(0, 12))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.one.lives.tick(self.now)

    @invariant()
    def the_table_follows(self) -> None:
        table, lives = self.one.table, self.one.lives.lives
        for role in RoleCode:
            mine = [engine for engine in range(5) if lives[engine].role is role]
            serving = [engine for engine in mine if lives[engine].state in (SERVING, READMITTING)]
            able = [engine for engine in mine if table.available[engine]]
            if serving or self.one.lives.all_drained:
                assert able == serving + [
                    e for e in mine if self.one.lives.all_drained and lives[e].state is DRAINING
                ]
            else:
                # The role has at most one doubtful engine, and one if any can be reached.
                reached = [e for e in mine if lives[e].state in (PROBING, EJECTED) and not lives[e].refused]
                assert len(able) == min(1, len(reached))
                assert set(able) <= set(reached)
        for engine, life in enumerate(lives):
            assert not (table.available[engine] and life.state in DRAINS) or self.one.lives.all_drained
            assert (life.state is PROBING) == (life.remedy is not None)
            for phase in Phase:
                limit = table.limit[phase][engine]
                assert 1 <= limit <= life.limits[phase]
                assert limit == life.limits[phase] or life.state is READMITTING
        halves = [any(table.available[e] for e in pair) for pair in ((P0, P1), (D0, D1))]
        assert (table.role[P0] == RoleCode.BOTH) == (halves[0] and not halves[1])
        assert (table.role[D0] == RoleCode.BOTH) == (halves[1] and not halves[0])
        assert self.one.lives.tainted == {e for e, life in enumerate(lives) if life.health.counts}

    @invariant()
    def every_change_was_told(self) -> None:
        states = [SERVING] * 5
        for change in self.one.changes:
            assert states[change.engine] is change.before
            assert change.before is not change.after
            states[change.engine] = change.after
        assert states == [life.state for life in self.one.lives.lives]


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
