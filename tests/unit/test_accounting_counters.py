"""Counters add up at every instant, whatever happens to requests and in whatever order."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from narwhal.accounting.accounts import Accounts
from narwhal.accounting.counters import Counters, EngineCounters
from narwhal.accounting.histogram import TTFT_S, Histogram
from narwhal.accounting.record import Attempt, LengthSource, Record
from narwhal.config import parse
from narwhal.fleet.table import Phase
from narwhal.outcomes import OUTCOMES, Counter

CONFIG = parse(
    """
model: m
slo: {ttft_s: 0.6, tpot_s: 0.011}
engines:
  - {id: p, url: "http://p", role: prefill}
  - {id: d, url: "http://d", role: decode}
""",
    "fleet.yaml",
)


class Requests(RuleBasedStateMachine):
    """Requests that arrive and end, interleaved, each kept in a list beside the accounts."""

    flying = Bundle("flying")

    @initialize()
    def start(self) -> None:
        self.journal: list[dict[str, Any]] = []
        self.accounts = Accounts(CONFIG, lambda settled: self.journal.append(settled.row()))
        self.now = 0.0
        self.in_flight = 0
        self.ended: list[tuple[str, bool]] = []
        self.settled: list[Record] = []

    @rule(target=flying)
    def arrive(self) -> Record:
        self.now += 0.125
        self.in_flight += 1
        return self.accounts.arrive(f"r{self.now}", "chat", now=self.now, received_at=1e9)

    @rule(record=consumes(flying), outcome=st.sampled_from(list(OUTCOMES)), sized=st.booleans())
    def end(self, record: Record, outcome: str, sized: bool) -> None:
        self.now += 0.125
        record.sized = self.now if sized else None
        self.accounts.settle(record, outcome, now=self.now)
        self.in_flight -= 1
        self.ended.append((outcome, sized))
        self.settled.append(record)

    @rule(outcome=st.sampled_from(list(OUTCOMES)))
    def end_twice(self, outcome: str) -> None:
        if self.settled:
            with pytest.raises(RuntimeError):
                self.accounts.settle(self.settled[-1], outcome, now=self.now)

    @invariant()
    def every_request_is_in_one_place(self) -> None:
        counters = self.accounts.counters
        assert counters.law_holds()
        figures = counters.snapshot()
        by_counter = {
            counter.value: sum(OUTCOMES[name].counter is counter for name, _ in self.ended)
            for counter in Counter
        }
        assert figures == {
            "offered": self.in_flight + len(self.ended),
            "unsized_offered": sum(not sized for _, sized in self.ended),
            "in_flight": self.in_flight,
            **by_counter,
        }
        assert [row["reason"] for row in self.journal] == [name for name, _ in self.ended]
        assert sum(one.count for one in self.accounts.duration.values()) == len(self.ended)


TestRequests = Requests.TestCase
TestRequests.settings = settings(deadline=None, max_examples=40, stateful_step_count=30)


def test_what_was_not_offered_cannot_end() -> None:
    counters = Counters()
    with pytest.raises(RuntimeError):
        counters.end("served", sized=True)
    counters.arrive()
    with pytest.raises(KeyError):
        counters.end("evaporated", sized=True)
    assert counters.snapshot()["in_flight"] == 1
    assert counters.law_holds()


def test_the_law_is_found_broken_when_a_request_is_lost() -> None:
    counters = Counters()
    counters.arrive()
    counters.in_flight -= 1
    assert not counters.law_holds()


def test_a_copy_stays_as_it_was() -> None:
    accounts = Accounts(CONFIG)
    record = accounts.arrive("r", "chat", now=0.0, received_at=0.0)
    copy = accounts.copy()
    accounts.engines.leg_started(0, Phase.PREFILL)
    accounts.engines.leg_failed(0, Phase.PREFILL, "connect_failed")
    accounts.engines.tokens[1] += 5
    record.first_token = 0.5
    accounts.settle(record, "served", now=1.0)
    assert (copy.counters.in_flight, copy.counters.endings["served"], copy.ttft.count) == (1, 0, 0)
    assert (copy.engines.legs[Phase.PREFILL][0], copy.engines.tokens[1], copy.engines.failures) == (0, 0, {})
    assert copy.duration[Counter.SERVED].count == 0


def test_a_leg_fails_by_an_outcome_of_the_table_only() -> None:
    engines = EngineCounters(1)
    engines.leg_failed(0, Phase.DECODE, "token_ids")
    with pytest.raises(KeyError):
        engines.leg_failed(0, Phase.DECODE, "bad luck")
    assert engines.failures == {(0, Phase.DECODE, "token_ids"): 1}


def served(ttft_s: float, tpot_s: float, tokens: int) -> tuple[Accounts, dict[str, Any]]:
    """One served request with these times."""
    journal: list[dict[str, Any]] = []
    accounts = Accounts(CONFIG, lambda settled: journal.append(settled.row()))
    record = accounts.arrive("r1", "chat", now=100.0, received_at=1e9)
    record.body_read = record.sized = 100.001
    record.seat, record.prefill, record.handoff = 100.1, 100.2, 100.25
    record.first_token = 100.0 + ttft_s
    record.last_token = record.first_token + tpot_s * (tokens - 1)
    record.request_bytes = 3000
    record.input_tokens, record.input_tokens_from = 700, LengthSource.USAGE
    record.output_tokens, record.output_tokens_from = tokens, LengthSource.TOKEN_IDS
    record.usage_completion_tokens = tokens + 1
    record.prompt_tokens = 690
    record.attempts = [
        Attempt("p0", None, 0.05, None, "connect_failed", "engine p0 refused"),
        Attempt("p1", "d1", 0.04, 0.01),
    ]
    accounts.settle(record, "served", now=100.5 + ttft_s, status=200)
    return accounts, journal[0]


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "tokens", "good"),
    [(0.5, 0.01, 5, 1), (0.7, 0.01, 5, 0), (0.5, 0.012, 5, 0), (0.5, 9.0, 1, 1)],
)
def test_goodput_counts_who_met_both_targets(ttft_s: float, tpot_s: float, tokens: int, good: int) -> None:
    accounts, _ = served(ttft_s, tpot_s, tokens)
    assert accounts.counters.within_slo == good
    assert accounts.tpot.count == (1 if tokens > 1 else 0)


def test_a_row_of_the_journal_tells_the_request_s_story_but_not_its_text() -> None:
    accounts, row = served(0.5, 0.01, 5)
    assert row == {
        "request_id": "r1",
        "client_request_id": None,
        "route": "chat",
        "stream": False,
        "received_at": 1e9,
        "request_bytes": 3000,
        "body_read_s": 0.001,
        "sized_s": 0.001,
        "seat_s": 0.1,
        "prefill_s": 0.2,
        "handoff_s": 0.25,
        "first_token_s": 0.5,
        "last_token_s": 0.54,
        "ended_s": 1.0,
        "input_tokens": 700,
        "input_tokens_from": "usage",
        "prompt_tokens": 690,
        "output_tokens": 5,
        "output_tokens_from": "token_ids",
        "token_accounting": None,
        "usage_completion_tokens": 6,
        "ttft_s": 0.5,
        "tpot_s": 0.01,
        "projected_ttft_s": None,
        "slo_ttft_s": 0.6,
        "slo_tpot_s": 0.011,
        "engines": {"prefill": "p1", "decode": "d1"},
        "waited_s": 0.1,
        "attempts": [
            {
                "prefill": "p0",
                "decode": None,
                "prefill_waited_s": 0.05,
                "decode_waited_s": None,
                "prefill_prices": None,
                "decode_prices": None,
                "continues_at": None,
                "failure": "connect_failed",
                "error": "engine p0 refused",
            },
            {
                "prefill": "p1",
                "decode": "d1",
                "prefill_waited_s": 0.04,
                "decode_waited_s": 0.01,
                "prefill_prices": None,
                "decode_prices": None,
                "continues_at": None,
                "failure": None,
                "error": None,
            },
        ],
        "outcome": "served",
        "reason": "served",
        "status": 200,
        "error": None,
        "details": None,
    }
    assert accounts.counters.retries == 1
    assert [one.count for one in accounts.waits] == [2, 1]


def test_an_engine_s_long_error_is_cut_in_the_journal() -> None:
    journal: list[dict[str, Any]] = []
    accounts = Accounts(CONFIG, lambda settled: journal.append(settled.row()))
    record = accounts.arrive("r", "chat", now=0.0, received_at=0.0)
    record.output_tokens = record.usage_completion_tokens = 3
    accounts.settle(record, "engine_error", now=1.0, error="x" * 1_000_000)
    assert len(journal[0]["error"]) == 1000
    assert journal[0]["usage_completion_tokens"] is None  # it agrees


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(0, 200) | st.sampled_from(TTFT_S) | st.sampled_from([-1.0, float("nan")])),
    st.lists(st.floats(0.0001, 100), max_size=4),
)
def test_a_bucket_holds_what_is_at_most_its_bound(values: list[float], extra: list[float]) -> None:
    histogram = Histogram((*TTFT_S, *extra))
    for value in values:
        histogram.observe(value)
    counted = [value if value > 0 else 0.0 for value in values]
    assert histogram.count == len(values)
    assert histogram.sum == pytest.approx(sum(counted))
    for bound, count in histogram.cumulative():
        assert count == sum(value <= float(bound) for value in counted)
    assert histogram.cumulative()[-1][0] == "+Inf"


def test_the_configured_targets_are_bounds_of_their_histograms() -> None:
    accounts = Accounts(CONFIG)
    for histogram, target in ((accounts.ttft, 0.6), (accounts.tpot, 0.011)):
        assert histogram.bounds[bisect_left(histogram.bounds, target)] == target
