"""One request's way when all goes well: what engines are sent, and what the client gets."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Any

import orjson
import pytest

from narwhal._fast.loop import run as run_in_loop
from narwhal.sim import Seen, SimFleet, SimOptions, expected_output
from narwhal.sim.script import prompt_ids
from tests.http.support import CHAT, COMPLETIONS, Answer, Routed, ask, body_for, message, on_router, routed

ROUTES = [CHAT, COMPLETIONS]
CERTIFICATE = Path(__file__).parents[1] / "data" / "tls" / "localhost.pem"
FLEETS: dict[str, dict[str, Any]] = {
    "split": {},
    "unsplit": {"prefill": 0, "decode": 0, "both": 1},
    "openai": {"prefill": 0, "decode": 0, "both": 1, "engines": {"dialect": "openai"}},
}
# What is particular to one response: its ID and its time.
PARTICULAR = re.compile(rb'"id":"(?:chat)?cmpl-[^"]*","object":"([a-z._]*)","created":[0-9]+')
TOKEN_FIELDS = re.compile(rb',"(?:token_ids|prompt_token_ids|prompt_text)":(?:null|\[[0-9,]*\])')

Everything = dict[str, Any]
OUTPUTS: dict[str, Everything] = {
    "text": {"sim": {"output_tokens": 9}},
    "reasoning": {"sim": {"output": ["reasoning", "text"]}},
    "reasoning_content": {"sim": {"output": ["reasoning"], "reasoning_field": "reasoning_content"}},
    "refusal": {"sim": {"output": ["refusal"], "output_tokens": 5}},
    "tool_calls": {"sim": {"output": ["text", "tool_calls"], "tool_calls": 2, "output_tokens": 20}},
    "function_call": {"sim": {"output": ["function_call"], "output_tokens": 9}},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "several tokens an event": {"sim": {"tokens_per_event": 3, "output_tokens": 10}},
}


def comparable(raw: bytes) -> bytes:
    return PARTICULAR.sub(rb'"object":"\1"', raw)


def legs(fleet: SimFleet) -> tuple[Seen, Seen]:
    """The one request's two legs, as the engines saw them."""
    (first,), (second,) = fleet["p0"].requests, fleet["d0"].requests
    return first, second


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("kind", FLEETS)
def test_the_answer_is_the_one_foretold_streamed_or_whole_on_any_kind_of_fleet(kind: str, path: str) -> None:
    body = body_for(path, seed=5)
    ids, text = expected_output(body)
    key = "content" if path == CHAT else "text"

    async def test(where: Routed) -> None:
        stream = await where.ask(path, body | {"stream": True})
        assert (stream.status, stream.ended, stream.joined(key)) == (200, "whole", text)
        assert stream.blocks[-1] == b"[DONE]"
        reply = await where.ask(path, body)
        choice = reply.json()["choices"][0]
        assert (choice["message"]["content"] if path == CHAT else choice["text"]) == text
        assert choice["finish_reason"] == "length"
        prompt = len(prompt_ids(path == CHAT, body))
        usage = reply.json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt, len(ids))
        assert where.endings == {"served": 2}
        for row in await where.rows(2):
            assert row["output_tokens"] == len(ids)
            assert row["output_tokens_from"] == ("usage" if kind == "openai" else "token_ids")
            assert row["token_accounting"] == ("unavailable" if kind == "openai" else "token_ids")
            assert (row["outcome"], row["status"]) == ("served", 200)
            assert row["engines"] == (
                {"prefill": "p0", "decode": "d0"} if kind == "split" else {"prefill": None, "decode": "b0"}
            )

    on_router(test, **FLEETS[kind])


def test_every_kind_of_output_is_the_engines_own_byte_for_byte_with_ids_and_usage_asked_for() -> None:
    async def main() -> None:
        async with SimFleet(both=1) as alone, routed() as where:
            for name, wish in OUTPUTS.items():
                body = body_for(CHAT, return_token_ids=True, **{"max_tokens": 60, **wish})
                streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
                await same(alone, where, CHAT, streamed, name)
                await same(alone, where, CHAT, body, name)
            body = body_for(COMPLETIONS, return_token_ids=True, logprobs=2)
            await same(alone, where, COMPLETIONS, body | {"stream": True}, usage=False)
            await same(alone, where, COMPLETIONS, body)
            assert len(where.fleet["d0"].requests) == 2 * len(OUTPUTS) + 2

    async def same(
        alone: SimFleet, where: Routed, path: str, body: Everything, name: str = "", *, usage: bool = True
    ) -> None:
        own, routed_ = await ask(alone["b0"].url, "POST", path, body), await where.ask(path, body)
        assert (routed_.status, routed_.ended) == (200, "whole")
        expected, got = comparable(own.body), comparable(routed_.body)
        if not usage:
            # An engine that is asked for usage has the fingerprint in the usage event instead.
            expected = re.sub(rb',"system_fingerprint":"[^"]*"', b"", expected)
        if body.get("stream"):
            assert got == expected, name
        else:
            assert orjson.loads(got) == orjson.loads(expected), name
        assert (b'"usage":{' in got) is usage

    run_in_loop(main())


def test_ids_and_usage_that_only_the_router_asked_for_do_not_reach_the_client() -> None:
    async def test(where: Routed) -> None:
        for path in ROUTES:
            for asked in (False, True):
                body = body_for(path, stream=True, return_token_ids=asked)
                answer = await where.ask(path, body)
                assert bool(TOKEN_FIELDS.search(answer.body)) is asked
                assert (answer.token_ids == expected_output(body)[0]) is asked
                assert not any("usage" in event for event in answer.events)
                assert all(event["choices"] for event in answer.events)
                usage = await where.ask(path, body | {"stream_options": {"include_usage": True}})
                assert usage.events[-1]["usage"]["completion_tokens"] == 8
                assert usage.events[-1]["choices"] == []
                whole = (await where.ask(path, body_for(path, return_token_ids=asked))).json()
                choice = whole["choices"][0]
                assert (choice["token_ids"] == expected_output(body)[0]) is asked
                holder = whole if path == CHAT else choice
                assert (holder["prompt_token_ids"] == prompt_ids(path == CHAT, body)) is asked

    on_router(test)


def test_the_two_legs_are_what_engines_understand() -> None:
    async def test(where: Routed) -> None:
        body = body_for(
            CHAT, stream=True, max_completion_tokens=7, min_tokens=3,
            stream_options={"include_usage": False, "other": 1}, temperature=0.5,
        )  # fmt: skip
        answer = await where.ask(CHAT, body)
        assert answer.ended == "whole"
        prefill, decode = legs(where.fleet)
        assert prefill.leg == "prefill"
        assert prefill.json() == {
            **{key: value for key, value in body.items() if key not in ("min_tokens", "stream_options")},
            "stream": False,
            "max_tokens": 1,
            "max_completion_tokens": 1,
            "kv_transfer_params": {
                "do_remote_decode": True,
                "do_remote_prefill": False,
                "remote_engine_id": None,
                "remote_block_ids": None,
                "remote_host": None,
                "remote_port": None,
            },
        }
        assert decode.leg == "decode"
        sent = decode.json()
        handoff = sent.pop("kv_transfer_params")
        assert handoff["remote_engine_id"] == where.fleet["p0"].producer.engine_id
        assert sent == {
            **body,
            "stream": True,
            "stream_options": {"include_usage": True, "other": 1},
            "return_token_ids": True,
            "stream_interval": 1,
        }
        stats = where.fleet["p0"].stats
        assert (stats.handoffs_made, stats.handoffs_taken, stats.handoffs_spoiled) == (1, 1, 0)

    on_router(test)


def test_bytes_of_the_body_that_the_router_does_not_read_reach_both_engines_unchanged() -> None:
    odd = b'"seed" : 123456789012345678901234567890, "x":1.50e+00 ,"x":2,\t"\\u0079":"\\ud83d\\udc0b\\/"'
    raw = b'{"prompt":"hello",\n ' + odd + b' ,"max_tokens":4}'

    async def test(where: Routed) -> None:
        answer = await where.ask(COMPLETIONS, raw)
        assert answer.status == 200
        for leg in legs(where.fleet):
            assert odd in leg.body
            assert leg.json()["model"] == "sim-model"

    on_router(test)


def test_each_leg_has_an_id_of_its_own_made_of_the_requests() -> None:
    async def test(where: Routed) -> None:
        answer = await where.ask(CHAT, body_for(CHAT), headers={"X-Request-Id": "mine-1"})
        request_id = answer.headers["x-request-id"]
        sent = [leg.header("x-request-id") for leg in legs(where.fleet)]
        assert sent == [f"{request_id}-p1", f"{request_id}-d1"]
        row = await where.row()
        assert (row["request_id"], row["client_request_id"]) == (request_id, "mine-1")
        odd = await where.ask(CHAT, body_for(CHAT), headers={"X-Request-Id": "no good"})
        assert odd.headers["x-request-id"] != request_id
        assert (await where.rows(2))[1]["client_request_id"] is None

    on_router(test)


def test_engines_get_their_own_key_and_never_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sk-engine")

    async def with_key(where: Routed) -> None:
        for headers in ({"Authorization": "Bearer sk-client", "Cookie": "a=b"}, {}):
            answer = await where.ask(CHAT, body_for(CHAT), headers=headers)
            assert answer.status == 200
        for engine in where.fleet.engines:
            assert [seen.header("authorization") for seen in engine.requests] == ["Bearer sk-engine"] * 2
            assert [seen.header("cookie") for seen in engine.requests] == [None] * 2

    async def without(where: Routed) -> None:
        await where.ask(CHAT, body_for(CHAT), headers={"Authorization": "Bearer sk-client"})
        assert [leg.header("authorization") for leg in legs(where.fleet)] == [None] * 2

    on_router(with_key, options=SimOptions(api_key="sk-engine"), engine={"api_key_env": "ENGINE_KEY"})
    on_router(without)


def test_an_engine_that_does_all_gets_the_request_in_one_leg_under_seats_of_both_phases() -> None:
    async def test(where: Routed) -> None:
        client = await where.connect()
        body = body_for(CHAT, stream=True, sim={"fault": {"name": "stall", "after": 2}})
        client.writer.write(message("POST", CHAT, body))
        b0 = where.fleet["b0"]
        await client.reader.readuntil(b"data: ")
        await client.reader.readuntil(b"data: ")
        # The prompt is done with, so its seat is free for another's.
        assert where.seats == (0, 1)
        (seen,) = b0.requests
        assert seen.leg == "whole"
        assert "kv_transfer_params" not in seen.json()
        await client.close()

    on_router(test, **FLEETS["unsplit"])


def test_an_openai_engine_is_asked_for_nothing_beyond_openais_api() -> None:
    async def test(where: Routed) -> None:
        body = body_for(CHAT)
        await where.ask(CHAT, body)
        assert where.fleet["b0"].requests[0].json() == {
            **body,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        models = (await where.ask("/v1/models", method="GET")).json()
        assert models["data"][0]["token_accounting"] == "unavailable"

    on_router(test, **FLEETS["openai"])


def test_counted_tokens_stand_where_the_engines_usage_says_otherwise_and_both_are_kept() -> None:
    said = {"choices": [{"index": 0, "delta": {"content": "hi"}, "token_ids": [7, 8]}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}}
    events = [*(f"data: {orjson.dumps(event).decode()}\n\n" for event in (said, usage)), "data: [DONE]\n\n"]

    async def counted(where: Routed) -> None:
        assert (await where.ask(CHAT, body_for(CHAT, stream=True, sim={"events": events}))).status == 200
        row = await where.row()
        assert (row["output_tokens"], row["usage_completion_tokens"]) == (2, 5)
        state = (await where.ask("/narwhal/state", method="GET")).json()
        assert [engine["usage_disagreements"] for engine in state["engines"]] == [0, 1]

    async def told(where: Routed) -> None:
        # Without IDs, usage is the best there is, and after it one for each event.
        for sent, count, source in ((events, 5, "usage"), ([events[0], events[2]], 1, "events")):
            await where.ask(CHAT, body_for(CHAT, stream=True, sim={"events": sent}))
            row = (await where.rows(where.counts["offered"]))[-1]
            assert (row["output_tokens"], row["output_tokens_from"]) == (count, source)

    on_router(counted)
    on_router(told, **FLEETS["openai"])


def test_engines_are_reached_over_https_when_their_ca_is_named() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)

    async def trusting(where: Routed) -> None:
        body = body_for(CHAT, stream=True, return_token_ids=True)
        for _ in range(2):
            assert (await where.ask(CHAT, body)).token_ids == expected_output(body)[0]
        assert [engine.stats.connections_opened for engine in where.fleet.engines] == [1, 1]

    async def wary(where: Routed) -> None:
        answer = await where.ask(CHAT, body_for(CHAT))
        assert answer.status == 502
        assert "TLS" in answer.json()["error"]["message"]

    on_router(trusting, options=SimOptions(tls=context), engine={"ca_file": str(CERTIFICATE)})
    on_router(wary, options=SimOptions(tls=context))


@pytest.mark.parametrize("path", ROUTES)
def test_a_prompts_length_is_the_engines_own_when_sizing_is_exact_and_known_when_it_came_as_ids(
    path: str,
) -> None:
    async def test(where: Routed) -> None:
        body = body_for(path)
        await where.ask(path, body)
        length = (len(prompt_ids(path == CHAT, body)), "tokenizer")
        await where.ask(COMPLETIONS, body_for(COMPLETIONS) | {"prompt": [5, 6, 7]})
        rows = await where.rows(2)
        assert [(row["input_tokens"], row["input_tokens_from"]) for row in rows] == [length, (3, "token_ids")]

    on_router(test, engine={"sizing": "exact"})


@pytest.mark.parametrize(
    "fleet", [{"prefill": 1, "decode": 1}, {"prefill": 0, "decode": 0, "both": 1}], ids=str
)
def test_the_journal_has_the_true_length_of_a_prompt_beside_the_estimate(fleet: dict[str, int]) -> None:
    async def test(where: Routed) -> None:
        body = body_for(CHAT)
        await where.ask(CHAT, body)
        row = await where.row()
        assert row["input_tokens_from"] == "estimate"
        assert row["prompt_tokens"] == len(prompt_ids(True, body)) != row["input_tokens"]

    on_router(test, **fleet)


def test_an_engines_url_may_have_a_path_that_its_routes_follow() -> None:
    async def test(where: Routed) -> None:
        assert (await where.ask(CHAT, body_for(CHAT))).status == 200
        assert (await where.ask(COMPLETIONS, body_for(COMPLETIONS))).status == 200

    on_router(test, options=SimOptions(base_path="/models/one"))


@pytest.mark.parametrize("stream", [True, False])
def test_the_client_is_told_what_the_prefill_engine_found_cached(stream: bool) -> None:
    # Many decode engines report the whole prompt as cached, since its KV is there.
    options = SimOptions(prompt_tokens_details=True, hands_over_cached_tokens=False)

    async def test(where: Routed) -> None:
        body = body_for(CHAT, sim={"cached_tokens": 3}, stream=stream, stream_options={"include_usage": True})
        if not stream:
            del body["stream_options"]
        answer = await where.ask(CHAT, body)
        usage = answer.events[-1]["usage"] if stream else answer.json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 3

    on_router(test, options=options)


def test_a_body_of_megabytes_goes_through_to_both_engines() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3_000_000}}
    content = [{"type": "text", "text": "What is this?"}, picture]

    async def test(where: Routed) -> None:
        body = body_for(CHAT, messages=[{"role": "user", "content": content}])
        assert (await where.ask(CHAT, body)).status == 200
        for leg in legs(where.fleet):
            assert leg.json()["messages"] == body["messages"]

    on_router(test)


def test_an_answer_to_http_1_0_ends_with_the_connection() -> None:
    async def test(where: Routed) -> None:
        for stream in (True, False):
            client = await where.connect()
            request = message("POST", CHAT, body_for(CHAT, stream=stream, return_token_ids=True))
            client.writer.write(request.replace(b"HTTP/1.1", b"HTTP/1.0"))
            head, _, body = (await client.reader.read()).partition(b"\r\n\r\n")
            assert b"transfer-encoding" not in head
            answer = Answer(200, body=body)
            if stream:
                assert answer.token_ids == expected_output(body_for(CHAT))[0]
            await client.close()

    on_router(test)


def test_one_connection_serves_requests_one_after_another_streams_included() -> None:
    async def test(where: Routed) -> None:
        client = await where.connect()
        body = body_for(CHAT, stream=True, return_token_ids=True)
        client.writer.write(message("POST", CHAT, body) * 2 + message("POST", CHAT, body_for(CHAT)))
        for _ in range(2):
            assert (await client.read()).token_ids == expected_output(body)[0]
        assert (await client.read()).json()["choices"][0]["message"]["content"] == expected_output(body)[1]
        await client.close()

    on_router(test)
