"""What a load's answers come to: how many ended which way, and their latencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from narwhal.harness.sample import Outcome, Sample

PERCENTS = (50, 90, 99)


@dataclass(slots=True)
class Figures:
    """The sums over some requests."""

    sent: int = 0
    in_time: int = 0  # served, and both targets met
    late: int = 0  # served
    refused: Counter[str] = field(default_factory=Counter)  # by status and code
    failed: Counter[str] = field(default_factory=Counter)  # by what went wrong
    ttft_s: list[float] = field(default_factory=list)  # of those served
    tpot_s: list[float] = field(default_factory=list)
    output_tokens: int = 0

    @property
    def served(self) -> int:
        """Whole answers."""
        return self.in_time + self.late


def figures(samples: Iterable[Sample]) -> Figures:
    """Sum up."""
    sums = Figures()
    for sample in samples:
        sums.sent += 1
        if sample.outcome is Outcome.SERVED:
            sums.in_time += sample.good is True
            sums.late += sample.good is not True
            sums.output_tokens += sample.output_tokens
            sums.ttft_s += [] if sample.ttft_s is None else [sample.ttft_s]
            sums.tpot_s += [] if sample.tpot_s is None else [sample.tpot_s]
        elif sample.outcome is Outcome.REFUSED:
            sums.refused[sample.reason] += 1
        else:
            sums.failed[sample.detail or sample.reason] += 1
    return sums
