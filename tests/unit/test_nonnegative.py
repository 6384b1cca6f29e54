"""Least squares without negative terms: the answer satisfies the conditions that only the optimum does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.profiles.nonnegative import NormalEquations, Triple

VALUES = st.floats(0, 1000).map(lambda value: round(value, 3))
SAMPLES = st.lists(st.tuples(st.tuples(VALUES, VALUES, VALUES), VALUES), min_size=1, max_size=12)


def solve(samples: list[tuple[Triple, float]]) -> Triple:
    equations = NormalEquations()
    for x, y in samples:
        equations.add(x, y, 1.0)
    return equations.solve()


def squares(samples: list[tuple[Triple, float]], at: Triple) -> float:
    return sum((sum(c * t for c, t in zip(at, x, strict=True)) - y) ** 2 for x, y in samples)


@settings(deadline=None, max_examples=80)
@given(SAMPLES)
def test_no_step_that_keeps_terms_from_going_negative_fits_better(
    samples: list[tuple[Triple, float]],
) -> None:
    found = solve(samples)
    assert min(found) >= 0
    least = squares(samples, found)
    # The problem is convex: if no coefficient, or pair of them, can be moved for the better, nothing can.
    slack = 1e-6 * (least + sum(y * y for _, y in samples)) + 1e-9
    steps = [max(value, 1e-3) * size for value in found for size in (0.3, 0.01, -0.01, -0.3, -1.0)]
    for i in range(3):
        for step in steps:
            moved = list(found)
            moved[i] = max(0.0, moved[i] + step)
            assert squares(samples, (moved[0], moved[1], moved[2])) >= least - slack


@settings(deadline=None, max_examples=80)
@given(SAMPLES)
def test_the_gradient_is_zero_where_a_term_is_used_and_against_it_where_not(
    samples: list[tuple[Triple, float]],
) -> None:
    found = solve(samples)
    for i in range(3):
        norm = sum(x[i] ** 2 for x, _ in samples) ** 0.5
        size = norm * sum(y * y for _, y in samples) ** 0.5
        left = [sum(c * t for c, t in zip(found, x, strict=True)) - y for x, y in samples]
        gradient = sum(x[i] * off for (x, _), off in zip(samples, left, strict=True))
        assert gradient >= -1e-4 * size - 1e-9
        if found[i] > 0:
            assert gradient <= 1e-4 * size + 1e-9


def test_exact_data_give_their_coefficients_over_many_orders_of_magnitude() -> None:
    truth = (1.5e-9, 2.5e-5, 0.008)
    samples = []
    for length in (32, 64, 128, 512, 2048, 8192, 32768):
        x = (float(length) ** 2, float(length), 1.0)
        samples.append((x, sum(c * t for c, t in zip(truth, x, strict=True))))
    equations = NormalEquations()
    for x, y in samples:
        equations.add(x, y, 1 / y**2)
    assert equations.solve() == pytest.approx(truth, rel=1e-6)


def test_what_would_be_negative_is_zero_and_the_others_make_up_for_it() -> None:
    # y = 10 - x would fit best; without a slope the mean does.
    samples = [((0.0, float(x), 1.0), 10.0 - x) for x in range(1, 6)]
    assert solve(samples) == pytest.approx((0.0, 0.0, 7.0))


def test_terms_that_cannot_be_told_apart_still_predict() -> None:
    samples = [((4.0, 2.0, 1.0), 8.0)] * 3
    found = solve(samples)
    assert sum(c * t for c, t in zip(found, (4.0, 2.0, 1.0), strict=True)) == pytest.approx(8.0)


def test_without_samples_everything_is_zero() -> None:
    assert NormalEquations().solve() == (0.0, 0.0, 0.0)
