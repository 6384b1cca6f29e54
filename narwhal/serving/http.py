"""HTTP/1.1, server side: one client connection as the event loop's protocol object.

Bodies are taken by their framing, so that the end of one request is known exactly and the next may follow in
the same read. One request is served at a time: what a client pipelines waits, unread beyond a bound, and
while replies wait for the client to read them no further request is taken. A reply that comes before its
request's body has been read must still reach the client: a short rest of the body is read over, else the
connection is closed in the way that lets the client read first.

A client that closes its sending half has left: nothing tells it from one that is gone, and what it asked for
is not worth an engine's time.
"""

from __future__ import annotations

import asyncio
import re
from enum import Enum
from time import monotonic
from typing import Protocol, cast

from narwhal._fast.chunked import ChunkedDecoder
from narwhal._fast.inbox import Inbox
from narwhal._fast.outlet import Outlet
from narwhal._fast.reactor import Transport
from narwhal.config import ServingConfig
from narwhal.outcomes import Ending
from narwhal.serving import replies
from narwhal.serving.alarm import Alarm
from narwhal.serving.descriptors import ClientLimit
from narwhal.serving.head import RequestHead, malformed, read_head

HEAD_LIMIT = 65536
PIPELINE_LIMIT = 65536  # bytes of later requests that are read while one is served
LOOK_S = 0.5  # how often a client that is not read from is looked after
PIPELINE_BURST = 16  # buffered requests that are begun in one turn of the loop
READ_OVER_LIMIT = 262144  # a rest of a body that is read over to keep the connection
LINGER_S = 30.0  # how long what a client still sends to a closing connection is read over
LINGER_IDLE_S = 5.0  # how long a closing connection's client may neither send nor read
GATHERED_LIMIT = 1 << 24  # bytes of a body for which memory is taken before it has come
_FEW_SURPLUS = 4  # connections beyond the limit that may linger
SMALL_PIECE = 4096  # bytes; what of a body comes in smaller pieces is put together
_EMPTY_LINES = re.compile(rb"(?:\r\n)+")
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Handler(Protocol):
    """Serves one request on a connection; made when its head has come."""

    body_limit: int  # bytes
    body_limit_key: str  # the setting for it; empty: there is none

    def begin(self) -> None:
        """Judge the head, before the body is read. Raises Ending."""

    def run(self, body: bytes) -> None:
        """The body has come: serve, and at last call the connection's `reply` or `finish`."""

    def refuse(self, ending: Ending) -> None:
        """The request ends before `run`; the connection sends the reply."""

    def overdue(self) -> Ending:
        """How the request ends if its deadline passes while its body is being read."""

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
    client_limit: ClientLimit

    def handler(self, head: RequestHead, connection: ClientConnection) -> Handler: ...

    def opened(self, connection: ClientConnection) -> int: ...

    def closed(self, connection: ClientConnection) -> None: ...


class _State(Enum):
    HEAD = "head"  # between requests, or in a head
    BODY = "body"
    SERVING = "serving"  # the handler has the whole request
    READING_OVER = "reading over"  # answered; the rest of a body is dropped
    LINGERING = "lingering"  # answered and closing; whatever comes is dropped
    CLOSED = "closed"


_HEAD, _BODY, _SERVING, _READING_OVER, _LINGERING, _CLOSED = _State  # a look-up in the class is slow


class ClientConnection(Inbox):
    """One client's connection."""

    __slots__ = (
        "_body", "_body_done", "_body_size", "_buffer", "_decoder", "_head_begun", "_left", "_linger_until",
        "_loop", "_pump_due", "_pumping", "_reading_paused", "_server", "_state", "_transport", "_unread",
        "_writing_paused", "alarm", "handler", "head", "outlet", "peer", "stopping",
    )  # fmt: skip

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._transport: Transport | None = None
        self._state = _HEAD
        self._buffer = b""  # what has come and is not read yet: part of a head, or later requests
        self._head_begun = False
        self._body: list[bytes | bytearray] = []
        self._body_size = 0
        self._body_done = False
        self._left = 0
        self._decoder: ChunkedDecoder | None = None
        self._pumping = False
        self._pump_due = False
        self._reading_paused = False
        self._writing_paused = False
        self._unread = 0
        self._linger_until = 0.0
        self.outlet = Outlet()
        self.alarm = Alarm(loop, self._ring)
        self.handler: Handler | None = None
        self.head: RequestHead | None = None
        self.peer = ""
        self.stopping = False

    # ---- the event loop's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("Transport", transport)
        self.outlet.attach(self._transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) and peer else "local"
        surplus = self._server.opened(self)
        if surplus > 0:
            limit, setting = self._server.client_limit
            message = f"{limit} connections are open already ({setting})"
            # The row's envelope and advice are right; no request is counted, as none has come.
            self._protocol_error(Ending("retention_full", message, status=503, code="connection_limit"))
            if surplus > max(_FEW_SURPLUS, limit // 8):
                self.close()  # whatever it may still send: those that linger have files open, too
            return
        self._set_alarm_in(self._server.serving.head_timeout_s)

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state is _BODY:
            self._read_body(data)
        elif state is _READING_OVER:
            self._read_over(data)
        elif state is _LINGERING:
            self.alarm.set(min(monotonic() + LINGER_IDLE_S, self._linger_until))
        elif state is not _CLOSED:
            self._buffer = self._buffer + data if self._buffer else data
            if state is _HEAD and not self._pump_due:
                self._pump()
            else:
                self._regulate_reading()

    def eof_received(self) -> bool:
        if self.handler is None:
            self.close()
        else:
            self._left_by_client()
            self.abort()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.outlet.detach()
        self._left_by_client()
        self._server.closed(self)

    def pause_writing(self) -> None:
        self._writing_paused = True
        if self.handler is not None:
            self.handler.pause()

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self.handler is not None:
            self.handler.resume()
        self._pump()

    # ---- what handlers and the server call

    @property
    def keep_alive(self) -> bool:
        """Whether the connection stays open after the reply at hand."""
        return self.head is not None and self.head.keep_alive and not self.stopping

    @property
    def gone(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._state is _CLOSED

    @property
    def idle(self) -> bool:
        """Whether no request is under way, not even half a head."""
        return self._state is _HEAD and not self._buffer

    def reply(
        self,
        status: int,
        body: bytes,
        content_type: str | None = replies.JSON,
        headers: list[replies.Header] | None = None,
    ) -> None:
        """Send a whole reply and finish the request."""
        if self._state is not _CLOSED:
            self._send(status, body, content_type, headers or [])
            self.finish()

    def send(self, status: int, body: bytes, *, headers: list[replies.Header]) -> None:
        """Send a whole JSON reply, of which the client may take its time to read; `finish` is to follow."""
        self._send(status, body, replies.JSON, headers)

    def finish(self) -> None:
        """The reply is sent: go on with the next request, or close."""
        self.handler = None
        transport = self._transport
        if self._state is _CLOSED or transport is None or transport.is_closing():
            return
        if not self.keep_alive:
            self._linger()
            return
        self.head = None
        self._state = _HEAD
        self._unread = 0
        self._set_alarm_in(self._server.serving.idle_timeout_s)
        self._pump()

    @property
    def patience_s(self) -> float:
        """How long a client may read nothing of what was sent to it."""
        return LINGER_IDLE_S

    def refuse(self, ending: Ending) -> None:
        """End the request although its body is still being read."""
        assert self.head is not None
        self.head.keep_alive = False
        self._refuse(ending)

    def stop(self) -> None:
        """Close as soon as no request is under way: after the reply at hand, or now."""
        self.stopping = True
        if self.idle:
            self.close()

    def close(self) -> None:
        """Close once what was written is sent, for as long as the client reads it."""
        transport = self._transport
        self._state = _CLOSED
        self.outlet.close()
        if transport is not None and transport.get_write_buffer_size():
            self._unread = self.unsent()
            self._set_alarm_in(LINGER_IDLE_S)
        else:
            self.alarm.close()

    def abort(self) -> None:
        """Close now."""
        self.alarm.close()
        self._state = _CLOSED
        self.outlet.detach()
        if self._transport is not None:
            self._transport.abort()

    # ---- reading

    def _pump(self) -> None:
        # Begin what has been buffered, one request after the other until one takes time. A loop, since a long
        # pipeline of short requests must not grow the stack; a bounded one, for the sake of other clients.
        if self._pumping:
            return
        self._pumping = True
        begun = 0
        while self._state is _HEAD and self._buffer and not self._writing_paused:
            if begun == PIPELINE_BURST:
                if not self._pump_due:
                    self._pump_due = True
                    self._loop.call_soon(self._pump_on)
                break
            if not self._read_head():
                break
            begun += 1
        self._pumping = False
        self._regulate_reading()

    def _pump_on(self) -> None:
        self._pump_due = False
        self._pump()

    def _look(self) -> None:
        # Nobody hears of a client's leaving while nothing is read, so the system is asked.
        transport = self._transport
        if not self._reading_paused or transport is None or self._state is _CLOSED:
            return
        if transport.is_established():
            self._loop.call_later(LOOK_S, self._look)
        else:
            self._left_by_client()
            self.abort()

    def _regulate_reading(self) -> None:
        # A head never fills the buffer beyond the limit, so what is above it are requests that must wait.
        full = len(self._buffer) > PIPELINE_LIMIT
        transport = self._transport
        if full is self._reading_paused or transport is None or transport.is_closing():
            return
        self._reading_paused = full
        if full:
            transport.pause_reading()
            self._loop.call_later(LOOK_S, self._look)
        else:
            transport.resume_reading()

    def _read_head(self) -> bool:
        # Take one head out of the buffer and begin its request; returns whether there was one.
        buffer = self._buffer
        if buffer.startswith(b"\r\n"):
            # RFC 9112, section 2.2: empty lines before a request are passed over.
            blank = _EMPTY_LINES.match(buffer)
            assert blank is not None
            self._buffer = buffer = buffer[blank.end() :]
        if not buffer or buffer == b"\r":
            return False
        if not 0x21 <= buffer[0] <= 0x7E:
            hint = " (TLS? this port speaks plain HTTP)" if buffer[0] == 0x16 else ""
            self._protocol_error(malformed(f"it does not begin with a method{hint}"))
            return False
        end = buffer.find(b"\r\n\r\n") + 4
        if end > HEAD_LIMIT or (end < 4 and len(buffer) > HEAD_LIMIT):
            message = f"the request's head is larger than {HEAD_LIMIT} bytes, which is the limit"
            self._protocol_error(Ending("malformed_http", message, status=431, code="head_too_large"))
            return False
        if end < 4:
            if buffer.count(b"\n") > buffer.count(b"\r\n"):
                self._protocol_error(malformed("a bare LF; lines end in CRLF"))
            elif not self._head_begun:
                self._head_begun = True
                self._set_alarm_in(self._server.serving.head_timeout_s)
            return False
        raw = buffer[:end]
        self._buffer = buffer[end:] if len(buffer) > end else b""
        self._head_begun = False
        try:
            head = read_head(raw)
        except Ending as ending:
            self._protocol_error(ending)
            return False
        self._begin(head)
        return True

    def _begin(self, head: RequestHead) -> None:
        self.head = head
        self._body = []
        self._body_size = 0
        self._body_done = not head.has_body
        self._decoder = ChunkedDecoder() if head.chunked else None
        self._left = max(0, head.content_length)
        handler = self.handler = self._server.handler(head, self)
        try:
            handler.begin()
            if head.content_length > handler.body_limit:
                raise _too_large(handler, head.content_length)
        except Ending as ending:
            self._refuse(ending)
            return
        if not head.has_body:
            self._serve(b"")
            return
        data, self._buffer = self._buffer, b""
        length = head.content_length
        if 0 < length <= len(data):
            self._body_is_read()
            self._buffer = data[length:]
            self._serve(data[:length])
            return
        self._state = _BODY
        if head.expects_continue and not data:
            self.outlet.write_bytes(CONTINUE)
        if 0 < length <= GATHERED_LIMIT:
            self.gather(length)
        self._watch_body()
        if data:
            self._read_body(data)

    def _body_is_read(self) -> None:
        self._body_done = True
        self._body_size += self._left
        self._left = 0

    def body_grows(self) -> None:
        """The inbox's call: a part of the body came."""
        self._left -= self.gathered - self._body_size
        self._body_size = self.gathered
        self._watch_body()

    def body_is_whole(self, rest: bytes) -> None:
        """The inbox's call: the body has come, and `rest` behind it."""
        self._body_is_read()
        self._buffer = rest
        self._serve(self.stop_gathering())

    def _watch_body(self) -> None:
        assert self.handler is not None
        self.alarm.set(min(monotonic() + self._server.serving.body_timeout_s, self.handler.deadline))

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
            self._refuse(_too_large(handler, None))
        elif done:
            pieces, self._body = self._body, []
            self._serve(self.stop_gathering() if self.gathering() else b"".join(pieces))
        else:
            self._watch_body()

    def _serve(self, body: bytes) -> None:
        assert self.handler is not None
        self._decoder = None
        self._state = _SERVING
        self.alarm.set(self.handler.deadline)
        self.handler.run(body)

    def _take(self, data: bytes) -> bool:
        # Take the body's bytes out of a read; what follows it is kept. Returns whether the body is whole.
        if self._body_done:
            self._buffer = data
            return True
        if self._decoder is not None:
            payload = self._decoder.feed(data)
            self._body_done = self._decoder.done
            if self._body_done:
                self._buffer = self._decoder.unused
        elif self.gathering():
            used = self.fill(data)
            self._left -= used
            self._body_size += used
            self._body_done = self._left == 0
            self._buffer = data[used:]
            return self._body_done
        else:
            payload = data if len(data) <= self._left else data[: self._left]
            self._left -= len(payload)
            self._body_done = self._left == 0
            if len(payload) < len(data):
                self._buffer = data[len(payload) :]
        self._body_size += len(payload)
        if payload and self._state is _BODY:
            self._keep(payload)
        return self._body_done

    def _keep(self, payload: bytes) -> None:
        # Small pieces after the first are put together, or a body sent byte by byte would take many times
        # its size.
        pieces = self._body
        if len(payload) >= SMALL_PIECE or not pieces:
            pieces.append(payload)
            return
        last = pieces[-1]
        if isinstance(last, bytearray):
            last += payload
        else:
            pieces.append(bytearray(payload))

    def _read_over(self, data: bytes) -> None:
        if self._take(data):
            self.finish()

    # ---- replying

    def _send(
        self, status: int, body: bytes, content_type: str | None, headers: list[replies.Header]
    ) -> None:
        raw = replies.head(status, content_type, len(body), headers, not self.keep_alive)
        if self.head is not None and self.head.method == "HEAD":
            body = b""
        self.outlet.write_pieces([raw, body], len(raw) + len(body))

    def _refuse(self, ending: Ending) -> None:
        # Answer before the body has been read.
        handler, head = self.handler, self.head
        assert handler is not None
        assert head is not None
        self.handler = None
        self._body = []
        self.stop_gathering()
        self._state = _READING_OVER
        handler.refuse(ending)
        # What has come already is passed over first: the body's end may be among it.
        data, self._buffer = self._buffer, b""
        begun = bool(data or self._body_size)
        if not self._body_done:
            try:
                self._take(data)
            except ValueError:
                head.keep_alive = False
        else:
            self._buffer = data
        if not self._body_done and (
            head.chunked or self._left > READ_OVER_LIMIT or (head.expects_continue and not begun)
        ):
            # The rest is long, or it isn't known whether it will come at all.
            head.keep_alive = False
        status, body, headers = replies.error(ending, handler.reply_headers())
        self._send(status, body, replies.JSON, headers)
        if self._body_done or not self.keep_alive:
            self.finish()
        else:
            self._set_alarm_in(self._server.serving.body_timeout_s)

    def _protocol_error(self, ending: Ending) -> None:
        # No route is known: answer and close.
        self.head = None
        status, body, headers = replies.error(ending, [])
        self._send(status, body, replies.JSON, headers)
        self._linger()

    def _linger(self) -> None:
        # Close our half and read over what the client still sends: a close with unread bytes is a reset,
        # which may take the reply away from the client (RFC 9112, section 9.6).
        self._buffer = b""
        self._body = []
        self.stop_gathering()
        self._state = _LINGERING
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._regulate_reading()
        self._unread = self.unsent()
        transport.write_eof()
        self._linger_until = monotonic() + LINGER_S
        self._set_alarm_in(LINGER_IDLE_S)

    # ---- time

    def _set_alarm_in(self, seconds: float) -> None:
        self.alarm.set(monotonic() + seconds)

    def _ring(self, now: float) -> None:
        state, handler = self._state, self.handler
        serving = self._server.serving
        if state is _SERVING:
            if handler is not None:
                handler.on_alarm(now)
        elif state is _BODY:
            assert handler is not None
            self.refuse(handler.overdue() if now >= handler.deadline else self._body_timeout())
        elif state is _HEAD and self._head_begun:
            message = (
                f"the request's head was not complete {serving.head_timeout_s:g} s after its first byte "
                "(serving.head_timeout_s)"
            )
            self._protocol_error(Ending("body_timeout", message, code="head_timeout"))
        else:
            before, self._unread = self._unread, self.unsent()
            if self._unread and (not before or self._unread < before):
                self._set_alarm_in(LINGER_IDLE_S)  # it reads, if slowly
            elif self._unread or state is _LINGERING:
                self.abort()
            elif state is not _CLOSED:
                self.close()

    def _body_timeout(self) -> Ending:
        return Ending(
            "body_timeout",
            f"no byte of the body came for {self._server.serving.body_timeout_s:g} s "
            f"(serving.body_timeout_s); {self._body_size} bytes had come",
        )

    def unsent(self) -> int:
        """Bytes that the client has not taken yet.

        The kernel's share tells a slow reader from none: it makes room for more only in large steps.
        """
        return 0 if self._transport is None else self._transport.unsent()

    # ---- the end

    def _left_by_client(self) -> None:
        self.alarm.close()
        self._state = _CLOSED
        self._buffer = b""
        self._body = []
        self.stop_gathering()
        handler, self.handler = self.handler, None
        if handler is not None:
            handler.client_left()


def _too_large(handler: Handler, declared: int | None) -> Ending:
    seen = "more than that" if declared is None else f"{declared} bytes"
    setting = f" ({handler.body_limit_key})" if handler.body_limit_key else ""
    return Ending(
        "request_too_large",
        f"the body may be {handler.body_limit} bytes at most{setting}; this one has {seen}",
    )
