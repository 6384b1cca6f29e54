"""Every kind of endpoint and of failure: counted by kind, and never in the way of the rest."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

import pytest
import uvloop

from narwhal.harness.endpoint import CHAT, COMPLETIONS, EndpointError, read_url
from narwhal.harness.load import Point
from narwhal.harness.sample import Outcome, Targets
from narwhal.sim import Curve, Fault, Interval, SimEngine, SimOptions, Timing
from narwhal.sim.faults import FaultName
from tests.http.bench_support import Bench, load
from tests.http.support import Routed, eventually, on_router
from tests.http.test_sim_process import CERTIFICATE

TEN = load(Point(concurrency=4), requests=10)


def on_engine(test: Any, options: SimOptions | None = None) -> None:
    """Run a test on a simulated engine, at which nothing must be left at the end."""

    async def main() -> None:
        engine = SimEngine(options)
        await engine.start()
        try:
            await test(engine)
            await eventually(lambda: not engine.stats.active, "no request left at the engine")
        finally:
            await engine.stop()

    uvloop.run(main())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [True, False])
def test_tokens_are_counted_by_usage_and_latencies_measured(path: str, stream: bool) -> None:
    async def test(engine: SimEngine) -> None:
        prompt = {"prompt": "Hello there"} if path == COMPLETIONS else {}
        run = await Bench(engine.url).run(TEN, path=path, stream=stream, extra=prompt)
        point = run.summary()["points"][0]
        assert point["requests"]["served"] == 10
        assert point["tokens"]["output"] == 80
        assert point["tokens"]["output_from"] == {"usage": 10}
        assert point["tokens"]["input_from"] == {"usage": 10}
        assert point["failures"] == point["oddities"] == {}
        assert point["statuses"] == {"200": 10}
        if stream:
            assert point["latency"]["gap_s"]["count"] == 70
            assert point["latency"]["tpot_s"]["count"] == point["latency"]["ttft_s"]["count"] == 10
        else:
            assert point["latency"]["ttft_s"] is None
        assert engine.stats.connections_opened <= 4

    on_engine(test)


@pytest.mark.parametrize("stream", [True, False])
def test_tokens_are_counted_by_their_ids_where_these_are_given(stream: bool) -> None:
    async def test(engine: SimEngine) -> None:
        extra = {"return_token_ids": True, "sim": {"tokens_per_event": 4}}
        run = await Bench(engine.url).run(TEN, stream=stream, extra=extra)
        point = run.summary()["points"][0]
        assert point["tokens"]["output"] == 80
        assert point["tokens"]["output_from"] == {"token_ids": 10}
        if stream:
            assert point["tokens"]["output_events"] == 20

    on_engine(test)


def test_no_latency_is_less_than_the_engine_takes() -> None:
    timing = Timing(prefill=Curve(c=0.03), interval=Interval(base=0.01))

    async def test(engine: SimEngine) -> None:
        run = await Bench(engine.url).run(load(Point(rate=40.0), requests=12), targets=Targets(10.0, 10.0))
        prefilled = 0.0  # one prompt after the other
        for sample in sorted(run.samples, key=lambda sample: sample.due_s):
            prefilled = max(prefilled, sample.due_s) + 0.03
            assert sample.first_s is not None
            assert sample.first_s >= prefilled - 0.002
            assert sample.last_s is not None
            # Not from the first one's coming, which a busy machine may have noticed late.
            assert sample.last_s >= prefilled + 7 * 0.01 - 0.002
            assert sample.good is True
            moments = [sample.due_s, sample.handed_s, sample.sent_s or 0, sample.first_s, sample.last_s]
            assert moments == sorted(moments)
            assert sum(sample.gaps) == pytest.approx(sample.last_s - sample.first_s)

    on_engine(test, SimOptions(timing=timing))


def events(*blocks: str) -> dict[str, Any]:
    return {"sim": {"events": list(blocks)}}


OUTPUT = 'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": %s}]}\n\n'
GOES_ON, FINISHES = OUTPUT % "null", OUTPUT % '"stop"'
DONE = "data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(FaultName.RESET), "connection_lost"),
        (Fault(FaultName.BAD_STATUS, status=500), "status 500 InternalServerError"),
        (Fault(FaultName.ERROR_IN_STREAM, after=2), "error_event: InternalServerError"),
        (Fault(FaultName.BROKEN_JSON, after=2), "bad_event"),
        (Fault(FaultName.BROKEN_CHUNKING, after=2), "cut_short"),
        (Fault(FaultName.DIE_AFTER, after=2, how="reset"), "cut_short"),
        (Fault(FaultName.DIE_AFTER, after=2, how="close"), "cut_short"),
        (Fault(FaultName.DIE_AFTER, after=2, how="truncate"), "cut_short"),
        (Fault(FaultName.DIE_AFTER, after=0, how="reset"), "cut_short"),
        (Fault(FaultName.HANG), "timeout"),
        (Fault(FaultName.STALL, after=2), "timeout"),
    ],
    ids=lambda value: f"{value.name}-{value.how}-{value.after}" if isinstance(value, Fault) else "",
)
def test_a_failure_is_counted_by_its_kind_and_skews_nothing(fault: Fault, kind: str) -> None:
    async def test(engine: SimEngine) -> None:
        fault.count = 3
        engine.faults.set(fault)
        timeout_s = 0.3 if kind == "timeout" else 20.0
        run = await Bench(engine.url).run(TEN, timeout_s=timeout_s)
        summary = run.summary()
        point = summary["points"][0]
        assert point["failures"] == {kind: 3}
        assert point["failure_details"][kind]
        assert point["requests"]["served"] == 7
        assert point["latency"]["ttft_s"]["count"] == point["latency"]["e2e_s"]["count"] == 7
        assert point["tokens"]["output"] == 56
        assert any("3 requests failed" in warning for warning in summary["warnings"])

    on_engine(test)


@pytest.mark.parametrize(
    "fault", [FaultName.BROKEN_JSON, FaultName.CONTENT_LENGTH, FaultName.BROKEN_CHUNKING]
)
def test_a_broken_whole_reply_is_a_failure_too(fault: FaultName) -> None:
    async def test(engine: SimEngine) -> None:
        engine.faults.set(Fault(fault, count=3))
        run = await Bench(engine.url).run(TEN, stream=False)
        point = run.summary()["points"][0]
        expected = "bad_reply" if fault is FaultName.BROKEN_JSON else "broken_reply"
        assert point["failures"] == {expected: 3}
        assert point["requests"]["served"] == 7

    on_engine(test)


@pytest.mark.parametrize(
    ("extra", "oddities"),
    [
        ({"sim": {"fault": "no_done"}}, {"no_done": 10}),
        (events(GOES_ON, FINISHES, DONE), {"no_usage": 10}),
        (events(GOES_ON, FINISHES), {"no_usage": 10, "no_done": 10}),
    ],
)
def test_an_answer_that_lacks_something_is_served_and_noted(
    extra: dict[str, Any], oddities: dict[str, int]
) -> None:
    async def test(engine: SimEngine) -> None:
        run = await Bench(engine.url).run(TEN, extra=extra)
        summary = run.summary()
        point = summary["points"][0]
        assert point["requests"]["served"] == 10
        assert point["oddities"] == oddities
        if "no_usage" in oddities:
            assert point["tokens"]["output_from"] == {"events": 10}
            assert any("number of events" in warning for warning in summary["warnings"])

    on_engine(test)


@pytest.mark.parametrize(
    ("extra", "kind"),
    [
        (events(GOES_ON), "cut_short"),
        (events(GOES_ON, "data: nonsense\n\n", DONE), "bad_event"),
        (events(DONE), "bad_event"),
    ],
)
def test_an_answer_that_is_not_one_is_a_failure(extra: dict[str, Any], kind: str) -> None:
    async def test(engine: SimEngine) -> None:
        run = await Bench(engine.url).run(TEN, extra=extra)
        assert run.summary()["points"][0]["failures"] == {kind: 10}

    on_engine(test)


def test_an_endpoint_that_is_not_there_fails_every_request_and_ends_in_time() -> None:
    async def test(engine: SimEngine) -> None:
        url = engine.url
        await engine.stop()
        bench = Bench(url)
        run = await bench.run(load(Point(rate=100.0), requests=10))
        assert run.summary()["points"][0]["failures"] == {"no_connection": 10}
        with pytest.raises(EndpointError, match="refused"):
            await Bench(url).endpoint.first_model()

    on_engine(test)


def test_a_connection_that_the_server_gives_up_between_requests_is_replaced_without_a_failure() -> None:
    body = b'{"choices": [{}], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}'
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    connections: list[asyncio.StreamWriter] = []

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await _request(reader)
        writer.write(reply)
        # The next request crosses the closing of the connection.
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionResetError):
            await _request(reader)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        connections.remove(writer)

    async def main() -> None:
        server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        run = await Bench(f"http://127.0.0.1:{port}").run(TEN, stream=False)
        await eventually(lambda: not connections, "every connection closed")
        server.close()
        assert run.summary()["points"][0]["requests"]["served"] == 10

    uvloop.run(main())


async def _request(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().split(b"content-length:")[1].split()[0]))


def test_https_with_a_key_of_ones_own_and_headers() -> None:
    async def test(engine: SimEngine) -> None:
        run = await Bench(engine.url, ca_file=CERTIFICATE, api_key="secret").run(TEN)
        assert run.summary()["points"][0]["requests"]["served"] == 10
        assert (await Bench(engine.url, ca_file=CERTIFICATE).run(TEN)).summary()["points"][0]["statuses"] == {
            "401": 10
        }
        untrusted = await Bench(engine.url, api_key="secret").run(TEN)
        assert untrusted.summary()["points"][0]["failures"] == {"no_connection": 10}

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    on_engine(test, SimOptions(tls=context, api_key="secret"))


def refusing(**serving: Any) -> Any:
    return {"serving": {"prefill_concurrency": 1, "queue_capacity": 0, **serving}}


SLOW = SimOptions(timing=Timing(prefill=Curve(c=0.02), interval=Interval(base=0.0005)))


def test_refusals_are_counted_by_the_envelopes_code() -> None:
    async def test(where: Routed) -> None:
        run = await Bench(where.url).run(load(Point(rate=1000.0), requests=20), targets=Targets(60.0))
        point = run.summary()["points"][0]
        requests = point["requests"]
        assert requests["refused"] == where.counts["rejected"] > 0
        assert requests["served"] == where.counts["served"] == requests["good"] > 0
        assert point["refusals"] == {"429 queue_full": requests["refused"]}
        assert point["refusal_details"]["429 queue_full"]

    on_router(test, options=SLOW, **refusing())


def test_a_refused_request_comes_again_after_the_time_it_was_told_and_has_waited_since_it_was_due() -> None:
    async def test(where: Routed) -> None:
        run = await Bench(where.url).run(load(Point(rate=1000.0), requests=3), retries=20)
        point = run.summary()["points"][0]
        assert point["requests"]["served"] == 3
        assert point["requests"]["refused"] == 0
        assert point["retried"] == where.counts["rejected"] > 0
        for sample in run.samples:
            # Retry-After is one second; a timer may be a millisecond early.
            assert (sample.ttft_s or 0) >= 0.998 * sample.refusals.total()

    on_router(test, options=SLOW, **refusing())


def test_an_interrupted_run_has_the_figures_of_what_was_measured() -> None:
    async def test(engine: SimEngine) -> None:
        bench = Bench(engine.url)
        under_way = asyncio.create_task(
            bench.run(load(Point(rate=200.0), Point(rate=300.0), duration_s=60.0, rounds=3))
        )
        await eventually(lambda: sum(s.outcome is Outcome.SERVED for s in bench.samples) >= 5)
        # One more is under way, for as long as it takes.
        engine.faults.set(Fault(FaultName.HANG))
        await eventually(lambda: engine.stats.active > 0)
        assert bench.runner is not None
        bench.runner.stop()
        run = await under_way
        summary = run.summary()
        requests = summary["points"][0]["requests"]
        assert len(summary["points"]) == 1
        assert requests["served"] >= 5
        assert requests["unfinished"] >= 1
        assert requests["failed"] == 0
        assert requests["sent"] == requests["served"] + requests["unfinished"] == len(bench.samples)
        assert summary["points"][0]["latency"]["ttft_s"]["count"] == requests["served"]
        assert "ended early" in summary["warnings"][0]

    on_engine(test)


def test_a_limit_on_connections_is_kept_and_whoever_waits_for_one_has_waited() -> None:
    async def test(engine: SimEngine) -> None:
        run = await Bench(engine.url).run(load(Point(rate=1000.0), requests=10), connections=2)
        assert engine.stats["whole"].peak <= 2
        samples = sorted(run.samples, key=lambda sample: sample.due_s)
        assert all(sample.outcome is Outcome.SERVED for sample in samples)
        ends = sorted(sample.ended_s or 0 for sample in samples)
        for number, sample in enumerate(samples[2:]):
            # It could not be sent before some earlier one had ended, and its wait counts.
            assert (sample.sent_s or 0) >= ends[number] - 1e-4
            assert (sample.ttft_s or 0) >= (sample.sent_s or 0) - sample.due_s

    on_engine(test, SLOW)


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("http://a:1", "http://a:1"),
        ("http://a:1/v1/", "http://a:1"),
        ("https://a/x/v1", "https://a:443/x"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_a_base_url_may_end_in_v1(text: str, base: str) -> None:
    assert str(read_url(text)) == base


@pytest.mark.parametrize("text", ["", "a:1", "ftp://a", "http://", "http://a:99999", "http://a?x=1"])
def test_what_is_no_base_url_is_turned_down(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: http"):
        read_url(text)


def test_a_run_ended_in_the_warm_up_of_a_round_has_the_figures_of_those_before() -> None:
    async def test(engine: SimEngine) -> None:
        bench = Bench(engine.url)
        of = load(Point(rate=200.0), duration_s=0.2, warmup_s=0.1, rounds=9, pattern="constant")
        under_way = asyncio.create_task(bench.run(of))
        await eventually(lambda: any(s.round == 1 and not s.measured for s in bench.samples))
        assert bench.runner is not None
        bench.runner.stop()
        run = await under_way
        point = run.summary()["points"][0]
        if not any(sample.round == 1 and sample.measured for sample in run.samples):
            assert point["rounds"] == 1
        assert point["rates"]["offered_per_s"]["value"] == pytest.approx(200, rel=0.05)

    on_engine(test)
