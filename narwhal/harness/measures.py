"""Figures out of samples.

Percentiles are of all samples of a point's rounds: the smallest value that so many percent do not exceed.
Their confidence interval comes from the rounds, each of which is one independent measurement of the same
thing: Student's t on the rounds' own percentiles. Requests of one round wait for each other and so are not
independent; an interval made from them would be far too narrow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from narwhal.harness.generator import Own
from narwhal.harness.sample import Outcome, Sample

PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)
# Student's t for 95 %, two-sided, by degrees of freedom from 1; beyond the table, by the last entry.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def t95(degrees: float) -> float:
    """Student's t for a two-sided 95 % interval; degrees of freedom are rounded down, at least 1."""
    return _T95[min(len(_T95), max(1, math.floor(degrees))) - 1]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest of these sorted values, at least one, that `percent` of them do not exceed."""
    # Rounded first: 99.9 / 100 * 1000 is a little more than 999.
    return ordered[max(0, math.ceil(round(len(ordered) * percent / 100, 9)) - 1)]


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % confidence interval of the mean of independent values; None of fewer than two."""
    n = len(values)
    if n < 2:
        return None
    mean = sum(values) / n
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    half = t95(n - 1) * deviation / math.sqrt(n)
    return mean - half, mean + half


def name_of(percent: float) -> str:
    """p50, p99.9 ..."""
    return f"p{percent:g}"


NAMES = (*map(name_of, PERCENTS), "max", "mean")


def spread(rounds: Sequence[Iterable[float]]) -> dict[str, Any] | None:
    """How values are distributed, given those of each round; None without any.

    `rounds` in the result are each figure's values round by round; `interval_95` is None with one round.
    """
    by_round = [figures for figures in map(_figures, rounds) if figures]
    if not by_round:
        return None
    pooled = _figures(value for values in rounds for value in values) if len(rounds) > 1 else by_round[0]
    each = {name: [figures[name] for figures in by_round] for name in NAMES}
    return pooled | {
        "rounds": each,
        "interval_95": {name: interval(values) for name, values in each.items()}
        if len(by_round) > 1
        else None,
    }


def _figures(values: Iterable[float]) -> dict[str, Any]:
    ordered = sorted(values)
    if not ordered:
        return {}
    return {
        "count": len(ordered),
        "mean": math.fsum(ordered) / len(ordered),
        "min": ordered[0],
        **{name_of(percent): percentile(ordered, percent) for percent in PERCENTS},
        "max": ordered[-1],
    }


def scalar(values: Sequence[float]) -> dict[str, Any]:
    """One figure that each round has once."""
    return {
        "value": sum(values) / len(values),
        "rounds": list(values),
        "interval_95": interval(values),
    }


@dataclass(slots=True)
class Round:
    """One round: its samples, warm-up included, and the window that is measured, in seconds of the run."""

    start_s: float
    end_s: float
    samples: list[Sample] = field(default_factory=list)
    own: Own = field(default_factory=Own)

    @property
    def length_s(self) -> float:
        """The window's."""
        return max(self.end_s - self.start_s, 1e-9)

    @property
    def measured(self) -> list[Sample]:
        """Those that were due in the window."""
        return [sample for sample in self.samples if sample.measured]

    def rates(self) -> dict[str, float]:
        """Per second of the window. Offered and good requests are counted when they are due, answers and
        tokens when they come, those of the warm-up's requests too."""
        length = self.length_s
        served = [sample for sample in self.samples if sample.outcome is Outcome.SERVED]
        rates = {
            "offered_per_s": len(self.measured) / length,
            "served_per_s": sum(self.start_s <= (s.ended_s or 0.0) < self.end_s for s in served) / length,
            "output_tokens_per_s": sum(s.tokens_between(self.start_s, self.end_s) for s in self.samples)
            / length,
        }
        judged = [sample.good for sample in self.measured if sample.good is not None]
        if judged:
            rates["goodput_per_s"] = sum(judged) / length
        return rates


LATENCIES: dict[str, Callable[[Sample], Iterable[float]]] = {
    "ttft_s": lambda sample: _one(sample.ttft_s),
    "tpot_s": lambda sample: _one(sample.tpot_s),
    "gap_s": lambda sample: sample.gaps,
    "e2e_s": lambda sample: _one(sample.e2e_s),
    "queued_s": lambda sample: _one(sample.queued_s),
}
"""What of a served request each is made of. Time is the request's own, from when it was due."""


def _one(value: float | None) -> tuple[float, ...]:
    return () if value is None else (value,)


def point_summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """All figures of one point of a sweep."""
    measured = [sample for one in rounds for sample in one.measured]
    served = [sample for sample in measured if sample.outcome is Outcome.SERVED]
    good = [sample.good for sample in measured if sample.good is not None]
    rates = [one.rates() for one in rounds]
    return {
        "rounds": len(rounds),
        "window_s": [round(one.length_s, 6) for one in rounds],
        "requests": {
            "sent": len(measured),
            **{str(outcome): sum(sample.outcome is outcome for sample in measured) for outcome in Outcome},
            "good": sum(good) if good else None,
            "good_share": sum(good) / len(good) if good else None,
        },
        "rates": {name: scalar([of[name] for of in rates if name in of]) for name in rates[0]},
        "latency": {
            name: spread(
                [[v for s in one.measured if s.outcome is Outcome.SERVED for v in of(s)] for one in rounds]
            )
            for name, of in LATENCIES.items()
        },
        "tokens": {
            "input": sum(sample.input_tokens for sample in served),
            "output": sum(sample.output_tokens for sample in served),
            "output_events": sum(len(s.gaps) + (s.first_s is not None) for s in served),
            "input_from": _counts(sample.input_from for sample in served),
            "output_from": _counts(sample.output_from for sample in served),
        },
        "refusals": _counts(reason for sample in measured for reason in sample.refusals.elements()),
        "retried": sum(_retried(sample) for sample in measured),
        "failures": _counts(sample.reason for sample in measured if sample.outcome is Outcome.FAILED),
        "failure_details": {
            sample.reason: sample.detail for sample in reversed(measured) if sample.outcome is Outcome.FAILED
        },
        "refusal_details": {
            sample.reason: sample.detail for sample in reversed(measured) if sample.outcome is Outcome.REFUSED
        },
        "statuses": _counts(str(sample.status) for sample in measured if sample.status is not None),
        "oddities": _counts(oddity for sample in served for oddity in sample.oddities),
        "generator": {
            "late_s": spread([[sample.late_s for sample in one.measured] for one in rounds]),
            "loop_lag_s": spread([one.own.lags for one in rounds]),
            "cpu_share": max(one.own.cpu_share for one in rounds),
        },
    }


def _retried(sample: Sample) -> int:
    return sample.refusals.total() - (sample.outcome is Outcome.REFUSED)


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(map(str, values)).most_common())


GOOD_SHARE = 0.9  # of a point's requests, for it to count as within the knee
KEPT_UP_SHARE = 0.95


def knee(points: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The highest rate of a sweep that the endpoint can take; None when there is no sweep over rates.

    With targets: at which 90 % of the requests meet them. Without: at which answers come at 95 % of the rate
    that requests do. `rate` is None if not even the lowest will do, and `beyond` says whether the highest
    does, so that the true knee lies further up.
    """
    swept = sorted((point for point in points if point["rate"] is not None), key=lambda point: point["rate"])
    if len(swept) < 2:
        return None
    judged = all(point["requests"]["good_share"] is not None for point in swept)
    within = []
    for point in swept:
        rates = point["rates"]
        if judged:
            ok = point["requests"]["good_share"] >= GOOD_SHARE
        else:
            ok = rates["served_per_s"]["value"] >= KEPT_UP_SHARE * rates["offered_per_s"]["value"]
        if not ok:
            break
        within.append(point["rate"])
    return {
        "rate": within[-1] if within else None,
        "beyond": len(within) == len(swept),
        "criterion": (
            f"at least {GOOD_SHARE:.0%} of the requests met the targets"
            if judged
            else f"answers came at {KEPT_UP_SHARE:.0%} or more of the offered rate"
        ),
    }
