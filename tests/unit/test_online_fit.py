"""A curve is learned from traffic, and says how sure it is."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.profiles.nonnegative import Triple
from narwhal.profiles.online import ENOUGH, OnlineFit


def terms(length: float) -> Triple:
    return (length * length, length, 1.0)


def seconds(length: float) -> float:
    return (1.5e-9 * length + 2.5e-5) * length + 0.008


def feed(fit: OnlineFit, random: Random, count: int, factor: float = 1.0, noise: float = 0.1) -> None:
    for _ in range(count):
        length = random.lognormvariate(6.9, 1.07)
        fit.learn(terms(length), seconds(length) * factor * random.gauss(1, noise))


@pytest.mark.parametrize("seed", range(4))
def test_a_few_hundred_noisy_samples_teach_the_curve(seed: int) -> None:
    fit = OnlineFit()
    feed(fit, Random(seed), 300)
    for length in (100, 1000, 4000):
        assert fit.predict(terms(length)) == pytest.approx(seconds(length), rel=0.07)
    assert fit.is_sure()
    assert fit.confidence > 0.8


@pytest.mark.parametrize("seed", range(4))
def test_the_old_is_forgotten(seed: int) -> None:
    fit, random = OnlineFit(), Random(seed)
    feed(fit, random, 500)
    feed(fit, random, 4000, factor=2.0)
    assert fit.predict(terms(1000)) == pytest.approx(2 * seconds(1000), rel=0.1)


def test_nothing_is_sure_before_there_is_enough() -> None:
    fit, random = OnlineFit(), Random(1)
    assert fit.confidence == 0
    for _ in range(ENOUGH - 1):
        feed(fit, random, 1)
        assert not fit.is_sure()
    feed(fit, random, 1)
    assert fit.is_sure()


def test_times_that_no_curve_explains_are_never_sure() -> None:
    fit, random = OnlineFit(), Random(1)
    for _ in range(500):
        length = random.lognormvariate(6.9, 1.07)
        fit.learn(terms(length), seconds(length) * random.lognormvariate(0, 3))
    assert not fit.is_sure()
    assert fit.confidence < 0.5


def test_a_reset_forgets_everything() -> None:
    fit = OnlineFit()
    feed(fit, Random(1), 100)
    fit.reset()
    assert (fit.predict(terms(1000)), fit.is_sure(), fit.samples) == (0, False, 0)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=60))
def test_whatever_is_seen_no_coefficient_is_negative_and_confidence_is_a_share(
    samples: list[tuple[float, float]],
) -> None:
    fit = OnlineFit()
    for length, seen in samples:
        fit.learn(terms(length), seen)
        assert all(0 <= coefficient < math.inf for coefficient in fit.coefficients)
        assert 0 <= fit.confidence <= 1
