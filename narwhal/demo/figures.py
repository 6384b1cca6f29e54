"""What a load's answers come to: outcomes, percentiles, goodput."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from narwhal.config import Slo
from narwhal.demo.client import Answer
from narwhal.demo.load import Sample

PERCENTS = (50, 90, 99)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that so many percent of all do not exceed; None of no values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def met(answer: Answer, slo: Slo) -> bool:
    """Whether a whole answer met both latency targets."""
    return (answer.ttft_s or 0.0) <= slo.ttft_s and (answer.tpot_s or 0.0) <= slo.tpot_s


@dataclass(slots=True)
class Figures:
    """The sums over some requests."""

    sent: int = 0
    in_time: int = 0  # served, and both targets met
    late: int = 0  # served
    refused: Counter[tuple[int, str]] = field(default_factory=Counter)  # by status and code
    failed: Counter[str] = field(default_factory=Counter)  # by what went wrong
    ttft_s: list[float] = field(default_factory=list)  # of those served
    tpot_s: list[float] = field(default_factory=list)
    output_tokens: int = 0

    @property
    def served(self) -> int:
        """Whole answers."""
        return self.in_time + self.late


def figures(samples: Iterable[Sample], slo: Slo) -> Figures:
    """Sum up."""
    sums = Figures()
    for sample in samples:
        sums.sent += 1
        answer = sample.answer
        if answer is None:
            sums.failed[sample.why] += 1
        elif answer.complete:
            sums.in_time += met(answer, slo)
            sums.late += not met(answer, slo)
            sums.output_tokens += answer.output_tokens
            if answer.ttft_s is not None:
                sums.ttft_s.append(answer.ttft_s)
            if answer.tpot_s is not None:
                sums.tpot_s.append(answer.tpot_s)
        elif answer.status in (429, 503):
            sums.refused[answer.status, str(answer.error.get("code"))] += 1
        else:
            sums.failed[str(answer.error.get("message") or "the stream ended without [DONE]")] += 1
    return sums
