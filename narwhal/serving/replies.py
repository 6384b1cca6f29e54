"""Heads and whole replies as bytes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus

from narwhal.outcomes import Ending

JSON = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"

Header = tuple[str, str]

_REASONS = {status.value: status.phrase for status in HTTPStatus}


class _Date:
    """The Date header, made once a second (RFC 9110, section 6.6.1)."""

    def __init__(self) -> None:
        self._second = -1
        self._line = ""

    def line(self) -> str:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = f"date: {formatdate(second, usegmt=True)}\r\n"
        return self._line


_date = _Date()


def head(
    status: int, content_type: str | None, length: int | None, headers: Iterable[Header], close: bool
) -> bytes:
    """A reply's head. `length` None: other headers say how the body ends, or it ends with the connection."""
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}\r\n", _date.line()]
    if content_type is not None:
        lines.append(f"content-type: {content_type}\r\n")
    if status == 204:
        pass  # has no body, and so no framing
    elif length is not None:
        lines.append(f"content-length: {length}\r\n")
    for name, value in headers:
        lines.append(f"{name}: {value}\r\n")
    if close:
        lines.append("connection: close\r\n")
    lines.append("\r\n")
    return "".join(lines).encode("latin-1")


# By framing and closing: the second that the Date is of, and the head up to the request's ID.
_stream_heads: list[tuple[int, bytes]] = [(0, b"")] * 4


def stream_head(request_id: str, *, framed: bool, close: bool) -> bytes:
    """The head of an event stream. `framed`: its body is chunked; else it ends with the connection."""
    second, kind = int(time.time()), 2 * framed + close
    made, begins = _stream_heads[kind]
    if made != second:
        headers = [("cache-control", "no-cache")]
        if framed:
            headers.append(("transfer-encoding", "chunked"))
        whole = head(200, EVENT_STREAM, None, headers, close or not framed)
        begins = whole[:-2] + b"x-request-id: "
        _stream_heads[kind] = second, begins
    return begins + request_id.encode() + b"\r\n\r\n"


def error(ending: Ending, headers: Iterable[Header]) -> tuple[int, bytes, list[Header]]:
    """Status, body and headers of an early ending."""
    return ending.http_status, ending.envelope(), [*ending.headers(), *headers]


def protocol_error(message: str, code: str) -> bytes:
    """The envelope of what is wrong with a request before any route is known."""
    return Ending("malformed_http", message, code=code).envelope()
