"""Curves price work: never less for more, and past what was measured at least in proportion."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.profiles.curves import DecodeCurve, HandoffCurve, PrefillCurve

TERMS = st.floats(0, 10)
TOKENS = st.integers(0, 1_000_000)


def test_a_price_is_the_sum_of_its_terms_within_the_measured_range() -> None:
    assert PrefillCurve(1e-8, 2e-5, 0.01, 32, 8000).price(1000) == pytest.approx(0.01 + 0.02 + 0.01)
    assert HandoffCurve(1e-6, 0.005, 32, 8000).price(1000) == pytest.approx(0.006)
    assert DecodeCurve(0.01, 1e-4, 1e-7).price(10, 5000) == pytest.approx(0.01 + 0.001 + 0.0005)


@pytest.mark.parametrize("curve", [PrefillCurve(b=1.0, lo=32, hi=1000), HandoffCurve(b=1.0, lo=32, hi=1000)])
def test_a_length_outside_the_measured_range_is_told_apart(curve: PrefillCurve | HandoffCurve) -> None:
    assert [curve.covers(tokens) for tokens in (31, 32, 1000, 1001)] == [False, True, True, False]


def test_a_batch_larger_or_fuller_than_any_measured_is_told_apart() -> None:
    curve = DecodeCurve(0.01, running_hi=32, kv_hi=50_000)
    assert curve.covers(32, 50_000)
    assert not curve.covers(33, 100)
    assert not curve.covers(1, 50_001)


def test_a_curve_that_looked_flat_is_not_taken_to_be_flat_beyond_its_range() -> None:
    curve = PrefillCurve(c=2.0, lo=32, hi=1000)
    assert curve.price(1000) == 2.0
    assert curve.price(3000) == pytest.approx(6.0)


@given(TERMS, TERMS, TERMS, st.integers(1, 100_000), TOKENS, TOKENS)
def test_a_longer_prompt_never_costs_less(
    a: float, b: float, c: float, hi: int, one: int, other: int
) -> None:
    short, long = sorted((one, other))
    for curve in (PrefillCurve(a, b, c, 0, hi), HandoffCurve(b, c, 0, hi)):
        assert curve.price(short) <= curve.price(long) * (1 + 1e-12)


@given(TERMS, TERMS, TERMS, st.integers(1, 100_000), TOKENS)
def test_past_the_range_a_token_costs_no_less_than_at_its_edge(
    a: float, b: float, c: float, hi: int, further: int
) -> None:
    curve = PrefillCurve(a, b, c, 0, hi)
    assert curve.price(hi + further) * hi >= curve.price(hi) * (hi + further) * (1 - 1e-12)
