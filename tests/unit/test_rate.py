"""A rate is the mean over the last minute, and what is older is forgotten."""

from __future__ import annotations

import pytest

from narwhal.accounting.rate import WINDOW_S, Rate


def test_what_is_older_than_the_window_does_not_count() -> None:
    rate = Rate()
    for moment in range(100, 130):
        for _ in range(4):
            rate.count(moment + 0.5)
    assert rate.per_second(129.9) == pytest.approx(4 * 30 / WINDOW_S)
    assert rate.per_second(174.0) == pytest.approx(4 * 15 / WINDOW_S)
    assert rate.per_second(500.0) == 0
    rate.count(505.0)
    assert rate.per_second(505.0) == pytest.approx(1 / WINDOW_S)


def test_a_copy_stays_as_it_is() -> None:
    rate = Rate()
    rate.count(1.0)
    copied = rate.copy()
    rate.count(1.0)
    assert copied.per_second(1.0) == pytest.approx(1 / WINDOW_S)
