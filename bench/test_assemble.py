"""Whole responses: a thousand events of one token, with and without logprobs and token IDs."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from bench.against import measure
from narwhal._fast.assemble import Assembler

EVENTS = 1000
LOGPROB = {"token": " word", "logprob": -0.25, "bytes": [32, 119, 111, 114, 100], "top_logprobs": []}
CHOICES: dict[str, dict[str, Any]] = {
    "content": {"delta": {"content": " word"}, "logprobs": None},
    "logprobs": {"delta": {"content": " word"}, "logprobs": {"content": [LOGPROB]}, "token_ids": [4660]},
    "arguments": {
        "delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "1"}}]}
    },
}


def put_together(events: list[bytes]) -> bytes:
    """What a router without the cursor would do: decode each event, append, encode once."""
    content: list[str] = []
    ids: list[int] = []
    logprobs: list[Any] = []
    calls: dict[int, list[str]] = {}
    for event in events:
        choice = orjson.loads(event)["choices"][0]
        delta = choice["delta"]
        content.append(delta.get("content") or "")
        ids += choice.get("token_ids") or []
        logprobs += (choice.get("logprobs") or {}).get("content") or []
        for call in delta.get("tool_calls") or []:
            calls.setdefault(call["index"], []).append(call["function"]["arguments"])
    return orjson.dumps(
        [("".join(content)), ids, logprobs, ["".join(calls[index]) for index in sorted(calls)]]
    )


@pytest.mark.parametrize("kind", CHOICES)
def test_assemble(benchmark: Any, kind: str) -> None:
    head = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choice = {"index": 0, **CHOICES[kind], "finish_reason": None}
    event = orjson.dumps({**head, "choices": [choice]})

    def ours() -> bytes:
        assembler = Assembler(True, True, 1 << 24)
        for _ in range(EVENTS):
            assembler.add_event(event)
        return assembler.finish(1, EVENTS)

    measure(benchmark, ours, lambda: put_together([event] * EVENTS), items=EVENTS, size=EVENTS * len(event))
