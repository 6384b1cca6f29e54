"""A curve that is off by a factor is right within a few dozen pieces of work."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.profiles.correction import LEAST, MOST, PRIOR_SPREAD, Correction


def work(random: Random) -> float:
    """What a curve says of one of many prompts: some are a hundred times as long as others."""
    length = random.lognormvariate(6.9, 1.07)
    return (1.5e-9 * length + 2.5e-5) * length + 0.008


@pytest.mark.parametrize("factor", [0.33, 0.67, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_three_dozen_pieces_of_work_put_a_factor_right(factor: float, seed: int) -> None:
    random, correction = Random(seed), Correction()
    for _ in range(36):
        predicted = work(random)
        correction.learn(predicted, predicted * factor * random.gauss(1, 0.1))
    assert correction.factor == pytest.approx(factor, rel=0.15)


@pytest.mark.parametrize("seed", range(5))
def test_a_change_later_on_is_followed_as_quickly(seed: int) -> None:
    random, correction = Random(seed), Correction()
    for factor in (1.0,) * 1000 + (2.0,) * 36:
        predicted = work(random)
        correction.learn(predicted, predicted * factor * random.gauss(1, 0.1))
    assert correction.factor == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_noise_alone_hardly_moves_the_factor_and_is_told_as_spread(seed: int) -> None:
    random, correction = Random(seed), Correction()
    for _ in range(1000):
        predicted = work(random)
        correction.learn(predicted, predicted * random.gauss(1, 0.2))
    assert correction.factor == pytest.approx(1.0, abs=0.07)
    assert correction.spread == pytest.approx(0.2, rel=0.3)


def test_prompts_run_as_one_come_out_as_the_sum_of_their_times() -> None:
    correction = Correction()
    for _ in range(100):
        correction.learn(0.1, 0.3)  # all the time of three
        correction.learn(0.1, 0.0)
        correction.learn(0.1, 0.0)
    assert correction.factor == pytest.approx(1.0, abs=0.2)


def test_one_absurd_time_is_no_news() -> None:
    correction = Correction()
    for _ in range(50):
        correction.learn(0.1, 0.1)
    correction.learn(0.1, 1000.0)
    assert correction.factor == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("memory", [16.0, 64.0])
def test_a_stall_is_soon_over_and_makes_no_large_errors_look_usual(memory: float) -> None:
    random, correction = Random(1), Correction(memory)
    for seen in (1.0,) * 200 + (8.0,) * 6 + (1.0,) * 24:
        correction.learn(1.0, seen * random.gauss(1, 0.05))
    assert correction.factor == pytest.approx(1.0, rel=0.1)
    assert correction.spread < 0.3


def test_work_that_was_priced_at_nothing_teaches_nothing() -> None:
    correction = Correction()
    for predicted, seen in ((0.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.nan)):
        correction.learn(predicted, seen)
    assert (correction.factor, correction.samples) == (1.0, 0)


def test_a_reset_trusts_the_curve_again() -> None:
    correction = Correction()
    for _ in range(50):
        correction.learn(0.1, 0.5)
    correction.reset()
    assert (correction.factor, correction.spread, correction.samples) == (1.0, PRIOR_SPREAD, 0)


SECONDS = st.floats(0, 1e9)


@given(st.lists(st.tuples(SECONDS, SECONDS), max_size=60))
def test_whatever_is_seen_the_factor_stays_within_bounds(samples: list[tuple[float, float]]) -> None:
    correction = Correction()
    for predicted, seen in samples:
        correction.learn(predicted, seen)
        assert LEAST <= correction.factor <= MOST
        assert 0 <= correction.spread < math.inf
