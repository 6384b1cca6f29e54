"""What the `openai` package makes of the router, as it comes: typed objects, typed errors, retries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from narwhal.admission.readiness import State
from narwhal.fleet.table import Phase
from narwhal.sim import Fault, FaultName, expected_output
from tests.http.support import (
    CHAT,
    COMPLETIONS,
    Routed,
    body_for,
    eventually,
    on_router,
    seat,
)

Fields = dict[str, Any]
MESSAGES: Any = body_for(CHAT)["messages"]
PROMPT: str = body_for(COMPLETIONS)["prompt"]
ASKED: Fields = {"model": "sim-model", "max_tokens": 8}
CHATTED = expected_output(body_for(CHAT))[1]
COMPLETED = expected_output(body_for(COMPLETIONS))[1]
TOOLS: Any = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


def with_client(
    test: Callable[[Routed, AsyncOpenAI], Coroutine[Any, Any, None]], retries: int = 0, **options: Any
) -> None:
    """Run a test with a client that has nothing but its base URL changed."""

    async def run(where: Routed) -> None:
        async with AsyncOpenAI(base_url=f"{where.url}/v1", api_key="sk-mine", max_retries=retries) as client:
            await test(where, client)

    on_router(run, **options)


def test_the_asynchronous_client_gets_what_was_foretold_by_either_route_streamed_or_whole() -> None:
    async def test(where: Routed, client: AsyncOpenAI) -> None:
        chat = await client.chat.completions.create(**ASKED, messages=MESSAGES)
        assert chat.choices[0].message.content == CHATTED
        assert chat.choices[0].finish_reason == "length"
        assert chat.usage is not None
        assert chat.usage.completion_tokens == 8
        text = await client.completions.create(**ASKED, prompt=PROMPT)
        assert text.choices[0].text == COMPLETED

        options: Any = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(**ASKED, **options, messages=MESSAGES)
        ]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == CHATTED
        assert chunks[-1].usage == chat.usage.model_copy(update={"prompt_tokens_details": None})
        pieces = [
            piece async for piece in await client.completions.create(**ASKED, prompt=PROMPT, stream=True)
        ]
        assert "".join(piece.choices[0].text for piece in pieces) == COMPLETED
        assert [model.id async for model in client.models.list()] == ["sim-model"]
        assert (await client.models.retrieve("sim-model")).owned_by == "narwhal"
        assert where.endings == {"served": 4}

    with_client(test)


def test_the_synchronous_client_does_too() -> None:
    def talk(url: str) -> None:
        with OpenAI(base_url=f"{url}/v1", api_key="sk-mine", max_retries=0) as client:
            chat = client.chat.completions.create(**ASKED, messages=MESSAGES)
            assert chat.choices[0].message.content == CHATTED
            text = client.completions.create(**ASKED, prompt=PROMPT)
            assert text.choices[0].text == COMPLETED
            stream = client.chat.completions.create(**ASKED, messages=MESSAGES, stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == CHATTED
            pieces = client.completions.create(**ASKED, prompt=PROMPT, stream=True)
            assert "".join(piece.choices[0].text for piece in pieces) == COMPLETED
            with pytest.raises(openai.NotFoundError):
                client.chat.completions.create(model="another", messages=MESSAGES)

    async def test(where: Routed) -> None:
        await asyncio.to_thread(talk, where.url)
        assert where.endings == {"served": 4, "model_not_found": 1}

    on_router(test)


def test_the_request_id_is_where_the_client_looks_for_it() -> None:
    async def test(where: Routed, client: AsyncOpenAI) -> None:
        raw = await client.chat.completions.with_raw_response.create(**ASKED, messages=MESSAGES)
        seen = [raw.headers["x-request-id"], raw.request_id, raw.parse()._request_id]
        ids = [row["request_id"] for row in await where.rows()]
        assert seen == ids * 3
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="another", messages=MESSAGES)
        assert caught.value.request_id == (await where.rows(2))[1]["request_id"]
        async with client.chat.completions.with_streaming_response.create(
            **ASKED, messages=MESSAGES, stream=True
        ) as response:
            assert response.headers["x-request-id"].startswith("req-")
            assert [line async for line in response.iter_lines()][-2:] == ["data: [DONE]", ""]

    with_client(test)


STOPPING: Fields = {"output_tokens": 20}  # the model's own end, since the client's helper takes no cut answer
WISHES: dict[str, tuple[Fields, Fields]] = {
    "tool calls after text": ({"tools": TOOLS}, {"output": ["text", "tool_calls"], "tool_calls": 2}),
    "tool calls required": ({"tools": TOOLS, "tool_choice": "required"}, {}),
    "reasoning": ({}, {"output": ["reasoning", "text"]}),
    "refusal": ({}, {"output": ["refusal"]}),
    "logprobs": ({"logprobs": True, "top_logprobs": 3}, {}),
}


@pytest.mark.parametrize("wish", WISHES)
def test_the_typed_objects_of_a_stream_and_of_a_whole_answer_are_equal(wish: str) -> None:
    fields, sim = WISHES[wish]

    async def test(where: Routed, client: AsyncOpenAI) -> None:
        asked: Fields = {"model": "sim-model", "messages": MESSAGES, **fields}
        asked["extra_body"] = {"sim": STOPPING | sim}
        whole = await client.chat.completions.create(**asked)
        usage: Any = {"stream_options": {"include_usage": True}}
        async with client.chat.completions.stream(**asked, **usage) as stream:
            streamed = await stream.get_final_completion()
        mine, theirs = whole.choices[0], streamed.choices[0]
        assert theirs.finish_reason == mine.finish_reason
        one, other = mine.message.model_dump(), theirs.message.model_dump()
        for key, value in one.items():
            # Where nothing came, a whole answer may say null and a stream nothing at all, or the other way.
            assert plain(other.get(key)) == plain(value), key
        assert [entry.model_dump() for entry in logprobs(theirs)] == [
            entry.model_dump() for entry in logprobs(mine)
        ]
        assert (logprobs(mine) != []) is (wish == "logprobs")
        assert streamed.usage is not None
        assert whole.usage is not None
        assert streamed.usage.total_tokens == whole.usage.total_tokens
        assert streamed.system_fingerprint == whole.system_fingerprint

    def logprobs(choice: Any) -> list[Any]:
        return [] if choice.logprobs is None else list(choice.logprobs.content or [])

    def plain(value: Any) -> Any:
        """A value without what only one of the two ways adds to it."""
        if isinstance(value, list):
            return [plain(entry) for entry in value]
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items() if key not in ("index", "parsed_arguments")}
        return value or None

    with_client(test)


def test_what_ends_a_request_early_is_the_clients_typed_error() -> None:
    async def test(where: Routed, client: AsyncOpenAI) -> None:
        async def error(
            kind: type[openai.APIStatusError], status: int, code: str | None, **more: Any
        ) -> Fields:
            with pytest.raises(kind) as caught:
                await client.chat.completions.create(**{**ASKED, "messages": MESSAGES, **more})
            assert (type(caught.value), caught.value.status_code) == (kind, status)
            assert caught.value.code == code
            body: Any = caught.value.body
            assert caught.value.param == body["param"]
            assert body["message"] in str(caught.value)
            return dict(body)

        wrong = await error(openai.BadRequestError, 400, None, messages=[{"role": 3}])
        assert wrong["param"] == "messages[0].role"
        await error(openai.NotFoundError, 404, "model_not_found", model="another")
        await error(
            openai.APIStatusError,
            413,
            "request_too_large",
            messages=[{"role": "user", "content": "x" * 9999}],
        )
        for engine in where.fleet.of("decode"):
            engine.faults.set(Fault(FaultName.BAD_STATUS, status=500))
        await error(openai.InternalServerError, 502, "engine_status")
        where.router.readiness.set(State.MAINTENANCE, "test", "being mended")
        await error(openai.InternalServerError, 503, "maintenance")
        where.router.readiness.clear(State.MAINTENANCE, "test")
        grant = seat(where, Phase.PREFILL)
        await error(openai.InternalServerError, 504, "queue_expired")
        grant.release_all(time.monotonic())
        where.door.hold()
        await error(openai.RateLimitError, 429, "retention_full")
        where.door.let_go()

    serving = {
        "max_request_bytes": 9000,
        "retention_limit": 1,
        "queue_timeout_s": 0.1,
        "prefill_concurrency": 1,
    }
    with_client(test, serving=serving)


def test_the_client_comes_again_after_the_time_it_was_told_and_only_where_that_may_help() -> None:
    async def test(where: Routed, client: AsyncOpenAI) -> None:
        async def later(undo: Callable[[], Any]) -> float:
            """Undo the obstacle once the first try has met it; the seconds until the second was served."""
            began, refused = time.monotonic(), where.counts["rejected"]
            asking = asyncio.ensure_future(client.chat.completions.create(**ASKED, messages=MESSAGES))
            await eventually(lambda: where.counts["rejected"] == refused + 1)
            undo()
            assert (await asking).choices[0].message.content == CHATTED
            return time.monotonic() - began

        where.router.readiness.set(State.MAINTENANCE, "test", "being mended")
        clear = lambda: where.router.readiness.clear(State.MAINTENANCE, "test")  # noqa: E731
        assert await later(clear) >= 1.0
        where.door.hold()
        assert await later(where.door.let_go) >= 1.0
        assert (where.counts["offered"], where.counts["served"]) == (4, 2)

        # Told not to, the client asks once, though it would by itself try a 5xx or a 429 again.
        grant = seat(where, Phase.PREFILL)
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(**ASKED, messages=MESSAGES)
        grant.release_all(time.monotonic())
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="another", messages=MESSAGES)
        assert where.counts["offered"] == 6
        assert where.endings["queue_expired"] == where.endings["model_not_found"] == 1

    serving = {"retention_limit": 1, "queue_timeout_s": 0.1, "prefill_concurrency": 1}
    with_client(test, retries=2, serving=serving)


@pytest.mark.parametrize(
    ("fault", "limits", "code"),
    [
        ({"name": "die_after", "after": 3, "leg": "decode"}, {}, "failed"),
        ({"name": "stall", "after": 3, "leg": "decode"}, {"request_timeout_s": 0.3}, "expired"),
    ],
)
def test_a_stream_that_fails_raises_an_error_after_what_came_and_does_not_look_like_a_short_answer(
    fault: Fields, limits: Fields, code: str
) -> None:
    async def test(where: Routed, client: AsyncOpenAI) -> None:
        said: list[str] = []
        wish = {"sim": {"fault": fault}}
        stream = await client.chat.completions.create(
            **ASKED, messages=MESSAGES, stream=True, extra_body=wish
        )

        async def listen() -> None:
            async for chunk in stream:
                said.append(chunk.choices[0].delta.content or "")

        with pytest.raises(openai.APIError) as caught:
            await listen()
        assert "".join(said) == " ".join(CHATTED.split(" ")[:4])
        assert (caught.value.type, caught.value.code, caught.value.param) == ("decode", code, None)
        assert caught.value.message == (await where.row())["error"]
        # A retry would say everything again, so the client makes none.
        assert where.counts["offered"] == 1

    with_client(test, retries=2, serving=limits)


def test_a_client_that_stops_reading_a_stream_cancels_it() -> None:
    async def test(where: Routed, client: AsyncOpenAI) -> None:
        wish = {"sim": {"fault": {"name": "stall", "after": 3, "leg": "decode"}}}
        stream = await client.chat.completions.create(
            **ASKED, messages=MESSAGES, stream=True, extra_body=wish
        )
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        await eventually(lambda: where.endings == {"disconnected": 1})
        await eventually(lambda: where.fleet["d0"].stats["decode"].aborted == 1)

    with_client(test)
