"""What a scan costs, beside copying the event and beside orjson with the obvious Python.

Every row handles 1,000 events, so its microseconds read as nanoseconds per event. Events per second and MB/s
are in each row's extra_info (`--benchmark-json`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from narwhal._fast.scan import excise, tally

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

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


def _copy(events: list[bytes]) -> None:
    room = memoryview(bytearray(len(events[0])))
    for event in events:
        room[:] = event


WAYS: dict[str, Callable[[list[bytes]], object]] = {
    "copy": _copy,
    "scan": tally,
    "orjson": _orjson_tally,
    "scan_and_excise": _excise,
    "orjson_and_dump": _orjson_excise,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("event", EVENTS)
def test_scan(benchmark: BenchmarkFixture, event: str, way: str) -> None:
    data = EVENTS[event]
    assert tally([data]) == _orjson_tally([data])
    assert _excise([data]) == _orjson_excise([data])
    benchmark.group = f"{event}: {len(data)} bytes"
    benchmark(WAYS[way], [data] * COUNT)
    if benchmark.stats is not None:  # None with --benchmark-disable
        mean_s = benchmark.stats.stats.mean / COUNT
        benchmark.extra_info |= {
            "events_per_s": round(1 / mean_s),
            "mb_per_s": round(len(data) / mean_s / 1e6),
        }
