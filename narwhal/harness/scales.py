"""Axes of plots: from values to places, and the values that get a label."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """One axis: values from `low` to `high`, which lie apart, on places from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value; values beyond the axis lie at its end."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def back(self, share: float) -> float:
        """The value so far along the axis, from 0 to 1."""
        if self.log:
            return self.low * math.pow(self.high / self.low, share)
        return self.low + share * (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round values on the axis, some four to eight."""
        if not self.log:
            step = _round_step((self.high - self.low) / 5)
            first = math.ceil(self.low / step - 1e-9)
            last = math.floor(self.high / step + 1e-9)
            return [index * step for index in range(first, last + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            ticks = [digit * 10.0**decade for decade in decades for digit in digits]
            ticks = [tick for tick in ticks if self.low * 0.999 <= tick <= self.high * 1.001]
            if len(ticks) <= 9:
                break
        return ticks


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)


def from_zero(values: Iterable[float], start: float, end: float) -> Scale:
    """A linear axis from 0 to a little above the largest value."""
    return Scale(0.0, (max(values, default=0.0) or 1.0) * 1.05, start, end)


def fitting(values: Sequence[float], start: float, end: float) -> Scale:
    """An axis round sorted positive values: logarithmic if they span more than a factor of 30."""
    low, high = max(values[0], 1e-6), max(values[-1], 2e-6)
    if high / low > 30:
        return Scale(low / 1.1, high * 1.1, start, end, log=True)
    margin = (high - low) * 0.05 or high * 0.05
    return Scale(max(0.0, low - margin), high + margin, start, end)


Label = Callable[[float], str]
