"""Heads of responses and requests; of requests also what httptools makes of one that passes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import Random
from typing import Any

import httptools

from narwhal._fast.heads import parse_response_head, read_request_head
from tests.fast.oracles import heads as oracle
from tests.fuzz import changes
from tests.fuzz.reads import dice, exactly
from tests.recordings import recordings

WORDS = (
    *(
        b"Content-Length: 5",
        b"content-length:5, 5",
        b"Transfer-Encoding: chunked",
        b"transfer-encoding:\tChunked ",
    ),
    *(
        b"Connection: close",
        b"connection: x, Keep-Alive",
        b"Content-Type: text/event-stream;a=b",
        b"Retry-After: 7",
    ),
    *(
        b"Host: x",
        b"A: b",
        b"HTTP/1.1 200 OK",
        b"HTTP/1.0 503",
        b"POST /v1 HTTP/1.1",
        b"GET * HTTP/1.0",
        b"\0",
    ),
    *(
        b",",
        b" ",
        b"\t",
        b":",
        b"\xe9",
        b"9223372036854775807",
        b"9223372036854775808",
        b"0" * 19,
        b"+",
        b"\x0b",
    ),
)
REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def seeds() -> Iterator[bytes]:
    """Recorded heads of responses, and requests."""
    for recording in recordings().values():
        yield recording.head + b"data"
    for word in WORDS:
        yield REQUEST + word + b"\r\n\r\n"
        yield b"HTTP/1.1 429 Too many\r\n" + word + b"\r\n\r\n"


def change(data: bytes, random: Random) -> bytes:
    """Another head."""
    return changes.lines(data, random, WORDS)


def check(data: bytes) -> None:
    """Both kinds are read as the oracle reads them."""
    _check_response(data)
    _check_request(data)


def _check_response(data: bytes) -> None:
    expected = oracle.read_response(data) if b"\r\n\r\n" in data else None
    random = dice(data)
    places = sorted(random.randrange(len(data) + 1) for _ in range(4))
    refused = False
    for end in (*places, len(data)):
        try:
            seen = parse_response_head(exactly(data[:end]))
        except ValueError:
            refused = True
            continue
        assert not refused, f"{end} bytes pass, and fewer don't"
        assert seen == (expected if expected and end >= expected[0] else None), (seen, expected)
    assert not (refused and expected), expected
    assert refused or expected or b"\r\n\r\n" not in data, "the oracle refuses it"


def _check_request(data: bytes) -> None:
    expected = oracle.check_request(data)
    seen = None
    with contextlib.suppress(ValueError):
        seen = read_request_head(data)[-2:]
    assert seen == expected, (seen, expected)
    if seen and seen[0] <= 1000:
        with contextlib.suppress(httptools.HttpParserError):
            _check_httptools(data, seen[0], seen[1])


class _Listener:
    complete = False

    def on_message_complete(self) -> None:
        self.complete = True


def _check_httptools(head: bytes, length: int, chunked: bool) -> None:
    """It sees the body end where we do, if it takes the head at all."""
    listener = _Listener()
    parser: Any = httptools.HttpRequestParser(listener)
    body = b"1\r\nx\r\n0\r\n\r\n" if chunked else b"x" * max(length, 0)
    for piece in [head, *(body[at : at + 1] for at in range(len(body)))]:
        assert not listener.complete, "httptools ends it before its body does"
        parser.feed_data(piece)
    assert listener.complete, "httptools waits for more"
