"""The table of refusals, row by row over bare sockets, and then all of it at once under load."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import orjson
import pytest

from narwhal.admission.readiness import State
from tests.http.support import CHAT, COMPLETIONS, Routed, body_for, eventually, on_router
from tests.http.wire import Reply, Wire, chunked_request, request

HANG = {"fault": "hang"}
HANG_DECODE = {"fault": {"name": "hang", "leg": "decode"}}
TYPES = {400: "invalid_request_error", 404: "invalid_request_error", 413: "request_too_large"}


def check_row(
    on: Routed,
    reply: Reply,
    *,
    row: str,
    status: int,
    type: str,
    code: str | None,
    counter: str,
    param: str | None = None,
    retry_after: str | None = None,
    says: tuple[str, ...] = (),
    count: int = 1,
) -> None:
    """What a client and the counters must see of one row."""
    error = reply.error
    assert (reply.status, error["type"], error["code"], error["param"]) == (status, type, code, param)
    assert reply.header("retry-after") == retry_after
    assert reply.header("x-should-retry") == (None if retry_after else "false")
    assert reply.header("x-request-id")
    for word in says:
        assert word in error["message"]
    assert on.endings[row] == count
    assert on.counts[counter] >= count


async def ask(on: Routed, path: str, body: Any, *fields: str) -> Reply:
    """Ask over a connection that must live on after the reply."""
    async with await Wire.connect(on.url) as client:
        reply = await client.ask(request("POST", path, body, *fields))
        assert not reply.closes
        assert (await client.ask(request("GET", "/health"))).status == 200
        return reply


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_body_that_is_no_json_or_no_object(path: str) -> None:
    async def run(on: Routed) -> None:
        not_json = [b"", b"{", b'{"model":}', b"{} {}", b"\xff", b"{'a': 1}", b'{"a": NaN}', b"[" * 2000]
        for count, body in enumerate(not_json, 1):
            reply = await ask(on, path, body)
            check_row(
                on, reply, row="invalid_json", status=400, type=TYPES[400], code="invalid_json",
                counter="invalid_requests", count=count,
            )  # fmt: skip
        for count, body in enumerate([b"[]", b"null", b'"{}"', b"3", b"true"], 1):
            reply = await ask(on, path, body)
            check_row(
                on, reply, row="invalid_body", status=400, type=TYPES[400], code="invalid_body",
                counter="invalid_requests", count=count,
            )  # fmt: skip
        assert on.counts["unsized_offered"] == on.counts["offered"] == 13

    on_router(run)


USER = {"role": "user", "content": "x"}
WRONG_FIELDS: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"model": 3}, "model"),
    (CHAT, {"stream": 1}, "stream"),
    (CHAT, {"stream": "true"}, "stream"),
    (CHAT, {"stream_options": []}, "stream_options"),
    (CHAT, {"n": True}, "n"),
    (CHAT, {"n": 0}, "n"),
    (CHAT, {"n": 1.0}, "n"),
    (COMPLETIONS, {"best_of": "2"}, "best_of"),
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_tokens": True}, "max_tokens"),
    (CHAT, {"max_completion_tokens": -1}, "max_completion_tokens"),
    (CHAT, {"min_tokens": -1}, "min_tokens"),
    (CHAT, {"min_tokens": 2**31}, "min_tokens"),
    (COMPLETIONS, {"prompt": None}, "prompt"),
    (COMPLETIONS, {"prompt": {}}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt"),
    (COMPLETIONS, {"prompt": [[1], [2]]}, "prompt"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": "hello"}, "messages"),
    (CHAT, {"messages": [USER, USER, {"role": 7}]}, "messages[2].role"),
    (CHAT, {"messages": [USER, {"content": "x"}]}, "messages[1].role"),
    (CHAT, {"messages": [USER, "hello"]}, "messages[1]"),
    (CHAT, {"return_token_ids": 0}, "return_token_ids"),
    (CHAT, {"modalities": "text"}, "modalities"),
    (CHAT, {"modalities": ["text", 1]}, "modalities[1]"),
    (CHAT, {"tools": {}}, "tools"),
    (CHAT, {"tools": [{"type": "function"}, "x"]}, "tools[1]"),
]


@pytest.mark.parametrize("stream", [False, True])
def test_a_field_that_the_router_reads_has_the_wrong_type_or_range(stream: bool) -> None:
    async def run(on: Routed) -> None:
        for count, (path, wrong, param) in enumerate(WRONG_FIELDS, 1):
            reply = await ask(on, path, {**body_for(path), "stream": stream, **wrong})
            check_row(
                on, reply, row="invalid_field", status=400, type=TYPES[400], code=None, param=param,
                counter="invalid_requests", says=(f"`{param}` must be",), count=count,
            )  # fmt: skip
        for name in ("x-slo-ttft-ms", "x-slo-tpot-ms"):
            for value in ("0", "-1", "soon", "inf"):
                reply = await ask(on, CHAT, body_for(CHAT), f"{name}: {value}")
                assert (reply.status, reply.error["param"]) == (400, name)
        assert on.counts["invalid_requests"] == on.counts["offered"]
        # Null counts as absent, and what the router doesn't read is the engine's to judge.
        nulls = dict.fromkeys(("stream", "n", "max_tokens", "tools", "modalities", "stream_options"))
        assert (await ask(on, CHAT, {**body_for(CHAT), **nulls, "narwhals": [None]})).status == 200

    on_router(run)


def test_more_than_one_answer_is_asked_for() -> None:
    async def run(on: Routed) -> None:
        wide = [(CHAT, "n"), (COMPLETIONS, "n"), (COMPLETIONS, "best_of")]
        for count, (path, param) in enumerate(wide, 1):
            reply = await ask(on, path, {**body_for(path, stream=count == 2), param: 2})
            check_row(
                on, reply, row="unsupported_sampling_width", status=400, type=TYPES[400],
                code="unsupported_sampling_width", param=param, counter="invalid_requests",
                says=(f"`{param}`", "2"), count=count,
            )  # fmt: skip
        assert (await ask(on, COMPLETIONS, body_for(COMPLETIONS, n=1, best_of=1))).status == 200

    on_router(run)


def test_what_only_a_stream_can_carry_is_asked_for_without_one() -> None:
    async def run(on: Routed) -> None:
        asked: list[tuple[dict[str, Any], str]] = [
            ({"audio": {"voice": "x"}}, "audio"),
            ({"modalities": ["text", "audio"]}, "modalities"),
            ({"tools": [{"type": "function", "function": {"name": "f"}}, {"type": "custom"}]}, "tools[1]"),
        ]
        for count, (fields, param) in enumerate(asked, 1):
            reply = await ask(on, CHAT, body_for(CHAT, **fields))
            check_row(
                on, reply, row="unsupported_value", status=400, type=TYPES[400], code="unsupported_value",
                param=param, counter="invalid_requests", count=count,
            )  # fmt: skip

    on_router(run)


def test_the_model_is_another_one() -> None:
    async def run(on: Routed) -> None:
        reply = await ask(on, CHAT, body_for(CHAT, model="gpt-4"))
        check_row(
            on, reply, row="model_not_found", status=404, type=TYPES[404], code="model_not_found",
            param="model", counter="invalid_requests", says=("gpt-4", "sim-model"),
        )  # fmt: skip

    on_router(run)


def test_the_body_is_too_large() -> None:
    async def run(on: Routed) -> None:
        reply = await ask(on, CHAT, b"x" * 3001)
        says = ("3000 bytes", "3001 bytes", "serving.max_request_bytes")
        check_row(
            on, reply, row="request_too_large", status=413, type=TYPES[413], code="request_too_large",
            counter="invalid_requests", says=says,
        )  # fmt: skip
        async with await Wire.connect(on.url) as client:
            reply = await client.ask(chunked_request(CHAT, [b"x" * 2000] * 2))
            check_row(
                on, reply, row="request_too_large", status=413, type=TYPES[413], code="request_too_large",
                counter="invalid_requests", says=says[::2], count=2,
            )  # fmt: skip

    on_router(run, serving={"max_request_bytes": 3000})


async def hanging(on: Routed, stack: contextlib.AsyncExitStack, **sim: Any) -> Wire:
    """A client whose request has been sent and will not be answered."""
    before = on.counts["in_flight"]
    client = await stack.enter_async_context(await Wire.connect(on.url))
    await client.send(request("POST", CHAT, body_for(CHAT, sim=sim)))
    await eventually(lambda: on.counts["in_flight"] == before + 1)
    return client


def test_as_many_requests_as_may_be_are_held_already() -> None:
    async def run(on: Routed) -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await hanging(on, stack, **HANG) for _ in range(2)]
            # Refused on the head alone: before the body, whatever it holds.
            async with await Wire.connect(on.url) as client:
                reply = await client.ask(request("POST", CHAT, b"x" * 999)[:-999])
                check_row(
                    on, reply, row="retention_full", status=429, type="overloaded", code="retention_full",
                    retry_after="1", counter="rejected", says=("2 requests", "serving.retention_limit is 2"),
                )  # fmt: skip
                await client.send(b"x" * 999)
                assert (await client.ask(request("GET", "/health"))).status == 200
            clients[0].close()
            await eventually(lambda: on.counts["in_flight"] == 1)
            assert (await ask(on, CHAT, body_for(CHAT))).status == 200

    on_router(run, serving={"retention_limit": 2})


def test_as_many_requests_as_may_be_wait_already() -> None:
    async def run(on: Routed) -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await hanging(on, stack, **HANG) for _ in range(3)]
            reply = await ask(on, CHAT, body_for(CHAT))
            check_row(
                on, reply, row="queue_full", status=429, type="overloaded", code="queue_full",
                retry_after="1", counter="rejected", says=("2 requests wait", "serving.queue_capacity is 2"),
            )  # fmt: skip
            # A leaving client frees its place at once.
            clients[2].close()
            await eventually(lambda: on.counts["in_flight"] == 2)
            clients[1].close()
            clients[0].close()
            assert (await ask(on, CHAT, body_for(CHAT))).status == 200

    on_router(run, serving={"queue_capacity": 2, "prefill_concurrency": 1})


def test_the_wait_for_a_seat_was_too_long() -> None:
    async def run(on: Routed) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await hanging(on, stack, **HANG)
            reply = await ask(on, CHAT, body_for(CHAT, stream=True))
            check_row(
                on, reply, row="queue_expired", status=504, type="expired", code="queue_expired",
                counter="expired", says=("0.1 s", "serving.queue_timeout_s", "prefill seat"),
            )  # fmt: skip

    on_router(run, serving={"queue_timeout_s": 0.1, "prefill_concurrency": 1})


STAGES: dict[str, tuple[bytes, dict[str, Any] | None]] = {
    "being read": (request("POST", CHAT, body_for(CHAT))[:-1], None),
    "waiting for a prefill seat": (request("POST", CHAT, body_for(CHAT, sim=HANG)), HANG),
    "in its prefill leg": (request("POST", CHAT, body_for(CHAT, sim=HANG)), None),
    "waiting for a decode seat": (request("POST", CHAT, body_for(CHAT, sim=HANG_DECODE)), HANG_DECODE),
    "in its decode leg": (request("POST", CHAT, body_for(CHAT, stream=True, sim=HANG_DECODE)), None),
}


@pytest.mark.parametrize("stage", STAGES)
def test_the_requests_deadline_passed_before_its_headers(stage: str) -> None:
    async def run(on: Routed) -> None:
        raw, other = STAGES[stage]
        async with contextlib.AsyncExitStack() as stack:
            if other is not None:
                blocker = await hanging(on, stack, **other)
                await eventually(lambda: on.seats == ((1, 0) if other is HANG else (0, 1)))
                async with await Wire.connect(on.url) as client:
                    # The one that blocks must not end first.
                    assert (await client.ask(request("GET", "/health"))).status == 200
            client = await stack.enter_async_context(await Wire.connect(on.url))
            await client.send(raw)
            if other is not None:
                # It came first, so its deadline passes first. The other one would hang in its leg then.
                assert (await blocker.reply()).status == 504
            reply = await client.reply()
            expected = 1 if other is None else 2
            check_row(
                on, reply, row="deadline_expired", status=504, type="expired", code="deadline_expired",
                counter="expired", says=("0.15 s", "serving.request_timeout_s"), count=expected,
            )  # fmt: skip
            if other is None:
                assert f"it was {stage}" in reply.error["message"]

    on_router(run, serving={"request_timeout_s": 0.15, "prefill_concurrency": 1, "decode_concurrency": 1})


@pytest.mark.parametrize("engine", [0, 1])
def test_no_engine_is_there_for_a_leg(engine: int) -> None:
    async def run(on: Routed) -> None:
        on.router.table.available[engine] = 0
        for count, stream in enumerate((False, True), 1):
            reply = await ask(on, CHAT, body_for(CHAT, stream=stream))
            check_row(
                on, reply, row="backend_unavailable", status=503, type="backend_unavailable",
                code="backend_unavailable", retry_after="1", counter="rejected", count=count,
            )  # fmt: skip
        # It is the fleet that lacks something: the router is ready, and says what is missing elsewhere.
        async with await Wire.connect(on.url) as client:
            assert (await client.ask(request("GET", "/ready"))).status == 200
            health = orjson.loads((await client.ask(request("GET", "/health"))).body)
            assert health["engines"]["unavailable"] == 1
        on.router.table.available[engine] = 1

    on_router(run)


@pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
def test_the_router_takes_no_requests(state: State) -> None:
    async def run(on: Routed) -> None:
        on.router.readiness.set(state, "test", "it is Monday")
        reply = await ask(on, CHAT, body_for(CHAT))
        check_row(
            on, reply, row=state.value, status=503, type="not_ready", code=state.value, retry_after="1",
            counter="rejected", says=("it is Monday",),
        )  # fmt: skip

    on_router(run)


def test_the_client_stops_sending_its_body() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            reply = await client.ask(request("POST", CHAT, body_for(CHAT))[:-1])
            assert (reply.status, reply.error["type"], reply.code) == (408, "request_timeout", "body_timeout")
            assert (on.counts["cancelled"], on.endings) == (1, {"body_timeout": 1})

    on_router(run, serving={"body_timeout_s": 0.1})


def test_the_openai_client_retries_what_is_worth_it_after_the_time_named_and_nothing_else() -> None:
    async def run(on: Routed) -> None:
        async with openai.AsyncOpenAI(base_url=f"{on.url}/v1", api_key="x", max_retries=2) as client:

            async def create(**more: Any) -> Any:
                return await client.chat.completions.create(**body_for(CHAT, **more))

            for terminal, error in (
                ({"model": "other"}, openai.NotFoundError),
                ({"n": 2}, openai.BadRequestError),
                ({"user": "x" * 5000}, openai.APIStatusError),
                ({"extra_body": {"sim": HANG}}, openai.InternalServerError),
            ):
                before = on.counts["offered"]
                with pytest.raises(error):
                    await create(**terminal)
                assert on.counts["offered"] == before + 1
            before = on.counts["offered"]
            on.router.readiness.set(State.MAINTENANCE, "test", "soon over")
            began = time.monotonic()
            answer = asyncio.ensure_future(create())
            await eventually(lambda: on.endings.get("maintenance") == 1)
            on.router.readiness.clear(State.MAINTENANCE, "test")
            assert (await answer).choices
            assert time.monotonic() - began > 0.9
            assert on.counts["offered"] == before + 2

    on_router(run, serving={"max_request_bytes": 4000, "request_timeout_s": 0.3})


# ---- under load

Outcome = str
Kind = Callable[[Routed, Wire], Awaitable[Outcome]]
BUSY = {"retention_full", "queue_full", "queue_expired"}


async def good(on: Routed, client: Wire) -> Outcome:
    reply = await client.ask(request("POST", CHAT, body_for(CHAT)))
    if reply.status != 200:
        assert reply.code in BUSY
        return str(reply.code)
    assert reply.json()["usage"]["completion_tokens"] == 8
    return "served"


async def good_stream(on: Routed, client: Wire) -> Outcome:
    reply = await client.ask(request("POST", COMPLETIONS, body_for(COMPLETIONS, stream=True)))
    if reply.status != 200:
        assert reply.code in BUSY
        return str(reply.code)
    assert len(reply.events) == 8
    return "served"


async def malformed(on: Routed, client: Wire) -> Outcome:
    reply = await client.ask(request("POST", CHAT, b'{"model": "sim-model", "messages": [}'))
    assert reply.status == 400 or reply.code in BUSY
    return str(reply.code)


async def other_model(on: Routed, client: Wire) -> Outcome:
    reply = await client.ask(request("POST", CHAT, body_for(CHAT, model="other")))
    assert reply.status == 404 or reply.code in BUSY
    return str(reply.code)


async def oversized(on: Routed, client: Wire) -> Outcome:
    reply = await client.ask(request("POST", CHAT, b"x" * 10_001))
    assert reply.status == 413 or reply.code in BUSY
    return str(reply.code)


async def oversized_in_chunks(on: Routed, client: Wire) -> Outcome:
    reply = await client.ask(chunked_request(CHAT, [b"x" * 4000] * 3))
    assert reply.status == 413 or reply.code in BUSY
    return str(reply.code)


async def broken_chunks(on: Routed, client: Wire) -> Outcome:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    reply = await client.ask(head + b"no size\r\n")
    assert reply.code == "malformed_http" or reply.code in BUSY
    return str(reply.code)


async def garbage(on: Routed, client: Wire) -> Outcome:
    assert (await client.ask(b"GET / HTTP/1.1\r\nHost : x\r\n\r\n")).status == 400
    return "not counted"


async def leaves_amid_body(on: Routed, client: Wire) -> Outcome:
    await client.send(request("POST", CHAT, body_for(CHAT))[:-20])
    return await left(client)


async def leaves_while_waiting(on: Routed, client: Wire) -> Outcome:
    await client.send(request("POST", CHAT, body_for(CHAT, sim=HANG_DECODE)))
    await asyncio.sleep(0.02)
    return await left(client)


async def leaves_amid_stream(on: Routed, client: Wire) -> Outcome:
    stall = {"fault": {"name": "stall", "after": 2, "leg": "decode"}}
    await client.send(request("POST", CHAT, body_for(CHAT, stream=True, sim=stall)))
    await asyncio.get_running_loop().sock_recv(client.sock, 300)
    return await left(client)


async def left(client: Wire) -> Outcome:
    client.reset()
    return "left"


async def broken_engine(on: Routed, client: Wire) -> Outcome:
    fault = {"name": "ids_missing", "leg": "decode", "after": 3}
    await client.send(request("POST", CHAT, body_for(CHAT, stream=True, sim={"fault": fault})))
    reply = await client.reply()
    if reply.status != 200:
        assert reply.code in BUSY
        return str(reply.code)
    last = orjson.loads(reply.body.split(b"\n\n")[-2].removeprefix(b"data: "))
    assert last["error"]["code"] == "failed"
    return "token_ids"


KINDS: dict[Kind, int] = {
    good: 6, good_stream: 6, malformed: 1, other_model: 1, oversized: 1, oversized_in_chunks: 1,
    broken_chunks: 1, garbage: 1, leaves_amid_body: 1, leaves_while_waiting: 1, leaves_amid_stream: 1,
    broken_engine: 1,
}  # fmt: skip


def test_two_thousand_requests_a_thousand_at_once_end_as_the_table_says() -> None:
    """Each client knows how its request ended; the counters must agree with all of them."""
    seen: Counter[Outcome] = Counter()
    dice = random.Random(3)
    kinds = iter(dice.choices(list(KINDS), list(KINDS.values()), k=2000))

    async def two(on: Routed, client: Wire) -> None:
        async with client:
            seen[await next(kinds)(on, client)] += 1
        async with await Wire.connect(on.url) as client:
            seen[await next(kinds)(on, client)] += 1

    async def run(on: Routed) -> None:
        clients = await asyncio.gather(*(Wire.connect(on.url) for _ in range(1000)))
        await eventually(lambda: len(on.server._connections) == 1000)
        async with asyncio.timeout(60):
            await asyncio.gather(*(two(on, client) for client in clients))
        await eventually(lambda: not on.counts["in_flight"])
        await eventually(lambda: not on.server._connections)
        async with await Wire.connect(on.url) as client:
            state = (await client.ask(request("GET", "/narwhal/state"))).json()
        requests = state["requests"]
        assert requests["offered"] == 2000 - seen["not counted"]
        ended = ("served", "failed", "expired", "cancelled", "rejected", "refused", "invalid_requests")
        assert requests["offered"] == sum(requests[name] for name in ended)
        assert (requests["in_flight"], requests["held"]) == (0, 0)
        assert not any(requests["waiting"].values())
        for engine in state["engines"]:
            assert not any(phase["seats_in_use"] for phase in engine["phases"].values())
        reasons = requests["by_reason"]
        certain = [name for name in reasons if name not in ("disconnected", *BUSY)]
        assert {name: reasons[name] for name in certain} == {name: seen[name] for name in certain}
        # Who left before the reply does not know: cancelled, or refused unread.
        unknown = ("disconnected", *BUSY)
        assert sum(reasons[name] for name in unknown) == seen["left"] + sum(seen[name] for name in BUSY)
        assert seen["served"] > 200
        assert seen["retention_full"] + seen["queue_full"] > 0

    limits = {"max_request_bytes": 10_000, "retention_limit": 340, "queue_capacity": 300}
    on_router(run, prefill=2, decode=2, serving=limits)
