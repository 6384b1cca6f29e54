"""What Prometheus and `/narwhal/state` are told: well formed, complete, and what the router counted."""

from __future__ import annotations

import asyncio
import io
import time
from pathlib import Path

import orjson
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain
from prometheus_client.samples import Sample
from rich.console import Console

from narwhal.accounting import outcome_table
from narwhal.accounting.accounts import Accounts
from narwhal.accounting.histogram import LAG_S, Histogram
from narwhal.accounting.journal import Journal
from narwhal.accounting.loop_lag import LoopLag
from narwhal.accounting.metrics import render
from narwhal.accounting.record import Attempt
from narwhal.accounting.recovery import RecoveryFigures
from narwhal.accounting.scrape import Scrape, Scraper
from narwhal.accounting.state import state
from narwhal.accounting.token_accounting import TokenAccounting, of_fleet
from narwhal.admission.readiness import Readiness, State
from narwhal.config import parse
from narwhal.fleet.health import Evidence
from narwhal.fleet.lifecycle import Lifecycle
from narwhal.fleet.retries import RetryBudget
from narwhal.fleet.table import FleetTable, Phase
from narwhal.outcomes import OUTCOMES
from narwhal.placement.place import Placement
from narwhal.profiles.curves import PrefillCurve
from narwhal.profiles.input_length import InputLengths
from narwhal.profiles.model import EngineModel
from narwhal.profiles.models import FleetModels

CONFIG = parse(
    """
model: m
slo: {ttft_s: 0.6, tpot_s: 0.011}
engines:
  - {id: p0, url: "http://p", role: prefill, prefill_concurrency: 3}
  - {id: d0, url: "http://d", role: decode}
  - {id: b0, url: "http://b", role: both, dialect: openai}
serving: {retention_limit: 77, queue_capacity: 33}
""",
    "fleet.yaml",
)


class Door:
    """A door with requests in it."""

    held = 4

    def waiting(self, phase: Phase) -> int:
        return 2 if phase is Phase.PREFILL else 1


@pytest.fixture
def scrape(tmp_path: Path) -> Scrape:
    """The figures of a router that has seen something of everything."""
    accounts = Accounts(CONFIG)
    for outcome in OUTCOMES:
        record = accounts.arrive("r", "chat", now=0.0, received_at=0.0)
        if outcome == "served":
            record.sized, record.first_token, record.last_token, record.output_tokens = 0.0, 0.5, 0.51, 2
            record.request_bytes = 300
            record.attempts = [Attempt("p0", "d0", 0.0, 0.2)]
        accounts.settle(record, outcome, now=1.0)
    accounts.arrive("r", "chat", now=0.0, received_at=0.0)
    engines = accounts.engines
    engines.leg_started(0, Phase.PREFILL)
    engines.leg_failed(0, Phase.PREFILL, "connect_failed")
    engines.tokens[1], engines.usage_disagreements[1], engines.output_after_done[2] = 9, 2, 1
    table = FleetTable(CONFIG.engines)
    table.take(0, Phase.PREFILL)
    table.set_available(1, False)
    readiness = Readiness()
    readiness.set(State.MAINTENANCE, "test", "by hand")
    journal = Journal(tmp_path / "journal.jsonl")
    journal.close()
    journal.write({})
    lengths = InputLengths()
    lengths.learn("chat", 4000, 2000)  # the estimate was 1000
    models = FleetModels([EngineModel(PrefillCurve(b=0.001)), EngineModel(), EngineModel()])
    accounts.engines.projected(0, 1.02)
    placement = Placement(table, models)
    placement.unserved[Phase.DECODE] = 3
    lifecycle = Lifecycle(FleetTable(CONFIG.engines), CONFIG.recovery, 0.0)
    lifecycle.failed(0, Evidence.STREAM, "it was cut short", 1.0)
    for _ in range(3):
        lifecycle.failed(1, Evidence.TOKEN_IDS, "it had none", 1.0)
    lifecycle.started(2, 5.0)
    lifecycle.started(2, 6.0)
    retries = RetryBudget(0.5, 1)
    retries.spend()
    retries.spend()

    def recovery() -> RecoveryFigures:
        return RecoveryFigures.of(lifecycle, {"liveness": 3}, retries)

    return Scraper(
        CONFIG, accounts, table, Door(), readiness, lengths, models, placement, recovery, journal
    ).take()


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in parse_plain(text):
        assert family.documentation, family.name
        for sample in family.samples:
            assert isinstance(sample, Sample)
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, "a series twice"
            found[key] = sample.value
    return found


def test_metrics_say_what_was_counted(scrape: Scrape) -> None:
    body, content_type = render(scrape)
    assert content_type.startswith("text/plain; version=0.0.4")
    found = samples(body.decode())

    def value(name: str, **labels: str) -> float:
        return found[(name, frozenset(labels.items()))]

    for row in OUTCOMES.values():
        assert value("narwhal_requests_total", outcome=row.counter, reason=row.name) == 1
    assert value("narwhal_requests_offered_total") == len(OUTCOMES) + 1
    assert value("narwhal_requests_unsized_total") == len(OUTCOMES) - 1
    assert value("narwhal_requests_in_flight") == 1
    assert value("narwhal_requests_within_slo_total") == 1
    assert value("narwhal_request_retries_total") == 0
    assert (value("narwhal_requests_held"), value("narwhal_requests_held_limit")) == (4, 77)
    assert value("narwhal_requests_waiting", phase="prefill") == 2
    assert value("narwhal_requests_waiting", phase="decode") == 1
    assert value("narwhal_requests_waiting_limit") == 33
    assert value("narwhal_engine_seats_in_use", engine="p0", phase="prefill") == 1
    assert value("narwhal_engine_seats_limit", engine="p0", phase="prefill") == 3
    assert value("narwhal_engine_seats_limit", engine="b0", phase="decode") == 256
    assert ("narwhal_engine_seats_limit", frozenset({"engine": "p0", "phase": "decode"}.items())) not in found
    assert value("narwhal_engine_available", engine="d0") == 0
    assert value("narwhal_engine_legs_total", engine="p0", phase="prefill") == 1
    assert value("narwhal_engine_state", engine="p0", narwhal_engine_state="serving") == 1
    assert value("narwhal_engine_state", engine="d0", narwhal_engine_state="probing") == 1
    assert value("narwhal_engine_last_of_its_role", engine="d0") == 1
    assert value("narwhal_engine_failures_in_a_row", engine="p0", evidence="stream") == 1
    assert value("narwhal_engine_ejections_total", engine="d0") == 0
    assert value("narwhal_engine_restarts_total", engine="b0") == 1
    assert value("narwhal_retry_budget") == 0
    assert value("narwhal_retries_denied_total") == 1
    assert value("narwhal_monitor_stage_failures_total", stage="liveness") == 3
    assert (
        value("narwhal_engine_leg_failures_total", engine="p0", phase="prefill", reason="connect_failed") == 1
    )
    assert value("narwhal_engine_output_tokens_total", engine="d0") == 9
    assert value("narwhal_engine_usage_disagreements_total", engine="d0") == 2
    assert value("narwhal_engine_output_after_done_total", engine="b0") == 1
    assert (
        value(
            "narwhal_engine_info", engine="b0", role="both", dialect="openai", token_accounting="unavailable"
        )
        == 1
    )
    assert value("narwhal_token_accounting_info", token_accounting="unavailable") == 1
    assert value("narwhal_state", narwhal_state="maintenance") == 1
    assert value("narwhal_state", narwhal_state="ready") == 0
    assert value("narwhal_time_to_first_token_seconds_bucket", le="0.5") == 1
    assert value("narwhal_time_to_first_token_seconds_bucket", le="0.4") == 0
    assert value("narwhal_time_per_output_token_seconds_count") == 1
    assert value("narwhal_request_duration_seconds_sum", outcome="served") == 1
    assert value("narwhal_queue_wait_seconds_bucket", phase="decode", le="0.1") == 0
    assert value("narwhal_queue_wait_seconds_bucket", phase="decode", le="0.2") == 1
    assert value("narwhal_request_body_bytes_sum") == 300
    assert value("narwhal_input_estimate_error_ratio", route="chat", script="ascii") == 0.5
    assert value("narwhal_event_loop_lag_seconds_count") == 0
    assert value("narwhal_unserved_placements_total", phase="decode") == 3
    assert value("narwhal_wait_factor") == 1
    ratio = "narwhal_engine_ttft_of_projected_ratio_bucket"
    assert [value(ratio, engine="p0", le=le) for le in ("1.0", "1.05")] == [0, 1]
    assert value("narwhal_engine_pace_correction", engine="p0", work="prefill") == 1
    assert value("narwhal_engine_pace_confidence", engine="d0", work="interval") == 0
    assert value("narwhal_engine_on_probation", engine="b0", phase="decode") == 0
    assert all(name != "narwhal_engine_drift_score" for name, _ in found)
    assert value("narwhal_engine_prefill_left_seconds", engine="p0") == 0
    assert value("narwhal_engine_kv_tokens", engine="d0") == 0
    assert value("narwhal_journal_dropped_rows_total") == 1
    assert any(name == "narwhal_build_info" for name, _ in found)
    assert value("process_resident_memory_bytes") > 0


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3", True),
        ("text/html, Application/OpenMetrics-Text; version=junk", True),
        ("text/plain", False),
        ("*/*", False),
        (",;q=\x00", False),
    ],
)
def test_openmetrics_is_sent_to_whoever_accepts_it(scrape: Scrape, accept: str, openmetrics: bool) -> None:
    body, content_type = render(scrape, accept)
    assert content_type.startswith("application/openmetrics-text" if openmetrics else "text/plain")
    families = list((parse_openmetrics if openmetrics else parse_plain)(body.decode()))
    assert len([family for family in families if family.name.startswith("narwhal_")]) > 30


def test_state_is_json_with_the_same_figures(scrape: Scrape) -> None:
    told = orjson.loads(orjson.dumps(state(scrape)))
    requests = told["requests"]
    counters = ("served", "failed", "expired", "cancelled", "rejected", "refused", "invalid_requests")
    assert requests["offered"] == sum(requests[name] for name in counters) + requests["in_flight"]
    assert sum(requests["by_reason"].values()) == len(OUTCOMES)
    assert (told["status"], told["reason"]) == ("maintenance", "by hand")
    assert told["token_accounting"] == "unavailable"
    assert [(one["route"], one["script"]) for one in told["input_lengths"]] == [("chat", "ascii")]
    p0, d0, b0 = told["engines"]
    assert p0["phases"] == {
        "prefill": {
            "seats_in_use": 1,
            "seats_limit": 3,
            "legs": 1,
            "failures": {"connect_failed": 1},
            "drift": {"state": "well", "score": None},
        }
    }
    assert p0["pace"]["prefill"]["measured"]
    assert list(d0["pace"]) == ["handoff", "interval"]
    assert not d0["pace"]["interval"]["sure"]
    assert p0["ttft_of_projected"]["count"] == 1
    assert told["admission"]["prompt_times_known"]
    assert told["unserved_placements"] == {"prefill": 0, "decode": 3}
    # One was served in time; those that failed or expired had been let in as well.
    admitted = requests["served"] + requests["failed"] + requests["expired"]
    assert told["slo"]["attainment"] == 1 / admitted
    assert (d0["available"], d0["output_tokens"], d0["token_accounting"]) == (False, 9, "token_ids")
    assert list(b0["phases"]) == ["prefill", "decode"]


def test_the_fleet_s_tokens_are_accounted_for_when_every_engine_with_output_supplies_ids() -> None:
    assert of_fleet(CONFIG.engines) is TokenAccounting.UNAVAILABLE
    assert of_fleet(CONFIG.engines[:2]) is TokenAccounting.TOKEN_IDS


def test_a_busy_loop_shows_as_lag() -> None:
    histogram = Histogram(LAG_S)

    async def main() -> None:
        lag = LoopLag(histogram, interval_s=0.001)
        lag.start(asyncio.get_running_loop())
        time.sleep(0.05)  # noqa: ASYNC251 - this is the fault
        deadline = time.monotonic() + 20
        while not histogram.count and time.monotonic() < deadline:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        lag.stop()
        seen = histogram.count
        await asyncio.sleep(0.01)
        assert histogram.count == seen, "it went on after it was stopped"

    asyncio.run(main())
    assert histogram.sum > 0.04


def test_the_documentation_s_page_of_outcomes_is_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "outcomes.md"
    assert page.read_text() == outcome_table.markdown(), "write it anew: narwhal outcomes --markdown"


def test_the_table_in_the_terminal_has_every_outcome_whole() -> None:
    console = Console(width=80, file=io.StringIO())
    console.print(outcome_table.terminal())
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(f" {name} " in text for name in OUTCOMES)
