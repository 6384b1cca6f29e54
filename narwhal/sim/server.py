"""HTTP/1.1 for simulated engines: an asyncio protocol on httptools, and a reply that can misbehave.

A handler gets a request and its reply and returns at once; the reply may be written then or later. A
connection serves its requests one after another. If the client leaves meanwhile, the reply's `on_gone` is
called.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol, cast

import httptools

HIGH_WATER_BYTES = 64 * 1024
MAX_BODY_BYTES = 256 * 1024 * 1024
_QUEUE = 16  # pipelined requests a connection may have waiting


@dataclass(slots=True)
class Request:
    """A request whose body is in."""

    method: str = ""
    target: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)  # names in lower case
    body: bytes = b""
    connection: int = 0  # the connection's number, from 1
    version: str = "1.1"
    keep_alive: bool = True

    @property
    def path(self) -> str:
        return self.target.split(b"?", 1)[0].decode("latin-1")

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)


class Host(Protocol):
    """What a connection belongs to."""

    def opened(self, connection: Connection) -> bool:
        """A client has connected; False resets the connection."""

    def closed(self, connection: Connection) -> None: ...

    def handle(self, request: Request, reply: Reply) -> None: ...


class Reply:
    """The reply to one request. Writes after the client has left, or after the end, do nothing."""

    __slots__ = ("_chunked", "_connection", "_request", "done", "on_gone")

    def __init__(self, connection: Connection, request: Request) -> None:
        self._connection = connection
        self._request = request
        self._chunked = True
        self.done = False
        self.on_gone: Callable[[], None] | None = None

    @property
    def blocked(self) -> bool:
        """The client does not read, and its buffer is full."""
        return self._connection.blocked

    def whole(
        self, status: int, body: bytes, content_type: str = "application/json", *, missing: int = 0
    ) -> None:
        """The whole reply at once; with `missing`, its declared length is so many bytes too long."""
        head = self._head(status, content_type, f"content-length: {len(body) + missing}")
        self._put(head + (b"" if self._request.method == "HEAD" else body))
        self._end(close=missing > 0)

    def start(self, content_type: str) -> None:
        """The head of a reply whose body comes in pieces."""
        self._chunked = self._request.version == "1.1"
        if not self._chunked:
            self._request.keep_alive = False
        self._put(self._head(200, content_type, "transfer-encoding: chunked" if self._chunked else ""))

    def piece(self, data: bytes) -> None:
        """A piece of the body."""
        self._put(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def raw(self, data: bytes) -> None:
        """Bytes as they stand."""
        self._put(data)

    def finish(self) -> None:
        """The end of a body that came in pieces."""
        if self._chunked:
            self._put(b"0\r\n\r\n")
        self._end(close=False)

    def reset(self) -> None:
        """Reset the connection, as when a process dies with unread data."""
        if not self.done:
            self.done = True
            self._connection.reset()

    def close(self) -> None:
        """Close the connection in an orderly way, wherever the reply is."""
        self._end(close=True)

    def dribble(self) -> None:
        """From here on write one byte at a time."""
        self._connection.dribble()

    def _put(self, data: bytes) -> None:
        if not self.done:
            self._connection.write(data)

    def _end(self, *, close: bool) -> None:
        if not self.done:
            self.done = True
            self._connection.ended(close or not self._request.keep_alive)

    def _head(self, status: int, content_type: str, framing: str) -> bytes:
        lines = [
            f"HTTP/1.1 {status} {_reason(status)}",
            f"date: {formatdate(usegmt=True)}",
            "server: uvicorn",
        ]
        lines.append(f"content-type: {content_type}")
        if framing:
            lines.append(framing)
        if not self._request.keep_alive:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._request = Request()
        self._body: list[bytes] = []
        self._body_size = 0
        self._waiting: deque[Request] = deque()
        self._reply: Reply | None = None
        self._drops: deque[bytes] | None = None  # what is still to be written byte by byte
        self._closing = False
        self.number = 0
        self.blocked = False

    @property
    def idle(self) -> bool:
        """No request is being answered."""
        return self._reply is None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        if not self._host.opened(self):
            self.reset()

    def eof_received(self) -> None:
        self._left()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._left()
        self._host.closed(self)

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.close()
        except httptools.HttpParserError:
            self.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.close()

    # What httptools calls.

    def on_message_begin(self) -> None:
        self._request = Request(connection=self.number)
        self._body, self._body_size = [], 0

    def on_url(self, url: bytes) -> None:
        self._request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._request.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        request = self._request
        request.method = self._parser.get_method().decode("latin-1")
        request.version = self._parser.get_http_version()
        request.keep_alive = self._parser.should_keep_alive()
        if (request.header(b"expect") or b"").lower() == b"100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._body_size += len(data)
        if self._body_size > MAX_BODY_BYTES:
            self.reset()
        else:
            self._body.append(data)

    def on_message_complete(self) -> None:
        request = self._request
        request.body = b"".join(self._body)
        self._body = []
        if self._reply is None and not self._waiting:
            self._serve(request)
        elif len(self._waiting) < _QUEUE:
            self._waiting.append(request)
        else:
            self.reset()

    # What a reply calls.

    def write(self, data: bytes) -> None:
        if self._transport is None or self._closing:
            return
        if self._drops is None:
            self._transport.write(data)
            return
        if not self._drops:
            self._loop.call_soon(self._drop)
        self._drops.extend(data[i : i + 1] for i in range(len(data)))

    def ended(self, close: bool) -> None:
        """The current reply is written, or will be as soon as its last byte has dropped."""
        if self._drops:
            self._loop.call_soon(self.ended, close)
            return
        self._drops = None
        self._reply = None
        if close:
            self.close()
        elif self._waiting:
            self._loop.call_soon(self._next)

    def dribble(self) -> None:
        if self._drops is None:
            self._drops = deque()

    def close(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Close so that the other side sees a reset."""
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        # Through a duplicate of the descriptor, since uvloop's own sockets take no options.
        with socket.socket(fileno=os.dup(sock.fileno())) as twin:
            twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._closing = True
        self._transport.abort()

    def _left(self) -> None:
        """The client has gone: nobody waits for what is being answered."""
        self._waiting.clear()
        reply, self._reply = self._reply, None
        if reply is not None and not reply.done:
            reply.done = True
            if reply.on_gone is not None:
                reply.on_gone()

    def _serve(self, request: Request) -> None:
        # Once the loop has told of all that came with it: who left before it was sent has left by then.
        self._reply = Reply(self, request)
        self._loop.call_soon(self._handle, request, self._reply)

    def _handle(self, request: Request, reply: Reply) -> None:
        if reply is self._reply:
            self._host.handle(request, reply)

    def _next(self) -> None:
        if self._reply is None and self._waiting and not self._closing:
            self._serve(self._waiting.popleft())

    def _drop(self) -> None:
        if self._drops and self._transport is not None and not self._closing:
            self._transport.write(self._drops.popleft())
            if self._drops:
                self._loop.call_soon(self._drop)
        elif self._drops:
            self._drops.clear()
