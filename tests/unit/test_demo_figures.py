"""The demo's figures: what counts as goodput, and what a percentile is."""

from __future__ import annotations

import pytest

from narwhal.config import Slo
from narwhal.demo.client import Answer
from narwhal.demo.figures import figures, percentile
from narwhal.demo.load import BURST_REQUESTS, Part, Planned, Sample, plan

SLO = Slo(ttft_s=1.0, tpot_s=0.1)


def sample(answer: Answer | None) -> Sample:
    return Sample(Planned(0.0, Part.STEADY, 10, 10), answer, "" if answer else "Connection refused")


def served(ttft_s: float, tpot_s: float) -> Sample:
    first = 5.0 + ttft_s
    return sample(Answer(5.0, 200, "req-1", first, first + 10 * tpot_s, output_tokens=11, complete=True))


def refused(code: str) -> Sample:
    return sample(Answer(5.0, 429, error={"code": code}))


def test_goodput_counts_answers_that_met_both_targets() -> None:
    sums = figures([served(0.5, 0.05), served(1.5, 0.05), served(0.5, 0.15), refused("queue_full")], SLO)
    assert (sums.sent, sums.in_time, sums.late, sums.served) == (4, 1, 2, 3)
    assert sums.refused == {(429, "queue_full"): 1}
    assert sums.output_tokens == 33
    assert sorted(sums.ttft_s) == pytest.approx([0.5, 0.5, 1.5])


def test_what_is_neither_served_nor_refused_has_failed() -> None:
    cut = sample(Answer(5.0, 200, first_at=5.1, last_at=5.2, error={"message": "the engine died"}))
    silent = sample(Answer(5.0, 200))
    sums = figures([cut, silent, sample(None)], SLO)
    assert sums.failed == {
        "the engine died": 1, "the stream ended without [DONE]": 1, "Connection refused": 1,
    }  # fmt: skip
    assert sums.served == 0


def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed() -> None:
    values = list(range(100, 0, -1))
    assert [percentile(values, percent) for percent in (50, 90, 99, 100)] == [50, 90, 99, 100]
    assert percentile([7.0], 1) == 7.0
    assert percentile([], 50) is None


def test_a_load_is_the_same_each_time_and_holds_its_burst_at_one_moment() -> None:
    load = plan(10.0)
    assert load == plan(10.0)
    assert [request.at_s for request in load] == sorted(request.at_s for request in load)
    assert [request.at_s for request in load if request.part is Part.BURST] == [4.0] * BURST_REQUESTS
    assert 40 < len(load) - BURST_REQUESTS < 100
