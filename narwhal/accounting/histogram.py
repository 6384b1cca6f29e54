"""Histograms with fixed buckets: a count for each, and a sum.

A bucket counts the values that are at most its bound and more than the bound before, as Prometheus has it,
but not yet cumulated: that is done when somebody reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

# Bounds in seconds, finer where the targets of interactive use lie.
TTFT_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0,
    3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0,
)  # fmt: skip
TPOT_S = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.075, 0.1, 0.15,
    0.2, 0.3, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
DURATION_S = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0,
    600.0, 1800.0,
)  # fmt: skip
WAIT_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
LAG_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
# What was seen, of what was predicted.
RATIO = (0.1, 0.25, 0.5, 0.67, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.25, 1.5, 2.0, 4.0, 10.0)
SIZE_BYTES = tuple(float(1 << shift) for shift in range(8, 27, 2))  # 256 B to 64 MiB


class Histogram:
    """Counts of values by bucket. Values are zero or more; what is less, or no number, counts as zero."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(sorted(set(bounds)))
        self.counts = [0] * (len(self.bounds) + 1)  # the last one has no bound
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        value = max(0.0, value)  # in this order: it is zero that wins over NaN
        bucket = 0
        for bound in self.bounds:  # some twenty, which is sooner done than a call
            if value <= bound:
                break
            bucket += 1
        self.counts[bucket] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """Each bucket's bound as text, and how many values are at most that; the last bound is `+Inf`."""
        rows: list[tuple[str, int]] = []
        running = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            rows.append(("+Inf" if bound == float("inf") else repr(bound), running))
        return rows

    def snapshot(self) -> dict[str, object]:
        """For JSON."""
        return {"count": self.count, "sum": self.sum, "at_most": dict(self.cumulative())}

    def copy(self) -> Self:
        """The figures of this instant."""
        other = type(self)(())
        other.bounds, other.counts, other.sum = self.bounds, self.counts[:], self.sum
        return other
