"""Each fault does to the client what its description says, and nothing worse."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import orjson
import pytest
import uvloop

from narwhal.sim import Fault, FaultName, SimEngine, SimOptions, expected_output
from tests.http.sim_client import Answer, Client, ask
from tests.http.test_sim_engine import CHAT, COMPLETIONS, PREFILL, body_for, on_engine, until

RUNS = [asyncio.run, uvloop.run]


async def stream(engine: SimEngine, fault: Any, path: str = CHAT, **more: Any) -> Answer:
    """A stream of four output events with a fault in it."""
    body = body_for(path, max_tokens=4, stream=True, return_token_ids=True, sim={"fault": fault})
    return await ask(engine.url, "POST", path, body, **more)


async def prefill(engine: SimEngine, fault: Any, **more: Any) -> Answer:
    body = body_for(CHAT, max_tokens=1, kv_transfer_params=PREFILL, sim={"fault": fault})
    return await ask(engine.url, "POST", CHAT, body, **more)


def whole_events(answer: Answer) -> int:
    """Output events that came in full."""
    count = 0
    for block in answer.blocks:
        with contextlib.suppress(orjson.JSONDecodeError):
            choices = orjson.loads(block).get("choices") or [{}]
            count += bool(choices[0].get("delta", {}).get("content"))
    return count


@pytest.mark.parametrize("how", ["reset", "close", "truncate"])
@pytest.mark.parametrize("after", [0, 2, 4])
@pytest.mark.parametrize("run", RUNS)
def test_dying_after_some_events_cuts_the_stream_there(
    run: Callable[..., None], how: str, after: int
) -> None:
    async def main() -> None:
        engine = SimEngine()
        await engine.start()
        answer = await stream(engine, {"name": "die_after", "after": after, "how": how})
        assert answer.ended == ("reset" if how == "reset" else "cut")
        assert (answer.status, whole_events(answer)) == (200, after)
        assert b"[DONE]" not in answer.body
        assert (how == "truncate") == (not answer.body.endswith(b"\n\n") and answer.body != b"")
        assert engine.stats["whole"].failed == 1
        await engine.stop()

    run(main())


def test_an_error_in_the_stream_comes_after_the_events_that_went_well() -> None:
    async def test(engine: SimEngine) -> None:
        answer = await stream(engine, {"name": "error_in_stream", "after": 2, "status": 503})
        assert (answer.status, answer.ended, whole_events(answer)) == (200, "whole", 2)
        assert answer.events[-1]["error"]["code"] == 503

    on_engine(test)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ids_missing", ...), ("ids_null", None), ("ids_boolean", [True]), ("ids_negative", [-1]),
        ("ids_float", [7.0]), ("ids_string", ["7"]), ("ids_nested", [[7]]), ("ids_too_large", [2**31]),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("path", "opening"), [(CHAT, 1), (COMPLETIONS, 0)])
def test_false_ids_come_from_the_event_asked_for_on(name: str, value: Any, path: str, opening: int) -> None:
    async def test(engine: SimEngine) -> None:
        answer = await stream(engine, {"name": name, "after": 2}, path)
        ids = [event["choices"][0].get("token_ids", ...) for event in answer.events[opening:]]
        true = expected_output(body_for(path, max_tokens=4))[0]
        assert ids == [[true[0]], [true[1]], value, value]
        assert (
            [type(entry) for entry in ids[3] or []] == [type(entry) for entry in value or []]
            if value is not ...
            else True
        )

    on_engine(test)


def test_broken_json_breaks_one_event_or_the_reply_and_not_the_framing() -> None:
    async def test(engine: SimEngine) -> None:
        answer = await stream(engine, {"name": "broken_json", "after": 1})
        assert answer.ended == "whole"
        assert whole_events(answer) == 3
        reply = await prefill(engine, "broken_json")
        assert reply.ended == "whole"
        with pytest.raises(orjson.JSONDecodeError):
            reply.json()

    on_engine(test)


def test_broken_chunking_is_no_http() -> None:
    async def test(engine: SimEngine) -> None:
        answer = await stream(engine, {"name": "broken_chunking", "after": 2})
        assert (answer.ended, whole_events(answer)) == ("malformed", 2)
        assert (await prefill(engine, "broken_chunking")).ended == "malformed"

    on_engine(test)


def test_done_can_be_missing_or_followed_by_output() -> None:
    async def test(engine: SimEngine) -> None:
        answer = await stream(engine, "no_done")
        assert (answer.ended, whole_events(answer), b"[DONE]" in answer.body) == ("whole", 4, False)
        answer = await stream(engine, "output_after_done")
        assert answer.blocks[-2] == b"[DONE]"
        assert orjson.loads(answer.blocks[-1])["choices"][0]["delta"]["content"]

    on_engine(test)


def test_a_handoff_can_be_missing_or_of_an_engine_that_is_gone() -> None:
    async def test(engine: SimEngine) -> None:
        assert (await prefill(engine, "no_handoff")).json()["kv_transfer_params"] is None
        handoff = (await prefill(engine, "gone_handoff")).json()["kv_transfer_params"]
        body = body_for(CHAT, stream=True, kv_transfer_params=handoff)
        assert (await ask(engine.url, "POST", CHAT, body)).events[-1]["error"]["code"] == 500

    on_engine(test, gone_handoff_s=0.01)


def test_byte_at_a_time_and_huge_events_change_nothing_else() -> None:
    async def test(engine: SimEngine) -> None:
        client = await Client.connect(engine.url)
        for fault in ("byte_at_a_time", {"name": "huge_event", "size": 300_000, "after": 1}):
            body = body_for(CHAT, max_tokens=4, stream=True, sim={"fault": fault})
            answer = await client.ask("POST", CHAT, body)
            assert (answer.ended, whole_events(answer), answer.blocks[-1]) == ("whole", 4, b"[DONE]")
            assert (len(answer.body) > 300_000) == (fault != "byte_at_a_time")
        await client.close()
        assert len((await prefill(engine, {"name": "huge_event", "size": 5000})).body) > 5000

    on_engine(test)


def test_bytes_written_one_at_a_time_arrive_in_many_reads() -> None:
    async def test(engine: SimEngine) -> None:
        client = await Client.connect(engine.url)
        engine.faults.set("byte_at_a_time")
        client.writer.write(
            b'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 14\r\n\r\n{"prompt":"a"}'
        )
        sizes = [len(await client.reader.read(100)) for _ in range(20)]
        assert max(sizes) < 100
        assert sum(sizes) < 200
        await client.close()
        await until(lambda: engine.stats.connections == 0)

    on_engine(test)


def test_a_reply_can_be_shorter_than_it_says() -> None:
    async def test(engine: SimEngine) -> None:
        answer = await prefill(engine, {"name": "content_length", "size": 7})
        assert answer.ended == "cut"
        assert int(answer.headers["content-length"]) == len(answer.body) + 7

    on_engine(test)


def test_a_prefill_reply_can_end_amid_its_body() -> None:
    async def test(engine: SimEngine) -> None:
        assert (await prefill(engine, "die_after")).ended == "reset"
        assert (await prefill(engine, {"name": "die_after", "how": "close"})).ended == "cut"
        assert engine.stats["prefill"].failed == 2

    on_engine(test)


def test_a_hanging_engine_holds_the_request_until_the_client_leaves() -> None:
    async def test(engine: SimEngine) -> None:
        for answer in (await stream(engine, "hang", wait_s=0.05), await prefill(engine, "hang", wait_s=0.05)):
            assert (answer.status, answer.ended) == (0, "silent")
        await until(lambda: engine.stats["whole"].aborted == engine.stats["prefill"].aborted == 1)

    on_engine(test)


def test_a_stall_is_silence_amid_the_stream_and_can_end() -> None:
    async def test(engine: SimEngine) -> None:
        answer = await stream(engine, {"name": "stall", "after": 2}, wait_s=0.1)
        assert (answer.ended, whole_events(answer)) == ("silent", 2)
        answer = await stream(engine, {"name": "stall", "after": 2, "seconds": 0.05})
        assert (answer.ended, whole_events(answer)) == ("whole", 4)
        assert (await prefill(engine, {"name": "stall", "seconds": 0.01})).json()["kv_transfer_params"]

    on_engine(test)


def test_a_slow_first_token_leaves_the_head_in_time() -> None:
    async def test(engine: SimEngine) -> None:
        answer = await stream(engine, {"name": "slow_first_token", "seconds": 60}, wait_s=0.1)
        assert (answer.status, answer.ended, answer.body) == (200, "silent", b"")
        answer = await stream(engine, {"name": "slow_first_token", "seconds": 0.01})
        assert whole_events(answer) == 4

    on_engine(test)


def test_a_bad_status_has_an_error_body_and_keeps_the_connection() -> None:
    async def test(engine: SimEngine) -> None:
        client = await Client.connect(engine.url)
        answer = await client.ask(
            "POST", CHAT, body_for(CHAT, sim={"fault": {"name": "bad_status", "status": 503}})
        )
        assert (answer.status, answer.json()["error"]["code"]) == (503, 503)
        assert (await client.ask("POST", CHAT, body_for(CHAT))).status == 200
        await client.close()

    on_engine(test)


@pytest.mark.parametrize("run", RUNS)
def test_a_reset_comes_before_the_reply_or_on_accept(run: Callable[..., None]) -> None:
    async def main() -> None:
        engine = SimEngine()
        await engine.start()
        assert (await stream(engine, "reset")).ended == "reset"
        engine.faults.set(Fault(FaultName.RESET, at="accept", count=1))
        client = await Client.connect(engine.url)
        with pytest.raises(ConnectionResetError):
            await client.reader.readexactly(1)
        await client.close()
        assert (await ask(engine.url, "GET", "/health")).status == 200
        await engine.stop()

    run(main())


@pytest.mark.parametrize("run", RUNS)
def test_a_refusing_engine_listens_again_when_the_fault_is_lifted(run: Callable[..., None]) -> None:
    async def main() -> None:
        engine = SimEngine()
        await engine.start()
        idle = await Client.connect(engine.url)
        assert (await idle.ask("GET", "/health")).status == 200
        engine.faults.set("refuse")
        assert await idle.reader.read() == b""
        await idle.close()
        with pytest.raises(ConnectionRefusedError):
            await Client.connect(engine.url)
        engine.faults.set()
        assert (await ask(engine.url, "GET", "/health")).status == 200
        for fault in (("refuse",), (), ("refuse",), (), ()):  # in one go: the last word counts
            engine.faults.set(*fault)
        assert (await ask(engine.url, "GET", "/health")).status == 200
        engine.faults.set(Fault(FaultName.REFUSE, seconds=0.01), "no_done")
        async with asyncio.timeout(5):
            while True:
                with contextlib.suppress(ConnectionRefusedError):
                    await ask(engine.url, "GET", "/health")
                    break
                await asyncio.sleep(0.002)
        assert [fault.name for fault in engine.faults] == ["no_done"]
        await engine.stop()
        engine.faults.set("refuse")
        engine.faults.set()
        with pytest.raises(ConnectionRefusedError):
            await Client.connect(engine.url)

    run(main())


def test_an_engines_fault_strikes_the_leg_and_the_number_of_requests_it_is_for() -> None:
    async def test(engine: SimEngine) -> None:
        engine.faults.set(Fault(FaultName.BAD_STATUS, leg="decode", count=2, status=502))
        whole = body_for(CHAT)
        statuses = []
        for body in (whole | {"kv_transfer_params": PREFILL, "max_tokens": 1}, whole, whole, whole):
            statuses.append((await ask(engine.url, "POST", CHAT, body)).status)
        assert statuses == [200, 502, 502, 200]

    on_engine(test)


def test_a_fault_by_chance_strikes_the_same_requests_for_the_same_seed() -> None:
    async def statuses(seed: int) -> list[int]:
        engine = SimEngine(SimOptions(seed=seed))
        await engine.start()
        engine.faults.set(Fault(FaultName.BAD_STATUS, probability=0.5))
        client = await Client.connect(engine.url)
        told = [(await client.ask("POST", CHAT, body_for(CHAT, max_tokens=1))).status for _ in range(30)]
        await client.close()
        await engine.stop()
        return told

    first = uvloop.run(statuses(1))
    assert set(first) == {200, 500}
    assert uvloop.run(statuses(1)) == first
    assert uvloop.run(statuses(2)) != first


def test_faults_are_set_and_read_over_http() -> None:
    async def test(engine: SimEngine) -> None:
        told = await ask(engine.url, "POST", "/sim/faults", [{"name": "unhealthy", "status": 503}, "no_done"])
        assert [fault["name"] for fault in told.json()] == ["unhealthy", "no_done"]
        assert (await ask(engine.url, "GET", "/sim/faults")).json() == told.json()
        assert (await ask(engine.url, "GET", "/health")).status == 503
        for wrong in ("none such", {"name": "hang", "color": 1}, {"name": "hang", "after": -1}, 7):
            answer = await ask(engine.url, "POST", "/sim/faults", wrong)
            assert answer.status == 400
            assert answer.json()["error"]["message"]
        assert [fault.name for fault in engine.faults] == ["unhealthy", "no_done"]
        await ask(engine.url, "POST", "/sim/faults", [])
        assert (await ask(engine.url, "GET", "/health")).status == 200

    on_engine(test)


def test_a_stream_can_be_given_word_for_word() -> None:
    async def test(engine: SimEngine) -> None:
        events = [": hello\n\n", "data: {}\r\n\r", "\ndata: [DONE]\n\n"]
        answer = await ask(engine.url, "POST", CHAT, body_for(CHAT, stream=True, sim={"events": events}))
        assert answer.body == "".join(events).encode()

    on_engine(test)
