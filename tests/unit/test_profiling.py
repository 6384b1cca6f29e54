"""What `narwhal profile` decides without an engine: what to measure, and what pages say."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from narwhal.profiles.curves import DecodeCurve, HandoffCurve, PrefillCurve
from narwhal.profiles.fit import TimedBatch, TimedLength, fit_decode
from narwhal.profiles.store import EngineProfile, Measured
from narwhal.profiling import report
from narwhal.profiling.pages import PageError, read_condition, read_max_model_len
from narwhal.profiling.sweep import FULL, QUICK, SHORTEST, Effort, batches, lengths

EFFORTS = st.sampled_from([FULL, QUICK])


@given(st.integers(1, 200_000), EFFORTS)
def test_lengths_grow_from_the_shortest_to_the_longest_an_engine_takes(longest: int, effort: Effort) -> None:
    found = lengths(longest, effort)
    assert found == sorted(set(found))
    assert found[-1] == longest
    assert found[0] == min(SHORTEST, longest)
    assert len(found) >= 5 or longest < SHORTEST + 4
    assert all(after <= before * effort.length_step + 1 for before, after in pairwise(found))
    assert len(found) < 20


@given(st.integers(1, 1000), st.integers(64, 50_000), st.none() | st.integers(1, 10**7), EFFORTS)
def test_batches_fit_the_seats_and_the_kv_cache(
    seats: int, longest: int, kv_tokens: int | None, effort: Effort
) -> None:
    for batch in batches(seats, longest, kv_tokens, effort):
        assert 1 <= batch.streams <= seats
        assert 1 <= batch.prompt_tokens <= longest
        assert kv_tokens is None or batch.kv_tokens < kv_tokens


@pytest.mark.parametrize("effort", [FULL, QUICK])
@pytest.mark.parametrize("seats", [2, 8, 256])
def test_batches_tell_what_a_sequence_costs_from_what_a_token_held_costs(effort: Effort, seats: int) -> None:
    truth = DecodeCurve(0.01, 1e-3, 1e-6)
    found = batches(seats, 4000, 200_000, effort)
    points = [
        TimedBatch(batch.streams, batch.kv_tokens, truth.price(batch.streams, batch.kv_tokens))
        for batch in found
    ]
    fitted = fit_decode(points)
    assert (fitted.c, fitted.p, fitted.q) == pytest.approx((truth.c, truth.p, truth.q), rel=1e-3)


METRICS = """\
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7698600005e+09
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",engine="0"} 1.0
"""


def test_a_metrics_page_tells_whether_an_engine_is_busy_and_which_process_it_is() -> None:
    condition = read_condition(METRICS)
    assert (condition.running, condition.waiting, condition.idle) == (4, 2, False)
    assert condition.process_start_time == 1769860000.5
    assert condition.kv_tokens == 16_000


def test_a_metrics_page_without_the_gauges_is_an_error_that_names_one() -> None:
    with pytest.raises(PageError, match="no vllm:num_requests_running"):
        read_condition("# TYPE x gauge\nx 1\n")
    with pytest.raises(PageError, match="can't be read"):
        read_condition("vllm:num_requests_running{ 1\n")


def test_a_cache_of_unknown_size_is_no_bound() -> None:
    text = METRICS.replace('num_gpu_blocks="1000"', 'num_gpu_blocks="None"')
    assert read_condition(text).kv_tokens is None


def test_a_models_page_tells_the_longest_context() -> None:
    page = b'{"object":"list","data":[{"id":"m","max_model_len":2048},{"id":"n"}]}'
    assert read_max_model_len(page, "m") == 2048
    assert read_max_model_len(page, "n") is None
    with pytest.raises(PageError, match="it serves m, n, not other"):
        read_max_model_len(page, "other")
    for bad in (b"", b"[]", b'{"data":{"a":1}}'):
        with pytest.raises(PageError, match="no list of models"):
            read_max_model_len(bad, "m")


def test_the_fits_are_shown_whole_on_80_columns() -> None:
    batch, length = TimedBatch(1, 1, 1.0), TimedLength(1, 1.0)
    profile = EngineProfile(
        "http://p", "m", datetime.now(UTC), None,
        prefill=Measured(PrefillCurve(1.23e-9, 2.34e-5, 0.0123, 32, 131_072, 0.123), (length,) * 16),
        decode=Measured(DecodeCurve(0.0123, 3.45e-5, 1.23e-8, 256, 1_234_567, 0.123), (batch,) * 100),
        handoff=Measured(HandoffCurve(1.23e-6, 0.0123, 32, 131_072, 0.123), (length,) * 16),
    )  # fmt: skip
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*report.tables({"an-engine-with-a-long-name.example:8000": profile}))
    shown = console.export_text()
    for part in (
        "an-engine-with-a-long-name.example:8000", "12.3 ms + 23.4 \xb5s L + 1.23 ns L\xb2",
        "L 32 to 131,072", "12.3 ms + 34.5 \xb5s n + 12.3 ns kv",
        "n to 256, kv to", "1,234,567", "100", "12.3%",
    ):  # fmt: skip
        assert part in shown
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
