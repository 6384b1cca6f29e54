"""Scanning events: 1,000 of a kind, so a row's microseconds read as nanoseconds per event."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from bench.against import measure
from narwhal._fast.scan import excise, tally

COUNT = 1000
ID = "chatcmpl-8f0e6f2e4c8b4d0db1b4c2a0c8de1f22"
OUTPUT = ("text", "content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call")
CUT = ("token_ids", "prompt_token_ids", "prompt_text")


def _event(choice: dict[str, Any], **top: Any) -> bytes:
    head = {"id": ID, "object": "chat.completion.chunk", "created": 1764449823, "model": "model"}
    rest = {"logprobs": None, "finish_reason": None}
    return orjson.dumps(head | {"choices": [{"index": 0} | choice | rest]} | top)


EVENTS = {
    "token": _event({"delta": {"content": " the"}, "token_ids": [1234]}),
    "chinese": _event({"delta": {"content": "这是一个测试看看中文有多快"}, "token_ids": [101, 2345, 98765]}),
    "escapes": _event({"delta": {"content": 'a "b"\n\tc\\d "e"\n'}, "token_ids": [1, 22, 333]}),
    "prompt": _event({"delta": {"content": ""}}, prompt_token_ids=[7919 * i % 150000 for i in range(2000)]),
    "paragraph": _event({"delta": {"content": "lorem ipsum dolor sit amet " * 300}, "token_ids": [5] * 200}),
}


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _read(event: dict[str, Any]) -> tuple[bool, int]:
    has_output, ids = False, 0
    for choice in event["choices"]:
        for part in (choice, choice["delta"]):
            has_output = has_output or any(part.get(name) for name in OUTPUT)
            given = part.get("token_ids") or ()
            if not all(map(_is_id, given)):
                raise ValueError("token_ids")
            ids += len(given)
    return has_output, ids


def _orjson_tally(events: list[bytes]) -> tuple[int, int]:
    facts = [_read(orjson.loads(event)) for event in events]
    return sum(has_output for has_output, _ in facts), sum(ids for _, ids in facts)


def _orjson_excise(events: list[bytes]) -> list[bytes]:
    left = []
    for data in events:
        event = orjson.loads(data)
        _read(event)
        for part in (event, *event["choices"], *(choice["delta"] for choice in event["choices"])):
            for name in CUT:
                part.pop(name, None)
        left.append(orjson.dumps(event))
    return left


def _excise(events: list[bytes]) -> list[bytes]:
    return [excise(event) for event in events]


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_scan(benchmark: Any, event: bytes) -> None:
    """Beside orjson with the obvious Python."""
    events, size = [event] * COUNT, COUNT * len(event)
    assert tally(events) == _orjson_tally(events)
    measure(benchmark, lambda: tally(events), lambda: _orjson_tally(events), items=COUNT, size=size)


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_excise(benchmark: Any, event: bytes) -> None:
    """Beside decoding, dropping the keys and encoding again."""
    events, size = [event] * COUNT, COUNT * len(event)
    assert _excise(events) == _orjson_excise(events)
    measure(benchmark, lambda: _excise(events), lambda: _orjson_excise(events), items=COUNT, size=size)
