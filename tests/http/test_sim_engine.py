"""What a simulated engine answers, over sockets: as vLLM would, and always what can be told beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import repeat
from typing import Any

import pytest
import uvloop

from narwhal.config import parse
from narwhal.sim import Curve, Interval, SimEngine, SimFleet, SimOptions, Timing, expected_output
from tests.http.sim_client import Answer, Client, ask, message

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


def body_for(path: str, **more: Any) -> dict[str, Any]:
    prompt = "How big is a narwhal? 🐋"
    what = {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    return {"model": "sim-model", **what, "max_tokens": 12, **more}


def on_engine(test: Callable[[SimEngine], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run a test on one engine."""

    async def run() -> None:
        engine = SimEngine(SimOptions(**options))
        await engine.start()
        try:
            await test(engine)
        finally:
            await engine.stop()
        assert engine.stats.active == engine.stats.connections == 0

    uvloop.run(run())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        for pause in repeat(0.001):
            if condition():
                return
            await asyncio.sleep(pause)


async def split(fleet: SimFleet, path: str, body: dict[str, Any], **more: Any) -> Answer:
    """A request's two legs, as a router would run them."""
    first = await ask(fleet["p0"].url, "POST", path, body | {"max_tokens": 1, "kv_transfer_params": PREFILL})
    handoff = first.json()["kv_transfer_params"]
    decode = {"kv_transfer_params": handoff, "stream": True, "return_token_ids": True, **more}
    return await ask(fleet["d0"].url, "POST", path, body | decode)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize(("path", "text"), [(CHAT, "content"), (COMPLETIONS, "text")])
def test_split_and_unsplit_runs_give_the_output_that_was_foretold(
    run: Callable[[Coroutine[Any, Any, None]], None], path: str, text: str
) -> None:
    async def main() -> None:
        async with SimFleet(prefill=1, decode=1, both=1) as fleet:
            body = body_for(path, seed=3)
            ids, words = expected_output(body)
            apart = await split(fleet, path, body)
            together = await ask(
                fleet["b0"].url, "POST", path, body | {"stream": True, "return_token_ids": True}
            )
            whole = (await ask(fleet["b0"].url, "POST", path, body)).json()["choices"][0]
            assert apart.token_ids == together.token_ids == ids
            assert len(ids) == 12
            assert apart.joined(text) == together.joined(text) == words
            assert (whole["message"]["content"] if path == CHAT else whole["text"]) == words
            assert ids != expected_output(body | {"seed": 4})[0]
            assert fleet["p0"].stats["prefill"].finished == fleet["d0"].stats["decode"].finished == 1
            assert fleet["d0"].stats.prompt_tokens == 0
            assert fleet["p0"].stats.handoffs_held == 0

    run(main())


def test_a_handoff_used_twice_is_answered_with_wrong_tokens_and_counted() -> None:
    async def main() -> None:
        async with SimFleet(prefill=1, decode=1) as fleet:
            body = body_for(CHAT, stream=True, return_token_ids=True)
            first = await ask(
                fleet["p0"].url, "POST", CHAT, body_for(CHAT, max_tokens=1, kv_transfer_params=PREFILL)
            )
            body["kv_transfer_params"] = first.json()["kv_transfer_params"]
            good = await ask(fleet["d0"].url, "POST", CHAT, body)
            again = await ask(fleet["d0"].url, "POST", CHAT, body)
            assert good.token_ids == expected_output(body)[0]
            assert again.ended == "whole"
            assert again.token_ids != good.token_ids
            assert fleet["p0"].stats.handoffs_taken == fleet["p0"].stats.handoffs_spoiled == 1

    uvloop.run(main())


def test_a_handoff_of_another_prompt_gives_wrong_tokens() -> None:
    async def main() -> None:
        async with SimFleet(prefill=1, decode=1) as fleet:
            other = {"prompt": "Something else", "max_tokens": 1, "kv_transfer_params": PREFILL}
            first = await ask(fleet["p0"].url, "POST", COMPLETIONS, other)
            body = body_for(COMPLETIONS, stream=True, return_token_ids=True)
            body["kv_transfer_params"] = first.json()["kv_transfer_params"]
            assert (await ask(fleet["d0"].url, "POST", COMPLETIONS, body)).token_ids != expected_output(body)[
                0
            ]
            assert fleet["p0"].stats.handoffs_spoiled == 1

    uvloop.run(main())


def test_a_producer_that_has_stopped_means_silence_and_then_an_error_in_the_stream() -> None:
    async def main() -> None:
        async with SimFleet(prefill=1, decode=1, options=SimOptions(gone_handoff_s=0.1)) as fleet:
            first = await ask(
                fleet["p0"].url, "POST", CHAT, body_for(CHAT, max_tokens=1, kv_transfer_params=PREFILL)
            )
            await fleet["p0"].stop()
            started = asyncio.get_running_loop().time()
            handoff = first.json()["kv_transfer_params"]
            answer = await ask(
                fleet["d0"].url, "POST", CHAT, body_for(CHAT, kv_transfer_params=handoff, stream=True)
            )
            assert asyncio.get_running_loop().time() - started >= 0.09
            assert answer.status == 200
            assert answer.blocks[-1] == b"[DONE]"
            assert answer.events[-1]["error"]["code"] == 500
            assert fleet["d0"].stats["decode"].failed == 1
            await fleet["p0"].start()

    uvloop.run(main())


OUTPUTS = [["text"], ["reasoning", "text"], ["refusal"], ["text", "tool_calls"], ["function_call"]]


@pytest.mark.parametrize("output", OUTPUTS, ids="-".join)
@pytest.mark.parametrize("tokens_per_event", [1, 3])
def test_a_streamed_chat_adds_up_to_the_whole_response(output: list[str], tokens_per_event: int) -> None:
    sim = {"output": output, "output_tokens": 17, "tool_calls": 2, "tokens_per_event": tokens_per_event}
    body = body_for(CHAT, max_tokens=100, sim=sim, return_token_ids=True, logprobs=True, top_logprobs=2)

    async def test(engine: SimEngine) -> None:
        whole = (await ask(engine.url, "POST", CHAT, body)).json()
        choice, message = whole["choices"][0], whole["choices"][0]["message"]
        stream = await ask(
            engine.url, "POST", CHAT, body | {"stream": True, "stream_options": {"include_usage": True}}
        )
        for key in ("content", "reasoning", "refusal"):
            assert stream.joined(key) == (message[key] or "")
        choices = [event["choices"][0] for event in stream.events[:-1]]
        calls: dict[int, dict[str, str]] = {}
        function: dict[str, str] | None = None
        for delta in (entry["delta"] for entry in choices):
            for call in delta.get("tool_calls", []):
                known = calls.setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
                known["id"] += call.get("id", "")
                for key, value in call["function"].items():
                    known[key] += value
            for key, value in delta.get("function_call", {}).items():
                function = function or {"name": "", "arguments": ""}
                function[key] += value
        assert list(calls.values()) == [
            {"id": c["id"], **c["function"]} for c in message.get("tool_calls", [])
        ]
        assert len(calls) == (2 if "tool_calls" in output else 0)
        assert function == message["function_call"]
        assert stream.token_ids == choice["token_ids"] == expected_output(body)[0]
        logprobs = [entry for c in choices for entry in (c["logprobs"] or {"content": []})["content"]]
        assert logprobs == choice["logprobs"]["content"]
        assert choices[-1]["finish_reason"] == choice["finish_reason"]
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert [stream.events[-1]["usage"][key] for key in counts] == [whole["usage"][key] for key in counts]
        assert whole["usage"]["completion_tokens"] == 17

    on_engine(test)


def test_streamed_completion_logprobs_add_up_to_the_whole_response() -> None:
    async def test(engine: SimEngine) -> None:
        body = body_for(COMPLETIONS, logprobs=2)
        whole = (await ask(engine.url, "POST", COMPLETIONS, body)).json()["choices"][0]["logprobs"]
        stream = await ask(engine.url, "POST", COMPLETIONS, body | {"stream": True})
        parts = [event["choices"][0]["logprobs"] for event in stream.events]
        assert {key: [entry for part in parts for entry in part[key]] for key in whole} == whole

    on_engine(test)


def test_a_character_split_over_tokens_comes_with_the_token_that_completes_it() -> None:
    async def test(engine: SimEngine) -> None:
        text = "a🐋b日本 x"
        for ids in (True, False):
            body = body_for(CHAT, max_tokens=99, stream=True, return_token_ids=ids, sim={"text": text})
            answer = await ask(engine.url, "POST", CHAT, body)
            assert answer.joined("content") == text
            assert [e for e in answer.events if e["choices"][0]["delta"] == {} and ids] != [] or not ids
            assert answer.token_ids == (expected_output(body)[0] if ids else [])

    on_engine(test)


def test_chat_events_have_their_ids_where_vllm_has_them() -> None:
    async def test(engine: SimEngine) -> None:
        body = body_for(CHAT, max_tokens=2, stream=True, return_token_ids=True)
        first, second, last, usage = (
            await ask(engine.url, "POST", CHAT, body | {"stream_options": {"include_usage": True}})
        ).events
        assert first["choices"] == [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
        ]
        assert list(first) == [
            "id",
            "object",
            "created",
            "model",
            "choices",
            "prompt_token_ids",
            "prompt_text",
        ]
        assert len(first["prompt_token_ids"]) == usage["usage"]["prompt_tokens"]
        assert list(second["choices"][0]) == ["index", "delta", "logprobs", "finish_reason", "token_ids"]
        assert list(last["choices"][0])[3:] == ["finish_reason", "stop_reason", "token_ids"]
        assert last["choices"][0]["finish_reason"] == "length"
        assert usage["choices"] == []
        without = (await ask(engine.url, "POST", CHAT, body | {"return_token_ids": False})).events
        assert without[0]["prompt_token_ids"] is without[1]["choices"][0]["token_ids"] is None
        assert len(without) == 3

    on_engine(test)


def test_completion_events_have_their_ids_where_vllm_has_them() -> None:
    async def test(engine: SimEngine) -> None:
        body = {"prompt": [5, 6, 7], "max_tokens": 2, "stream": True, "return_token_ids": True}
        first, last = (await ask(engine.url, "POST", COMPLETIONS, body)).events
        names = ["index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids"]
        assert list(first["choices"][0]) == names
        assert first["choices"][0]["prompt_token_ids"] == [5, 6, 7]
        assert last["choices"][0]["prompt_token_ids"] is None
        assert last["choices"][0]["finish_reason"] == "length"

    on_engine(test)


def test_a_prefill_leg_is_answered_with_a_handoff_and_other_requests_are_not() -> None:
    async def test(engine: SimEngine) -> None:
        body = body_for(CHAT, max_tokens=1)
        handoff = (await ask(engine.url, "POST", CHAT, body | {"kv_transfer_params": PREFILL})).json()
        assert handoff["kv_transfer_params"]["do_remote_prefill"] is True
        assert handoff["kv_transfer_params"]["do_remote_decode"] is False
        assert handoff["kv_transfer_params"]["remote_engine_id"] == engine.producer.engine_id
        assert handoff["usage"]["completion_tokens"] == 1
        assert (await ask(engine.url, "POST", CHAT, body)).json()["kv_transfer_params"] is None

    on_engine(test)


def test_the_model_stops_by_itself_with_a_token_that_has_no_text() -> None:
    async def test(engine: SimEngine) -> None:
        body = body_for(COMPLETIONS, stream=True, return_token_ids=True, sim={"output_tokens": 3})
        last = (await ask(engine.url, "POST", COMPLETIONS, body)).events[-1]["choices"][0]
        assert (last["finish_reason"], last["text"], len(last["token_ids"])) == ("stop", "", 1)
        body["sim"] |= {"finish_reason": "content_filter", "stop_reason": "x"}
        last = (await ask(engine.url, "POST", COMPLETIONS, body)).events[-1]["choices"][0]
        assert (last["finish_reason"], last["stop_reason"]) == ("content_filter", "x")

    on_engine(test)


def test_a_decode_engine_tells_what_prefill_found_cached_only_if_the_handoff_says() -> None:
    async def cached(told: bool) -> int:
        options = SimOptions(prompt_tokens_details=True, hands_over_cached_tokens=told)
        async with SimFleet(prefill=1, decode=1, options=options) as fleet:
            body = body_for(CHAT, sim={"cached_tokens": 4})
            answer = await split(fleet, CHAT, body, stream_options={"include_usage": True})
            details: dict[str, int] = answer.events[-1]["usage"]["prompt_tokens_details"]
            assert answer.events[-1]["usage"]["prompt_tokens"] > 4
            return details["cached_tokens"] - (0 if told else answer.events[-1]["usage"]["prompt_tokens"])

    assert uvloop.run(cached(True)) == 4
    assert uvloop.run(cached(False)) == 0


def test_what_vllm_turns_down_is_turned_down_with_its_status_and_body() -> None:
    async def test(engine: SimEngine) -> None:
        for path, body, status, param in (
            (CHAT, b"{", 400, "body"),
            (CHAT, {"messages": []}, 400, "messages"),
            (CHAT, body_for(CHAT, model="other"), 404, "model"),
            (CHAT, body_for(CHAT, max_tokens=0), 400, "max_tokens"),
            (CHAT, body_for(CHAT, max_tokens=99_999), 400, "input_tokens"),
            (COMPLETIONS, {"prompt": ["a", "b"]}, 400, "prompt"),
            (COMPLETIONS, body_for(COMPLETIONS, sim={"tokens": 1}), 400, "sim"),
            (COMPLETIONS, body_for(COMPLETIONS, sim={"fault": "none such"}), 400, "sim"),
            (COMPLETIONS, body_for(COMPLETIONS, sim={"fault": "refuse"}), 400, "sim"),
        ):
            answer = await ask(engine.url, "POST", path, body)
            assert (answer.status, answer.json()["error"]["code"]) == (status, status)
            assert answer.json()["error"]["param"] == param
        assert (await ask(engine.url, "GET", "/nowhere")).status == 404
        assert (await ask(engine.url, "GET", CHAT)).status == 405

    on_engine(test, max_model_len=1000)


def test_a_prefill_engine_serves_no_decode_leg_and_the_reverse() -> None:
    async def main() -> None:
        async with SimFleet(prefill=1, decode=1) as fleet:
            body = body_for(CHAT, max_tokens=1, kv_transfer_params=PREFILL)
            handoff = (await ask(fleet["p0"].url, "POST", CHAT, body)).json()["kv_transfer_params"]
            assert (await ask(fleet["d0"].url, "POST", CHAT, body)).status == 400
            decode = body_for(CHAT, kv_transfer_params=handoff)
            assert (await ask(fleet["p0"].url, "POST", CHAT, decode)).status == 400
            assert (await ask(fleet["p0"].url, "POST", CHAT, body_for(CHAT))).status == 200

    uvloop.run(main())


def test_the_other_routes_answer_as_vllm_does() -> None:
    async def test(engine: SimEngine) -> None:
        assert (await ask(engine.url, "GET", "/health")).status == 200
        assert (await ask(engine.url, "GET", "/version")).json() == {"version": "0.32.0"}
        (model,) = (await ask(engine.url, "GET", "/v1/models")).json()["data"]
        assert (model["id"], model["max_model_len"]) == ("m", 131072)
        body = {"messages": [{"role": "user", "content": "hello"}]}
        counted = (await ask(engine.url, "POST", "/tokenize", body)).json()
        usage = (await ask(engine.url, "POST", CHAT, body)).json()["usage"]
        assert counted["count"] == len(counted["tokens"]) == usage["prompt_tokens"]
        metrics = (await ask(engine.url, "GET", "/metrics")).body.decode().splitlines()
        assert 'vllm:num_requests_running{engine="0",model_name="m"} 0.0' in metrics
        assert 'sim:requests_finished_total{leg="whole"} 1.0' in metrics
        assert any(line.startswith("process_start_time_seconds ") for line in metrics)

    on_engine(test, model="m")


def test_an_engine_with_an_api_key_asks_for_it() -> None:
    async def test(engine: SimEngine) -> None:
        assert (await ask(engine.url, "GET", "/v1/models")).status == 401
        assert (
            await ask(engine.url, "GET", "/v1/models", headers={"authorization": "Bearer secret"})
        ).status == 200
        assert (await ask(engine.url, "GET", "/health")).status == 200

    on_engine(test, api_key="secret")


def test_requests_are_kept_as_they_came_for_tests_to_look_at() -> None:
    async def test(engine: SimEngine) -> None:
        raw = b'{"prompt": "x",  "big": 123456789012345678901234567890, "max_tokens": 1}'
        client = await Client.connect(engine.url)
        for number in ("one", "two"):
            assert (
                await client.ask("POST", COMPLETIONS, raw, headers={"x-request-id": number})
            ).status == 200
        await client.close()
        assert [seen.body for seen in engine.requests] == [raw, raw]
        assert [seen.header("x-request-id") for seen in engine.requests] == ["one", "two"]
        assert len({seen.connection for seen in engine.requests}) == 1

    on_engine(test)


def test_chunked_bodies_pipelining_and_expect_continue_are_served() -> None:
    async def test(engine: SimEngine) -> None:
        client = await Client.connect(engine.url)
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\n".encode()
        chunked = b'transfer-encoding: chunked\r\n\r\n5\r\n{"pro\r\nb\r\nmpt":"abc"}\r\n0\r\n\r\n'
        client.writer.write(head + chunked + message("GET", "/version"))
        assert (await client.read()).json()["object"] == "text_completion"
        assert (await client.read()).json() == {"version": "0.32.0"}
        body = b'{"prompt":"abc"}'
        client.writer.write(head + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(body))
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(body)
        assert (await client.read()).status == 200
        await client.close()

    on_engine(test)


@pytest.mark.parametrize("stage", ["prefill", "decode", "whole reply"])
def test_a_client_that_leaves_aborts_its_request_at_any_stage(stage: str) -> None:
    slow = Timing(prefill=Curve(c=60.0 if stage == "prefill" else 0.0), interval=Interval(0.001))

    async def test(engine: SimEngine) -> None:
        client = await Client.connect(engine.url)
        body = body_for(COMPLETIONS, stream=stage != "whole reply", max_tokens=5000)
        client.writer.write(message("POST", COMPLETIONS, body))
        await until(
            lambda: engine.stats.active == 1 and (stage == "prefill" or engine.stats.generated_tokens > 3)
        )
        await client.close()
        await until(lambda: engine.stats["whole"].aborted == 1)
        assert engine.stats.active == engine.batch.running == engine.batch.waiting == 0

    on_engine(test, timing=slow)


def test_a_stream_that_is_not_read_stands_still_and_goes_on_when_it_is_read() -> None:
    async def test(engine: SimEngine) -> None:
        client = await Client.connect(engine.url)
        body = body_for(
            COMPLETIONS, stream=True, max_tokens=30, sim={"events": ["data: " + "x" * 400_000 + "\n\n"] * 20}
        )
        client.writer.write(message("POST", COMPLETIONS, body))
        await until(lambda: engine.stats.pauses > 0)
        assert engine.stats["whole"].active == 1
        answer = await client.read()
        assert len(answer.blocks) == 20
        await client.close()
        assert engine.stats["whole"].finished == 1

    on_engine(test)


def test_three_hundred_streams_at_once_all_get_their_own_tokens() -> None:
    async def main() -> None:
        options = SimOptions(timing=Timing(prefill=Curve(c=0.0001), interval=Interval(0.002)))
        async with SimFleet(prefill=2, decode=2, options=options) as fleet:

            async def one(number: int) -> None:
                path = (CHAT, COMPLETIONS)[number % 2]
                body = body_for(path, seed=number, max_tokens=20, stream=False)
                prefill, decode = fleet[f"p{number % 2}"].url, fleet[f"d{number // 2 % 2}"].url
                first = await ask(
                    prefill, "POST", path, body | {"max_tokens": 1, "kv_transfer_params": PREFILL}
                )
                body |= {"kv_transfer_params": first.json()["kv_transfer_params"], "stream": True}
                answer = await ask(decode, "POST", path, body | {"return_token_ids": True})
                assert answer.token_ids == expected_output(body)[0]

            await asyncio.gather(*map(one, range(300)))
            assert sum(engine.stats["decode"].finished for engine in fleet.of("decode")) == 300
            assert max(engine.stats["decode"].peak for engine in fleet.of("decode")) > 20
            assert fleet.active == 0
            assert all(
                engine.stats.handoffs_held == engine.stats.handoffs_spoiled == 0 for engine in fleet.engines
            )

    uvloop.run(main())


def test_a_fleet_writes_its_fleet_file() -> None:
    async def main() -> None:
        async with SimFleet(prefill=1, decode=1, both=1) as fleet:
            told = parse(fleet.yaml(ttft_s=1.0, serving={"queue_capacity": 3}), "fleet.yaml")
            assert told.model == "sim-model"
            assert (told.slo.ttft_s, told.serving.queue_capacity) == (1.0, 3)
            assert [(e.id, e.role) for e in told.engines] == [
                ("p0", "prefill"),
                ("d0", "decode"),
                ("b0", "both"),
            ]
            for entry in told.engines:
                url = f"{entry.url.scheme}://{entry.url.host}:{entry.url.port}"
                assert (await ask(url, "GET", "/health")).status == 200

    uvloop.run(main())
