"""HTTP/1.1, server side: one client connection as the event loop's protocol object.

Heads are checked byte by byte for what smuggles requests (heads.check_request_head), then read by httptools;
bodies are taken by their framing, so that the end of one request is known exactly and the next may follow in
the same read. One request is served at a time: what a client pipelines waits, unread beyond a bound. A reply
that comes before its request's body has been read must still reach the client: a short rest of the body is
read over, else the connection is closed in the way that lets the client read first.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, cast

import httptools

from narwhal._fast.chunked import ChunkedDecoder
from narwhal._fast.heads import check_request_head
from narwhal._fast.outlet import Outlet
from narwhal.config import ServingConfig
from narwhal.outcomes import Ending
from narwhal.serving import replies
from narwhal.serving.alarm import Alarm

HEAD_LIMIT = 65536
PIPELINE_LIMIT = 65536  # bytes of later requests that are read while one is served
READ_OVER_LIMIT = 262144  # a rest of a body that is read over to keep the connection
LINGER_S = 5.0  # how long a closing connection's client may take to read and close
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(slots=True)
class RequestHead:
    """A request's head."""

    method: str
    path: str
    headers: dict[bytes, bytes]  # lower-case names; the last of equal ones
    http11: bool
    keep_alive: bool
    content_length: int  # -1: none given
    chunked: bool

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        return self.chunked or self.content_length > 0


class Handler(Protocol):
    """Serves one request on a connection; made when its head has come."""

    body_limit: int  # bytes

    def begin(self) -> None:
        """Judge the head, before the body is read. Raises Ending."""

    def run(self, body: bytes) -> None:
        """The body has come: serve, and at last call the connection's `reply` or `finish`."""

    def refuse(self, ending: Ending) -> None:
        """The request ends before `run`; the connection sends the reply."""

    def on_alarm(self, now: float) -> None:
        """What was set with the connection's alarm."""

    def client_left(self) -> None:
        """The client closed the connection."""

    def pause(self) -> None:
        """The client reads too slowly: stop producing."""

    def resume(self) -> None:
        """It reads again."""

    def reply_headers(self) -> list[replies.Header]:
        """Headers of each reply to this request."""

    @property
    def deadline(self) -> float:
        """When the request must be over (monotonic seconds; infinity: whenever)."""


class Server(Protocol):
    """What a connection needs of its server."""

    serving: ServingConfig

    def handler(self, head: RequestHead, connection: ClientConnection) -> Handler: ...

    def opened(self, connection: ClientConnection) -> bool: ...

    def closed(self, connection: ClientConnection) -> None: ...


class _State(Enum):
    HEAD = "head"  # between requests, or in a head
    BODY = "body"
    SERVING = "serving"  # the handler has the whole request
    READING_OVER = "reading over"  # answered; the rest of a body is dropped
    LINGERING = "lingering"  # answered and closing; whatever comes is dropped
    CLOSED = "closed"


class ClientConnection(asyncio.Protocol):
    """One client's connection."""

    __slots__ = (
        "_body", "_body_size", "_buffer", "_decoder", "_left", "_loop", "_paused_reading", "_server",
        "_state", "alarm", "handler", "head", "outlet", "peer", "stopping",
    )  # fmt: skip

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._state = _State.HEAD
        self._buffer = b""
        self._body: list[bytes] = []
        self._body_size = 0
        self._left = 0
        self._decoder: ChunkedDecoder | None = None
        self._paused_reading = False
        self.outlet = Outlet()
        self.alarm = Alarm(loop, self._ring)
        self.handler: Handler | None = None
        self.head: RequestHead | None = None
        self.peer = ""
        self.stopping = False

    # ---- the event loop's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.outlet.attach(cast("asyncio.Transport", transport))
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) and peer else "local"
        if not self._server.opened(self):
            self._protocol_error(
                503, "too many connections are open (serving.client_connection_limit)", "overloaded"
            )
            return
        self._wait_for_head(self._server.serving.head_timeout_s)

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state is _State.HEAD:
            self._buffer = self._buffer + data if self._buffer else data
            self._read_head()
        elif state is _State.BODY:
            self._read_body(data)
        elif state is _State.SERVING:
            self._buffer += data
            if len(self._buffer) > PIPELINE_LIMIT and not self._paused_reading:
                self._paused_reading = True
                self._transport().pause_reading()
        elif state is _State.READING_OVER:
            self._read_over(data)

    def eof_received(self) -> bool:
        # A client that closes its half has left, as far as can be told: what it asked for is not worth a GPU.
        if self._state is _State.LINGERING or self.handler is None:
            self.close()
        else:
            self._left_by_client()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.outlet.detach()
        self._left_by_client()
        self._server.closed(self)

    def pause_writing(self) -> None:
        if self.handler is not None:
            self.handler.pause()

    def resume_writing(self) -> None:
        if self.handler is not None:
            self.handler.resume()

    # ---- what handlers call

    @property
    def keep_alive(self) -> bool:
        """Whether the connection stays open after the reply at hand."""
        return self.head is not None and self.head.keep_alive and not self.stopping

    @property
    def gone(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._state is _State.CLOSED

    def reply(
        self,
        status: int,
        body: bytes,
        content_type: str | None = replies.JSON,
        headers: list[replies.Header] | None = None,
    ) -> None:
        """Send a whole reply and finish the request."""
        if self._state is _State.CLOSED:
            return
        close = not self.keep_alive
        head = replies.head(status, content_type, len(body), headers or (), close)
        if self.head is not None and self.head.method == "HEAD":
            body = b""
        self.outlet.write_pieces([head, body], len(head) + len(body))
        self.finish()

    def finish(self) -> None:
        """The reply is sent: go on with the next request, or close."""
        self.handler = None
        if self._state is _State.CLOSED:
            return
        if not self.keep_alive:
            self._linger()
            return
        self.head = None
        self._state = _State.HEAD
        if self._paused_reading:
            self._paused_reading = False
            self._transport().resume_reading()
        self._wait_for_head(self._server.serving.idle_timeout_s)
        if self._buffer:
            # Not from here: a long pipeline of short requests must not grow the stack.
            self._loop.call_soon(self._resume_pipeline)

    def close(self) -> None:
        """Close once what was written is sent."""
        self.alarm.close()
        self._state = _State.CLOSED
        self.outlet.close()

    def abort(self) -> None:
        """Close now."""
        self.alarm.close()
        self._state = _State.CLOSED
        self.outlet.abort()

    @property
    def idle(self) -> bool:
        """Whether no request is under way, not even half a head."""
        return self._state is _State.HEAD and not self._buffer

    # ---- reading

    def _resume_pipeline(self) -> None:
        if self._state is _State.HEAD and self._buffer:
            self._read_head()

    def _wait_for_head(self, timeout_s: float) -> None:
        self.alarm.set(time.monotonic() + timeout_s)

    def _read_head(self) -> None:
        buffer = self._buffer
        if buffer[:2] == b"\r\n":
            # RFC 9112, section 2.2: an empty line before a request is passed over.
            self._buffer = buffer = buffer[2:]
            if not buffer:
                return
        end = buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            if len(buffer) > HEAD_LIMIT:
                self._protocol_error(
                    431, f"the request's head is larger than {HEAD_LIMIT} bytes", "head_too_large"
                )
            elif b"\n\n" in buffer:
                self._protocol_error(
                    400, "the request's head ends its lines with a bare LF", "malformed_http"
                )
            elif len(buffer) > 0 and not self._head_begun:
                self._wait_for_head(self._server.serving.head_timeout_s)
                self.head = _BEGUN
            return
        if end > HEAD_LIMIT:
            self._protocol_error(
                431, f"the request's head is larger than {HEAD_LIMIT} bytes", "head_too_large"
            )
            return
        raw = buffer[:end]
        self._buffer = buffer[end:] if len(buffer) > end else b""
        self.head = None
        try:
            length, chunked = check_request_head(raw)
            head = _parse(raw, length, chunked)
        except ValueError as error:
            self._protocol_error(400, f"malformed request: {error}", "malformed_http")
            return
        self._begin(head)

    @property
    def _head_begun(self) -> bool:
        return self.head is _BEGUN

    def _begin(self, head: RequestHead) -> None:
        self.head = head
        self._body = []
        self._body_size = 0
        self._decoder = ChunkedDecoder() if head.chunked else None
        self._left = max(0, head.content_length)
        handler = self.handler = self._server.handler(head, self)
        try:
            handler.begin()
            if head.content_length > handler.body_limit:
                raise _too_large(handler.body_limit, head.content_length)
        except Ending as ending:
            self._refuse(ending)
            return
        if not head.has_body:
            self._state = _State.SERVING
            self.alarm.set(handler.deadline)
            handler.run(b"")
            return
        self._state = _State.BODY
        if not self._buffer and head.headers.get(b"expect", b"").lower() == b"100-continue" and head.http11:
            self.outlet.write_bytes(CONTINUE)
        data, self._buffer = self._buffer, b""
        self._watch_body()
        if data:
            self._read_body(data)

    def _watch_body(self) -> None:
        assert self.handler is not None
        self.alarm.set(min(time.monotonic() + self._server.serving.body_timeout_s, self.handler.deadline))

    def _read_body(self, data: bytes) -> None:
        handler = self.handler
        assert handler is not None
        try:
            done = self._take(data)
        except ValueError as error:
            assert self.head is not None
            self.head.keep_alive = False
            self._refuse(Ending("malformed_http", f"the body's chunked coding is broken: {error}"))
            return
        if self._body_size > handler.body_limit:
            self._refuse(_too_large(handler.body_limit, None))
            return
        if not done:
            self._watch_body()
            return
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        self._decoder = None
        self._state = _State.SERVING
        self.alarm.set(handler.deadline)
        handler.run(body)

    def _take(self, data: bytes) -> bool:
        # Take the body's bytes out of a read; what follows it is kept. Returns whether the body is whole.
        if self._decoder is not None:
            payload = self._decoder.feed(data)
            done = self._decoder.done
            if done:
                self._buffer = self._decoder.unused
        else:
            payload = data if len(data) <= self._left else data[: self._left]
            self._left -= len(payload)
            done = self._left == 0
            if len(payload) < len(data):
                self._buffer = data[len(payload) :]
        if payload:
            self._body_size += len(payload)
            if self._state is _State.BODY:
                self._body.append(payload)
        return done

    def _read_over(self, data: bytes) -> None:
        if self._take(data):
            self.finish()

    # ---- ending early

    def _refuse(self, ending: Ending) -> None:
        # Answer before the body has been read.
        handler, head = self.handler, self.head
        assert handler is not None
        assert head is not None
        self.handler = None
        self._body = []
        handler.refuse(ending)
        rest_is_short = not head.chunked and self._left - len(self._buffer) <= READ_OVER_LIMIT
        expects = b"expect" in head.headers and not self._buffer and not self._body_size
        if head.has_body and (expects or not rest_is_short):
            head.keep_alive = False
        status, body, headers = replies.error(ending, handler.reply_headers())
        close = not self.keep_alive
        raw = replies.head(status, replies.JSON, len(body), headers, close)
        self.outlet.write_pieces([raw, body], len(raw) + len(body))
        if close:
            self._linger()
            return
        self._state = _State.READING_OVER
        data, self._buffer = self._buffer, b""
        self.alarm.set(time.monotonic() + self._server.serving.body_timeout_s)
        if self._left == 0 or data:
            self._read_over(data)

    def _protocol_error(self, status: int, message: str, code: str) -> None:
        # No route is known: answer and close.
        self.head = None
        body = replies.protocol_error(message, code)
        raw = replies.head(status, replies.JSON, len(body), [("x-should-retry", "false")], True)
        self.outlet.write_pieces([raw, body], len(raw) + len(body))
        self._linger()

    def _head_too_large(self) -> None:
        self._protocol_error(431, f"the request's head is larger than {HEAD_LIMIT} bytes", "head_too_large")

    def _linger(self) -> None:
        # Close our half and read over what the client still sends: a close with unread bytes is a reset,
        # which may take the reply away from the client (RFC 9112, section 9.6).
        self._buffer = b""
        self._body = []
        self._state = _State.LINGERING
        transport = self.outlet.transport_or_none()
        if transport is None or not transport.can_write_eof():
            self.close()
            return
        if self._paused_reading:
            self._paused_reading = False
            transport.resume_reading()
        transport.write_eof()
        self.alarm.set(time.monotonic() + LINGER_S)

    def _ring(self, now: float) -> None:
        state = self._state
        if state is _State.SERVING:
            if self.handler is not None:
                self.handler.on_alarm(now)
        elif state is _State.BODY:
            assert self.handler is not None
            assert self.head is not None
            self.head.keep_alive = False
            if now >= self.handler.deadline:
                self._refuse(
                    Ending("deadline_expired", "the request's deadline passed while its body was being read")
                )
            else:
                limit = self._server.serving.body_timeout_s
                self._refuse(
                    Ending(
                        "body_timeout",
                        f"no byte of the body came for {limit:g} s (serving.body_timeout_s); "
                        f"{self._body_size} bytes had come",
                    )
                )
        elif state is _State.HEAD and self._buffer:
            limit = self._server.serving.head_timeout_s
            self._protocol_error(408, f"the request's head did not come within {limit:g} s", "head_timeout")
        elif state is not _State.CLOSED:
            self.abort() if state is _State.LINGERING else self.close()

    def _left_by_client(self) -> None:
        self.alarm.close()
        self._state = _State.CLOSED
        self._buffer = b""
        self._body = []
        handler, self.handler = self.handler, None
        if handler is not None:
            handler.client_left()

    def _transport(self) -> asyncio.Transport:
        transport = self.outlet.transport_or_none()
        assert transport is not None
        return transport


_BEGUN = RequestHead("", "", {}, False, False, -1, False)


def _too_large(limit: int, declared: int | None) -> Ending:
    seen = "more than that" if declared is None else f"{declared} bytes"
    return Ending(
        "request_too_large",
        f"the body may be {limit} bytes at most (serving.max_request_bytes); this one has {seen}",
    )


class _HeadReader:
    """httptools' callbacks for one head."""

    __slots__ = ("headers", "url")

    def __init__(self) -> None:
        self.url = b""
        self.headers: dict[bytes, bytes] = {}

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"connection" and name in self.headers:
            value = self.headers[name] + b"," + value
        self.headers[name] = value


def _parse(raw: bytes, length: int, chunked: bool) -> RequestHead:
    """Read a checked head. Raises ValueError with what is wrong."""
    reader = _HeadReader()
    parser = httptools.HttpRequestParser(reader)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # an upgrade that is offered need not be taken (RFC 9110, section 7.8)
    except httptools.HttpParserError as error:
        raise ValueError(str(error) or "not HTTP") from None
    url = reader.url
    if not url.startswith(b"/") and url != b"*":
        try:
            url = httptools.parse_url(url).path or b"/"
        except httptools.HttpParserError:
            raise ValueError("the request's target is not a path") from None
    http11 = parser.get_http_version() == "1.1"
    options = reader.headers.get(b"connection", b"").lower().split(b",")
    keep_alive = http11 and b"close" not in [option.strip() for option in options]
    return RequestHead(
        method=parser.get_method().decode("ascii"),
        path=url.split(b"?", 1)[0].decode("latin-1"),
        headers=reader.headers,
        http11=http11,
        keep_alive=keep_alive,
        content_length=length,
        chunked=chunked,
    )
