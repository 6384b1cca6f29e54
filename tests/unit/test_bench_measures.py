"""Figures out of samples whose every moment is known."""

from __future__ import annotations

import itertools
import math
import statistics
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.harness.compare import Verdict, differences, judge
from narwhal.harness.measures import (
    NAMES,
    PERCENTS,
    Round,
    interval,
    knee,
    percentile,
    point_summary,
    spread,
    t95,
)
from narwhal.harness.sample import Outcome, Sample, Targets

FIGURES = st.floats(0, 1e6, allow_nan=False)


@given(st.lists(FIGURES, min_size=1, max_size=300), st.sampled_from([*PERCENTS, 0.0, 100.0]))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(
    values: list[float], percent: float
) -> None:
    ordered = sorted(values)

    def covers(candidate: float) -> bool:
        # In whole numbers, tenths of a percent: no rounding.
        return sum(value <= candidate for value in values) * 1000 >= round(percent * 10) * len(values)

    assert percentile(ordered, percent) == next(value for value in ordered if covers(value))


def test_percentiles_of_a_thousand_are_the_values_one_would_count_to() -> None:
    figures = spread([[float(value) for value in range(1, 1001)]])
    assert figures is not None
    assert [figures[name] for name in NAMES] == [500, 900, 950, 990, 999, 1000, 500.5]
    assert figures["interval_95"] is None
    # 41,000 * 99.9 / 100 is a little more than 40,959 in floating point.
    assert percentile(range(1, 41001), 99.9) == 40959


@given(st.lists(st.lists(FIGURES, min_size=1, max_size=20), min_size=2, max_size=5))
def test_percentiles_are_of_all_rounds_samples_together(rounds: list[list[float]]) -> None:
    figures = spread(rounds)
    assert figures is not None
    pooled = sorted(value for values in rounds for value in values)
    assert figures["count"] == len(pooled)
    assert figures["p50"] == percentile(pooled, 50)
    assert figures["max"] == pooled[-1]
    assert figures["rounds"]["max"] == [max(values) for values in rounds]


def test_the_confidence_interval_of_three_rounds_is_students() -> None:
    low, high = interval([10.0, 12.0, 14.0]) or (0, 0)
    assert (low, high) == pytest.approx((12 - 4.303 * 2 / math.sqrt(3), 12 + 4.303 * 2 / math.sqrt(3)))
    assert interval([10.0]) is None


@given(st.lists(st.floats(1, 100), min_size=2, max_size=10))
def test_the_interval_is_around_the_mean_and_a_point_where_rounds_agree(values: list[float]) -> None:
    low, high = interval(values) or (0, 0)
    assert low - 1e-9 <= statistics.fmean(values) <= high + 1e-9
    low, high = interval([values[0]] * 3) or (0, 0)
    assert low == pytest.approx(values[0])
    assert high == pytest.approx(values[0])


def test_students_t_falls_with_the_degrees_of_freedom() -> None:
    values = [t95(degrees) for degrees in range(1, 40)]
    assert values == sorted(values, reverse=True)
    assert t95(0.5) == t95(1.9) == 12.706


def served(due: float, *, ttft: float = 0.2, gap: float = 0.05, tokens: int = 11, **more: Any) -> Sample:
    """A request due at some time, with every moment following from the figures."""
    first, last = due + ttft, due + ttft + gap * (tokens - 1)
    return Sample(
        0, due_s=due, handed_s=due, sent_s=due + 0.001, first_s=first, last_s=last, ended_s=last + 0.01,
        status=200, outcome=Outcome.SERVED, output_tokens=tokens, gaps=array("d", [gap] * (tokens - 1)),
        **more,
    )  # fmt: skip


def test_each_latency_is_what_the_moments_say() -> None:
    sample = served(3.0, ttft=0.25, gap=0.02, tokens=21)
    assert sample.ttft_s == pytest.approx(0.25)
    assert sample.tpot_s == pytest.approx(0.02)
    assert sample.e2e_s == pytest.approx(0.25 + 20 * 0.02 + 0.01)
    assert sample.queued_s == pytest.approx(0.001)
    row = sample.as_row()
    assert (row["ttft_s"], row["tpot_s"], row["queued_s"]) == (0.25, 0.02, 0.001)
    assert row["gaps_s"] == [0.02] * 20


def test_a_request_that_had_to_wait_at_the_client_has_waited() -> None:
    sample = served(0.0)
    sample.due_s -= 2.0  # it was due two seconds before it could be sent
    assert sample.ttft_s == pytest.approx(2.2)
    assert sample.meets(Targets(ttft_s=2.0)) is False


@pytest.mark.parametrize(
    ("targets", "good"),
    [
        (Targets(), None),
        (Targets(0.21), True),
        (Targets(0.19), False),
        (Targets(0.21, 0.051), True),
        (Targets(0.21, 0.049), False),
        (Targets(None, 0.049), False),
    ],
)
def test_good_is_within_both_targets(targets: Targets, good: bool | None) -> None:
    assert served(1.0).meets(targets) is good


def test_what_was_not_served_is_not_good_and_a_single_token_has_no_tpot_to_miss() -> None:
    assert Sample(0, outcome=Outcome.REFUSED).meets(Targets(1.0)) is False
    assert served(0.0, tokens=1).meets(Targets(1.0, 1e-9)) is True


@pytest.mark.parametrize(("ended", "good"), [(0.69, True), (0.71, False)])
def test_a_whole_reply_is_good_if_it_is_there_when_both_targets_allow(ended: float, good: bool) -> None:
    sample = Sample(0, ended_s=ended, outcome=Outcome.SERVED, output_tokens=11)
    assert sample.meets(Targets(0.2, 0.05)) is good


@given(st.floats(0, 5), st.floats(0.01, 5), st.integers(1, 30))
def test_tokens_of_neighbouring_windows_add_up(start: float, length: float, tokens: int) -> None:
    sample = served(1.0, tokens=tokens)
    edges = [0.0, start, start + length, 20.0]
    parts = [sample.tokens_between(a, b) for a, b in itertools.pairwise(edges)]
    assert sum(parts) == pytest.approx(tokens)


def test_rates_count_requests_when_due_and_answers_and_tokens_when_they_come() -> None:
    window = Round(10.0, 20.0)
    window.samples = [
        served(9.5, measured=False, tokens=11),  # of the warm-up: six of its tokens and its end lie within
        *(served(10.0 + i, good=i % 2 == 0) for i in range(8)),
        served(19.9, good=True),  # its answer comes after the end
        Sample(0, due_s=15.0, outcome=Outcome.REFUSED, good=False),
    ]
    window.samples[0].first_s, window.samples[0].last_s = 9.775, 10.275
    rates = window.rates()
    assert rates["offered_per_s"] == pytest.approx(1.0)
    assert rates["served_per_s"] == pytest.approx(0.9)
    assert rates["goodput_per_s"] == pytest.approx(0.5)
    assert rates["output_tokens_per_s"] == pytest.approx((6 + 8 * 11) / 10)


def test_failures_and_refusals_are_counted_by_kind_and_leave_latencies_alone() -> None:
    failed = Sample(0, outcome=Outcome.FAILED, reason="cut_short", first_s=0.0, ended_s=99.0)
    refused = Sample(0, outcome=Outcome.REFUSED, reason="429 queue_full", ended_s=0.0)
    refused.refusals["429 queue_full"] = 3
    good = served(1.0)
    good.refusals["429 queue_full"] = 1
    summary = point_summary([Round(0.0, 10.0, [good, failed, refused])])
    assert summary["requests"] | {"good_share": None} == {
        "sent": 3, "served": 1, "refused": 1, "failed": 1, "unfinished": 0, "good": None, "good_share": None,
    }  # fmt: skip
    assert summary["failures"] == {"cut_short": 1}
    assert summary["refusals"] == {"429 queue_full": 4}
    assert summary["retried"] == 3
    assert summary["latency"]["ttft_s"]["count"] == 1
    assert summary["latency"]["e2e_s"]["max"] < 1


def point(rate: float | None, good_share: float | None = None, served_per_s: float = 0.0) -> dict[str, Any]:
    rates = {"served_per_s": {"value": served_per_s}, "offered_per_s": {"value": rate}}
    return {"rate": rate, "requests": {"good_share": good_share}, "rates": rates}


@pytest.mark.parametrize(
    ("points", "rate", "beyond"),
    [
        ([point(1, 1.0), point(2, 0.95), point(4, 0.5), point(8, 0.9)], 2, False),
        ([point(2, 1.0), point(1, 1.0)], 2, True),
        ([point(1, 0.1), point(2, 0.0)], None, False),
        ([point(1, None, 1.0), point(2, None, 1.95), point(4, None, 2.5)], 2, False),
    ],
)
def test_the_knee_is_the_highest_rate_before_the_first_that_is_too_much(
    points: list[dict[str, Any]], rate: float | None, beyond: bool
) -> None:
    found = knee(points)
    assert found is not None
    assert (found["rate"], found["beyond"]) == (rate, beyond)


def test_without_a_sweep_over_rates_there_is_no_knee() -> None:
    assert knee([point(1, 1.0)]) is None
    assert knee([point(None, 1.0), point(None, 1.0)]) is None


@pytest.mark.parametrize(
    ("a", "b", "more_is_better", "verdict"),
    [
        ([10, 11, 12], [10.5, 11.5, 12.5], False, Verdict.NOISE),
        ([10, 10.1, 9.9], [12, 12.1, 11.9], False, Verdict.WORSE),
        ([10, 10.1, 9.9], [12, 12.1, 11.9], True, Verdict.BETTER),
        ([12, 12.1, 11.9], [10, 10.1, 9.9], False, Verdict.BETTER),
        ([10, 10], [12, 12], False, Verdict.WORSE),
        ([10, 10], [10, 10], False, Verdict.SAME),
        ([10], [12], False, Verdict.UNKNOWN),
    ],
)
def test_a_difference_is_noise_unless_rounds_agree_that_it_is_there(
    a: list[float], b: list[float], more_is_better: bool, verdict: Verdict
) -> None:
    assert judge(a, b, more_is_better=more_is_better) is verdict


def test_a_comparison_has_ratios_of_every_figure_both_have() -> None:
    one = point_summary([Round(0, 10, [served(1.0, ttft=0.1), served(2.0, ttft=0.1)])] * 2)
    other = point_summary([Round(0, 10, [served(1.0, ttft=0.3)])] * 2)
    found = {difference.name: difference for difference in differences(one, other)}
    assert found["TTFT p50"].ratio == pytest.approx(3.0)
    assert found["TTFT p50"].verdict is Verdict.WORSE
    assert found["served"].ratio == pytest.approx(0.5)
    assert "goodput" not in found
