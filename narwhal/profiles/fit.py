"""Fitting measured points to curves: least squares by relative error, with no term below zero.

A point at 20 ms and one at 2 s count the same, since it is shares that a price is off by. The error given
with a curve is leave-one-out: each length (or batch) is predicted by a fit to all the others, and the mean
of how far off that is, as a share, is the error. So it is about what a price for something not measured can
be off by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from narwhal.profiles.curves import DecodeCurve, HandoffCurve, PrefillCurve
from narwhal.profiles.nonnegative import NormalEquations, Triple

_LEAST = 1e-9  # seconds: no measurement is shorter


class TimedLength(NamedTuple):
    """One measurement of something that goes by a prompt's length."""

    tokens: int
    seconds: float


class TimedBatch(NamedTuple):
    """One measurement of a token interval: means over the time it was measured in."""

    running: float
    kv_tokens: float
    seconds: float


class FitError(ValueError):
    """The points don't make a curve; the message says why."""


def fit_prefill(points: Sequence[TimedLength]) -> PrefillCurve:
    """The prefill curve through points of at least three lengths. Raises FitError."""
    _need_lengths(points, 3, "prefill")
    samples = [((point.tokens**2, point.tokens, 1.0), point.seconds) for point in points]
    (a, b, c), error = _fit(samples)
    lengths = [point.tokens for point in points]
    return PrefillCurve(a, b, c, min(lengths), max(lengths), error)


def fit_handoff(points: Sequence[TimedLength]) -> HandoffCurve:
    """The handoff curve through points of at least two lengths. Raises FitError."""
    _need_lengths(points, 2, "handoff")
    (_, b, c), error = _fit([((0.0, point.tokens, 1.0), point.seconds) for point in points])
    lengths = [point.tokens for point in points]
    return HandoffCurve(b, c, min(lengths), max(lengths), error)


def fit_decode(points: Sequence[TimedBatch]) -> DecodeCurve:
    """The decode curve through points of at least three batches. Raises FitError."""
    batches = {(point.running, point.kv_tokens) for point in points}
    if len(batches) < 3:
        raise FitError(f"a decode curve needs points of at least 3 batches; there are {len(batches)}")
    (p, q, c), error = _fit([((point.running, point.kv_tokens, 1.0), point.seconds) for point in points])
    most_running = max(point.running for point in points)
    most_kv_tokens = max(point.kv_tokens for point in points)
    return DecodeCurve(c, p, q, round(most_running), round(most_kv_tokens), error)


def _need_lengths(points: Sequence[TimedLength], least: int, name: str) -> None:
    lengths = {point.tokens for point in points}
    if len(lengths) < least:
        raise FitError(f"a {name} curve needs points of at least {least} lengths; there are {len(lengths)}")


def _fit(samples: Sequence[tuple[Triple, float]]) -> tuple[Triple, float]:
    """The coefficients, and the leave-one-out error."""
    coefficients = _solve(samples)
    errors = []
    for left_out in {x for x, _ in samples}:
        predicted = _value(_solve([sample for sample in samples if sample[0] != left_out]), left_out)
        errors += [abs(predicted - seconds) / max(seconds, _LEAST) for x, seconds in samples if x == left_out]
    return coefficients, sum(errors) / len(errors)


def _solve(samples: Sequence[tuple[Triple, float]]) -> Triple:
    equations = NormalEquations()
    for x, seconds in samples:
        equations.add(x, seconds, 1 / max(seconds, _LEAST) ** 2)
    return equations.solve()


def _value(coefficients: Triple, x: Triple) -> float:
    return sum(coefficient * term for coefficient, term in zip(coefficients, x, strict=True))
