"""Heads: what a client library sends and what an engine answers, once a request each."""

from __future__ import annotations

from typing import Any

from bench.against import measure
from narwhal._fast.heads import parse_response_head, read_request_head
from tests.fast.oracles.heads import check_request, read_response

HEADS = 1000
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nAccept-Encoding: gzip, deflate\r\n"
    b"Connection: keep-alive\r\nAccept: application/json\r\nContent-Type: application/json\r\n"
    b"User-Agent: OpenAI/Python 2.8.0\r\nX-Stainless-Lang: python\r\nX-Stainless-OS: Linux\r\n"
    b"X-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\nX-Stainless-Runtime-Version: 3.11.7\r\n"
    b"Authorization: Bearer none\r\nContent-Length: 321\r\n\r\n"
)
RESPONSE = (
    b"HTTP/1.1 200 OK\r\ndate: Sat, 29 Nov 2025 20:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def test_read_request_head(benchmark: Any) -> None:
    def ours() -> None:
        for _ in range(HEADS):
            read_request_head(REQUEST)

    def obvious() -> None:
        for _ in range(HEADS):
            check_request(REQUEST)

    measure(benchmark, ours, obvious, items=HEADS, size=HEADS * len(REQUEST))


def test_parse_response_head(benchmark: Any) -> None:
    def ours() -> None:
        for _ in range(HEADS):
            parse_response_head(RESPONSE)

    def obvious() -> None:
        for _ in range(HEADS):
            read_response(RESPONSE)

    measure(benchmark, ours, obvious, items=HEADS, size=HEADS * len(RESPONSE))
