"""Event framing and fields: events of 250 bytes, four a read."""

from __future__ import annotations

from typing import Any

from bench.against import measure
from narwhal._fast.sse import SseDecoder, parse_fields
from tests.fast.oracles.sse import blocks, events

EVENTS = 1000
EVENT = b"data: " + b"x" * 242 + b"\n\n"
READ = EVENT * 4


def test_sse_blocks(benchmark: Any) -> None:
    def ours() -> None:
        decoder = SseDecoder()
        for _ in range(EVENTS // 4):
            decoder.feed(READ)

    def obvious() -> None:
        for _ in range(EVENTS // 4):
            blocks(READ)

    measure(benchmark, ours, obvious, items=EVENTS, size=EVENTS * len(EVENT))


def test_sse_fields(benchmark: Any) -> None:
    def ours() -> None:
        for _ in range(EVENTS):
            parse_fields(EVENT)

    def obvious() -> None:
        for _ in range(EVENTS):
            events(EVENT)

    measure(benchmark, ours, obvious, items=EVENTS, size=EVENTS * len(EVENT))
