"""What a real engine writes after a prompt that ends with the beginning of its own answer: the answer's rest.

An engine's stream is cut after some of its events, above all those without text, and the rest is asked for as
the router would when the engine is lost. Whatever the cut, the joined stream must be the whole one.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from narwhal.config import Dialect
from narwhal.engines.dialects import DIALECTS
from narwhal.request import Route, read
from narwhal.serving.continuation import Continuation
from tests.real.test_engines import long_prompt
from tests.real.test_router import assert_same_but_for_rounding
from tools.vllm_cpu.fleet import Engine

PATHS = {Route.CHAT: "/v1/chat/completions", Route.COMPLETIONS: "/v1/completions"}
# Bytes of characters beyond ASCII: a random model goes on with more of them, often in halves.
STRANGE = "🐋 Ünïcödé — 鯨は北の海に住む。 Нарвал живёт в холодных морях. 🦄🐳 " * 2


def stream(engine: Engine, route: Route, body: bytes) -> list[bytes]:
    """The data of the events that an engine answers with."""
    request = urllib.request.Request(
        f"{engine.url}{PATHS[route]}", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60.0) as reply:
        blocks = reply.read().split(b"\n\n")
    return [block.removeprefix(b"data: ") for block in blocks if block]


@pytest.mark.parametrize(
    ("route", "more"),
    [
        (Route.COMPLETIONS, {}),
        (Route.COMPLETIONS, {"logprobs": 2}),
        (
            Route.COMPLETIONS,
            {"min_tokens": 20, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        ),
        (Route.CHAT, {}),
        (Route.CHAT, {"logprobs": True, "stream_options": {"include_usage": True}}),
        (
            Route.CHAT,
            {
                "repetition_penalty": 1.3,
                "ignore_eos": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            },
        ),
    ],
)
def test_a_real_engine_goes_on_with_an_answer_that_was_cut_anywhere(
    producer: Engine, route: Route, more: dict[str, Any]
) -> None:
    prompt = long_prompt("Cut") + STRANGE
    what = {"messages": [{"role": "user", "content": prompt}]} if route is Route.CHAT else {"prompt": prompt}
    raw = json.dumps({"model": "tiny", **what, "max_tokens": 40, "temperature": 0, "stream": True} | more)
    request = read(route, raw.encode(), model="tiny", headers={})
    dialect = DIALECTS[Dialect.VLLM]
    events = stream(producer, route, b"".join(dialect.decode_body(request, None)))
    assert events[-1] == b"[DONE]"
    whole = [json.loads(event) for event in events[:-1]]
    silent = {cut for cut in range(1, len(whole)) if not text_of(whole[cut - 1])}
    for cut in sorted(silent | set(range(1, len(whole), 7))):
        if not ids_of(whole[:cut]):
            continue
        continuation = Continuation.of(request, 1 << 20)
        assert continuation is not None
        for event in events[:cut]:
            continuation.recall.note_event(event)
        if continuation.recall.finished:
            continue
        found = continuation.rest(None)
        assert found is not None, cut
        rest, join = found
        again = stream(producer, Route.COMPLETIONS, b"".join(dialect.decode_body(rest, None)))
        joined = [event for event in map(join.event, again[:-1]) if event is not None]
        print(route, cut, continuation.recall.seam, continuation.recall.tokens)
        assert_same_but_for_rounding(
            [without_cached(json.loads(event)) for event in joined],
            [without_cached(event) for event in whole[cut:]],
            f"cut {cut}",
        )


def text_of(event: dict[str, Any]) -> str:
    """The text of an event's choice."""
    choice: dict[str, Any] = next(iter(event["choices"]), {})
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


def ids_of(events: list[dict[str, Any]]) -> list[int]:
    """The token IDs of some events."""
    choices = [choice for event in events for choice in event["choices"]]
    return [token for choice in choices for token in choice.get("token_ids") or []]


def without_cached(event: dict[str, Any]) -> dict[str, Any]:
    """Less what is known of the prompt cache only by the engine that began."""
    usage = event.get("usage")
    return (
        event | {"usage": {k: v for k, v in usage.items() if k != "prompt_tokens_details"}}
        if usage
        else event
    )
