"""When requests are due in an open loop: they come at their own pace, whatever becomes of earlier ones.

Each pattern is a sequence of gaps of mean 1, in units of requests. Summed up they say how many requests are
due, and the inverse of the cumulated rate turns that into seconds. So a ramp bends any pattern in the same
way, and the same seed gives the same requests at twice the rate in half the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum
from random import Random

# Of the gaps between bursty arrivals: their standard deviation, as a multiple of the mean.
BURSTY_CV = 3.0


class Pattern(StrEnum):
    """How the gaps between arrivals vary."""

    POISSON = "poisson"  # as of many users who know nothing of each other
    CONSTANT = "constant"
    BURSTY = "bursty"  # gamma-distributed: clusters, and silence between them


def arrivals(pattern: Pattern, rate: float, source: Random, *, ramp_s: float = 0.0) -> Iterator[float]:
    """Due times in seconds from 0, without end, at `rate` per second; it grows from 0 over `ramp_s`."""
    due = 0.0
    for gap in _gaps(pattern, source):
        due += gap
        yield _when(due, rate, ramp_s)


def _gaps(pattern: Pattern, source: Random) -> Iterator[float]:
    match pattern:
        case Pattern.CONSTANT:
            yield 0.0
            while True:
                yield 1.0
        case Pattern.POISSON:
            while True:
                yield source.expovariate(1.0)
        case Pattern.BURSTY:
            shape = 1 / BURSTY_CV**2
            while True:
                yield source.gammavariate(shape, 1 / shape)


def _when(due: float, rate: float, ramp_s: float) -> float:
    """The time by which `due` requests have come: the inverse of rate * t**2 / (2 * ramp), then a line."""
    in_ramp = rate * ramp_s / 2
    if due < in_ramp:
        return math.sqrt(2 * ramp_s * due / rate)
    return due / rate + ramp_s / 2
