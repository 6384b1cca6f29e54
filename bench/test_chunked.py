"""Chunked decoding: a stream of tokens, one event a chunk, four chunks a read."""

from __future__ import annotations

from typing import Any

from bench.against import measure
from narwhal._fast.chunked import ChunkedDecoder
from tests.fast.oracles.chunked import decode

EVENTS = 1000
CHUNK = b"fa\r\n" + b"data: " + b"x" * 242 + b"\n\n\r\n"
READ = CHUNK * 4


def test_chunked(benchmark: Any) -> None:
    def ours() -> None:
        decoder = ChunkedDecoder()
        for _ in range(EVENTS // 4):
            decoder.feed(READ)

    def obvious() -> None:
        for _ in range(EVENTS // 4):
            decode(READ)

    measure(benchmark, ours, obvious, items=EVENTS, size=EVENTS * len(CHUNK))
