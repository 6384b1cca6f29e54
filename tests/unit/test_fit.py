"""Measured points become curves, with an error that says what a price in between can be off by."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.profiles.curves import DecodeCurve, PrefillCurve
from narwhal.profiles.fit import FitError, TimedBatch, TimedLength, fit_decode, fit_handoff, fit_prefill

LENGTHS = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]


@settings(deadline=None, max_examples=50)
@given(st.floats(0, 1e-7), st.floats(1e-6, 1e-3), st.floats(0, 0.1))
def test_points_on_a_curve_give_that_curve_and_no_error(a: float, b: float, c: float) -> None:
    truth = PrefillCurve(a, b, c)
    fitted = fit_prefill([TimedLength(length, truth.at(length)) for length in LENGTHS])
    for length in (32, 100, 1000, 8192):
        assert fitted.price(length) == pytest.approx(truth.price(length), rel=1e-5)
    assert (fitted.lo, fitted.hi) == (32, 8192)
    assert fitted.error == pytest.approx(0, abs=1e-4)


def test_short_lengths_fit_as_well_as_long_ones() -> None:
    truth = PrefillCurve(1e-8, 2e-5, 0.01)
    random = Random(1)
    points = [TimedLength(length, truth.at(length) * random.gauss(1, 0.03)) for length in LENGTHS * 3]
    fitted = fit_prefill(points)
    assert fitted.price(32) == pytest.approx(truth.price(32), rel=0.05)
    assert fitted.price(8192) == pytest.approx(truth.price(8192), rel=0.05)
    assert fitted.error is not None
    assert 0.01 < fitted.error < 0.06


def test_the_error_is_that_of_predicting_what_was_left_out() -> None:
    # Three terms go through three points, whatever they are; two of the points say little of the third.
    truth = PrefillCurve(1e-7, 0.0, 0.05)
    fitted = fit_prefill([TimedLength(length, truth.at(length)) for length in (500, 1000, 4000)])
    assert fitted.price(1000) == pytest.approx(truth.price(1000))
    assert fitted.error is not None
    assert fitted.error > 0.1


def test_a_decode_curve_tells_sequences_from_tokens_held() -> None:
    truth = DecodeCurve(0.008, 4e-5, 1e-8)
    batches = [(n, n * kv) for n in (1, 2, 4, 8, 16, 32, 64) for kv in (64, 512, 4096)]
    fitted = fit_decode([TimedBatch(n, kv, truth.price(n, kv)) for n, kv in batches])
    assert (fitted.c, fitted.p, fitted.q) == pytest.approx((0.008, 4e-5, 1e-8), rel=1e-4)
    assert (fitted.running_hi, fitted.kv_hi) == (64, 64 * 4096)


def test_a_handoff_curve_has_no_square_term() -> None:
    fitted = fit_handoff([TimedLength(length, 0.01 + 1e-6 * length) for length in LENGTHS])
    assert (fitted.b, fitted.c) == pytest.approx((1e-6, 0.01), rel=1e-4)


def test_too_few_points_are_refused_with_their_number() -> None:
    with pytest.raises(FitError, match="prefill curve needs points of at least 3 lengths; there are 2"):
        fit_prefill([TimedLength(10, 1.0), TimedLength(20, 1.0), TimedLength(20, 1.1)])
    with pytest.raises(FitError, match="handoff curve needs points of at least 2 lengths; there are 0"):
        fit_handoff([])
    with pytest.raises(FitError, match="decode curve needs points of at least 3 batches; there are 1"):
        fit_decode([TimedBatch(1, 100, 0.01)])
