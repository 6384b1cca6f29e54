"""The demo's figures: what counts as goodput, and what its load is."""

from __future__ import annotations

import pytest

from narwhal.demo.figures import figures
from narwhal.demo.load import BURST_REQUESTS, Part, plan
from narwhal.harness.sample import Outcome, Sample, Targets

TARGETS = Targets(1.0, 0.1)


def served(ttft_s: float, tpot_s: float) -> Sample:
    sample = Sample(0, first_s=ttft_s, last_s=ttft_s + 10 * tpot_s, outcome=Outcome.SERVED, output_tokens=11)
    sample.good = sample.meets(TARGETS)
    return sample


def test_goodput_counts_answers_that_met_both_targets() -> None:
    refused = Sample(0, outcome=Outcome.REFUSED, reason="429 queue_full")
    sums = figures([served(0.5, 0.05), served(1.5, 0.05), served(0.5, 0.15), refused])
    assert (sums.sent, sums.in_time, sums.late, sums.served) == (4, 1, 2, 3)
    assert sums.refused == {"429 queue_full": 1}
    assert sums.output_tokens == 33
    assert sorted(sums.ttft_s) == pytest.approx([0.5, 0.5, 1.5])


def test_what_is_neither_served_nor_refused_has_failed() -> None:
    cut = Sample(0, first_s=0.1, outcome=Outcome.FAILED, reason="cut_short", detail="the engine died")
    silent = Sample(0, outcome=Outcome.FAILED, reason="timeout")
    sums = figures([cut, silent])
    assert sums.failed == {"the engine died": 1, "timeout": 1}
    assert sums.served == 0


def test_a_load_is_the_same_each_time_and_holds_its_burst_at_one_moment() -> None:
    load = plan(10.0)
    assert load == plan(10.0)
    assert [request.at_s for request in load] == sorted(request.at_s for request in load)
    assert [request.at_s for request in load if request.part is Part.BURST] == [4.0] * BURST_REQUESTS
    assert 40 < len(load) - BURST_REQUESTS < 100
