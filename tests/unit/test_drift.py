"""An engine that became slower than its peers is found out; a fleet that is slow all over is not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.profiles.drift import SURCHARGE, SUSTAINED, WINDOW_S, Drift, State

Pace = Callable[[int], float]


class Fleet:
    """Engines whose work takes so many times what was predicted."""

    def __init__(self, count: int, seed: int = 1) -> None:
        self.drift = Drift(count)
        self.count = count
        self.now = 100.0
        self.random = Random(seed)
        self.drift.tick(self.now)

    def run(self, windows: int, pace: Pace, samples: int = 20) -> list[int]:
        """Let some windows go by; the engines whose state changed."""
        changed = []
        for _ in range(windows):
            for engine in range(self.count):
                for _ in range(samples):
                    predicted = self.random.uniform(0.05, 0.5)
                    self.drift.observe(
                        engine, predicted, predicted * pace(engine) * self.random.gauss(1, 0.1)
                    )
            self.now += WINDOW_S
            changed += self.drift.tick(self.now)
        return changed

    def state(self, engine: int) -> State:
        return self.drift.state(engine)

    def states(self) -> list[State]:
        return [self.drift.state(engine) for engine in range(self.count)]


def slow(engine: int, factor: float) -> Pace:
    return lambda other: factor if other == engine else 1.0


def test_an_engine_that_becomes_slower_goes_on_probation_with_a_price() -> None:
    fleet = Fleet(4)
    fleet.run(6, slow(2, 1.0))
    assert fleet.run(SUSTAINED, slow(2, 1.6)) == [2]
    assert fleet.states() == [State.WELL, State.WELL, State.PROBATION, State.WELL]
    assert [fleet.drift.surcharge(engine) for engine in range(4)] == [0, 0, SURCHARGE, 0]


def test_one_bad_window_is_not_enough() -> None:
    fleet = Fleet(4)
    fleet.run(6, slow(2, 1.0))
    for _ in range(5):
        fleet.run(SUSTAINED - 1, slow(2, 1.6))
        fleet.run(1, slow(2, 1.0))
    assert fleet.states() == [State.WELL] * 4


def test_an_engine_on_probation_that_is_twice_as_slow_is_to_be_taken_out() -> None:
    fleet = Fleet(4)
    fleet.run(6, slow(0, 1.0))
    assert fleet.run(2 * SUSTAINED, slow(0, 3.0)) == [0, 0]
    assert fleet.state(0) is State.TAKE_OUT


def test_an_engine_on_probation_that_is_a_bit_slow_stays() -> None:
    fleet = Fleet(4)
    fleet.run(6, slow(0, 1.0))
    fleet.run(50, slow(0, 1.6))
    assert fleet.state(0) is State.PROBATION


@pytest.mark.parametrize("factor", [1.6, 3.0])
def test_recovery_brings_it_back(factor: float) -> None:
    fleet = Fleet(4)
    fleet.run(6, slow(3, 1.0))
    fleet.run(2 * SUSTAINED, slow(3, factor))
    assert fleet.state(3) is not State.WELL
    fleet.run(SUSTAINED, slow(3, 1.0))
    assert fleet.state(3) is State.WELL


def test_an_engine_that_comes_back_is_on_probation_until_it_has_shown_itself_well() -> None:
    fleet = Fleet(4)
    fleet.run(6, slow(3, 1.0))
    fleet.run(2 * SUSTAINED, slow(3, 3.0))
    fleet.drift.returned(3)
    assert fleet.state(3) is State.PROBATION
    fleet.run(SUSTAINED, slow(3, 1.0))
    assert fleet.state(3) is State.WELL


def test_a_surge_that_slows_the_whole_fleet_is_no_drift() -> None:
    fleet = Fleet(4)
    fleet.run(6, lambda _: 1.0)
    assert fleet.run(20, lambda _: 4.0) == []
    assert fleet.run(20, lambda _: 1.0) == []


def test_an_engine_that_always_was_slower_than_its_profile_is_no_drift() -> None:
    fleet = Fleet(4)
    assert fleet.run(30, slow(1, 3.0)) == []


def test_an_engine_alone_is_compared_with_nobody() -> None:
    fleet = Fleet(1)
    fleet.run(6, slow(0, 1.0))
    assert fleet.run(20, slow(0, 5.0)) == []
    assert fleet.drift.score(0) is None


def test_of_two_engines_the_slower_one_is_found() -> None:
    fleet = Fleet(2)
    fleet.run(6, slow(0, 1.0))
    fleet.run(SUSTAINED, slow(0, 2.0))
    assert fleet.states() == [State.PROBATION, State.WELL]


def test_a_window_goes_on_until_it_has_enough() -> None:
    fleet = Fleet(4)
    fleet.run(20, slow(0, 1.0), samples=3)
    fleet.run(SUSTAINED, slow(0, 1.6), samples=3)
    assert fleet.state(0) is State.WELL
    fleet.run(SUSTAINED, slow(0, 1.6), samples=3)
    assert fleet.state(0) is State.PROBATION


def test_a_new_process_starts_over() -> None:
    fleet = Fleet(4)
    fleet.run(6, slow(0, 1.0))
    fleet.run(SUSTAINED, slow(0, 2.0))
    fleet.drift.start_over(0)
    assert fleet.state(0) is State.WELL
    assert fleet.run(10, slow(0, 2.0)) == []


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.floats(0.1, 10), min_size=12, max_size=12),
    st.lists(st.floats(0.2, 5), min_size=4, max_size=4),
)
def test_what_happens_to_all_alike_changes_nobody(surges: list[float], own: list[float]) -> None:
    fleet = Fleet(4)

    def pace(surge: float, engine: int) -> float:
        return surge * own[engine]

    for surge in surges:
        assert fleet.run(1, partial(pace, surge), samples=60) == []
