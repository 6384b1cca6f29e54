"""A connection to an engine: each reply is told once, and the connection goes back once or closes.

Replies are written down byte by byte and come in any pieces; a connection that is over is never used again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal._fast.link import EngineLink
from narwhal._fast.outlet import Outlet
from narwhal._fast.reactor import Reactor
from narwhal._fast.relay import Relay
from tests.fast.splits import CUTS, splits
from tests.fast.transports import RecordingTransport
from tests.fast.waiting import until

REQUEST = b"POST / HTTP/1.1\r\n\r\n"
EVENT = b'data: {"choices":[{"text":"a","token_ids":[1]}]}\n\n'
SHOWN = b'data: {"choices":[{"text":"a"}]}\n\n'
ERROR = b'data: {"error":{"code":500}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
LIMIT = 1000
SURPLUS_LIMIT = 65536


class Pool:
    """Counts what it is told of the connection."""

    def __init__(self) -> None:
        self.freed = 0
        self.gone_ = 0
        self.events_after_done = 0
        self.on_free: Callable[[EngineLink], None] = lambda link: None

    def free(self, link: EngineLink) -> None:
        self.freed += 1
        assert link.idle
        self.on_free(link)

    def gone(self, link: EngineLink) -> None:
        self.gone_ += 1

    def after_done(self, events: int) -> None:
        self.events_after_done += events


class Leg:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def on_reply(self, status: int, body: bytes, retry_after_s: int) -> None:
        self.told.append((status, body, retry_after_s))

    def on_lost(self, why: str, stale: bool) -> None:
        assert why
        self.told.append(("lost", stale))


class Owner:
    """A relay's owner."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.on: dict[str, Callable[[], None]] = {}

    def on_output(self) -> None:
        self.calls.append("output")
        self.on.get("output", lambda: None)()

    def on_end(self) -> None:
        self.calls.append("end")
        self.on.get("end", lambda: None)()


class Engine:
    """A connection to an engine that the test plays."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.pool = Pool()
        self.transport = RecordingTransport()
        self.link = EngineLink(self.pool, limit)
        self.link.connection_made(self.transport)
        self.owner = Owner()
        self.client = RecordingTransport()
        self.relay: Relay | None = None

    def ask(self, streamed: bool = False) -> Leg:
        """Send a request."""
        leg = Leg()
        if streamed:
            outlet = Outlet()
            outlet.attach(self.client)
            self.relay = Relay(self.owner, outlet=outlet, framed=False)
            self.relay.begin(True)
        self.link.start([REQUEST], len(REQUEST), leg, self.relay if streamed else None)
        return leg

    def reply(self, *pieces: bytes) -> None:
        """Bytes come from the engine, unless the connection has been closed."""
        for piece in filter(None, pieces):
            if self.transport.closing:
                return
            self.link.data_received(piece)

    def hang_up(self, error: Exception | None = None) -> None:
        """The connection ends, from either side."""
        if error is None and not self.transport.closing:
            self.link.eof_received()
        self.link.connection_lost(error)

    @property
    def streamed(self) -> bytes:
        """What the client was sent."""
        return b"".join(self.client.writes)


@dataclass(frozen=True)
class Reply:
    """A reply as bytes, and what is to come of it."""

    raw: bytes
    told: list[tuple[object, ...]]
    reused: bool
    to_close: bool = False


def chunked(body: bytes, sizes: list[int]) -> bytes:
    """The body in chunks of these sizes, then of what is left."""
    coded = b""
    for size in [*sizes, len(body)]:
        if piece := body[:size]:
            coded += b"%x\r\n%b\r\n" % (len(piece), piece)
            body = body[size:]
    return coded + b"0\r\n\r\n"


INTERIM = [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n"]


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    """A whole reply to a request that is not streamed, or to one that is but was refused."""
    status = draw(st.sampled_from([200, 200, 400, 404, 503, 204, 304]))
    version = draw(st.sampled_from([b"1.1", b"1.1", b"1.0"]))
    body = draw(st.binary(max_size=60))
    framing = draw(
        st.sampled_from(["sized", "chunked", "to close"] if version == b"1.1" else ["sized", "to close"])
    )
    option = draw(st.sampled_from([b"", b"", b"Connection: close\r\n", b"connection: Keep-Alive\r\n"]))
    wait = draw(st.sampled_from([-1, -1, 7]))
    raw = b"".join(draw(st.lists(st.sampled_from(INTERIM), max_size=2)))
    raw += b"HTTP/%b %d X\r\n%b" % (version, status, option)
    if wait >= 0:
        raw += b"Retry-After: %d\r\n" % wait
    no_body = status in (204, 304)
    if no_body:
        raw += draw(st.sampled_from([b"", b"Content-Length: 50\r\n", b"Transfer-Encoding: chunked\r\n"]))
        raw = raw.replace(b"Transfer-Encoding: chunked\r\n", b"") if version == b"1.0" else raw
        raw, body = raw + b"\r\n", b""
    elif framing == "sized":
        raw += b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    elif framing == "chunked":
        raw += b"Transfer-Encoding: chunked\r\n\r\n" + chunked(
            body, draw(st.lists(st.integers(1, 9), max_size=3))
        )
    else:
        raw += b"\r\n" + body
    to_close = framing == "to close" and not no_body
    keep_alive = option != b"Connection: close\r\n" and (version == b"1.1" or b"Keep-Alive" in option)
    return Reply(raw, [(status, body, wait)], keep_alive and not to_close, to_close)


@settings(max_examples=60, deadline=None)
@given(st.lists(replies(), min_size=1, max_size=3), CUTS, st.booleans())
def test_each_reply_is_told_once_and_the_connection_serves_on_if_it_may(
    script: list[Reply], cuts: list[int], streamed: bool
) -> None:
    for at, pieces in enumerate(splits(script[0].raw, cuts)):
        engine = Engine()
        for number, reply in enumerate(script):
            leg = engine.ask(streamed)
            engine.reply(*(pieces if number == 0 else list(splits(reply.raw))[at % 2]))
            if reply.to_close:
                assert leg.told == []
                engine.hang_up()
            assert leg.told == reply.told
            assert engine.link.idle == reply.reused
            assert engine.pool.freed == number + reply.reused
            if not reply.reused:
                break
        assert engine.link.reused == (engine.pool.freed > 0)
        assert engine.owner.calls == []
        if not engine.pool.gone_:
            assert engine.transport.closing == (not engine.link.idle)
            engine.hang_up()
        assert engine.pool.gone_ == 1
        assert leg.told == reply.told


@settings(max_examples=60, deadline=None)
@given(replies(), st.integers(0, 300), CUTS, st.booleans(), st.booleans())
def test_a_reply_that_breaks_off_is_told_once_as_lost(
    reply: Reply, size: int, cuts: list[int], reset: bool, reused: bool
) -> None:
    whole = reply.raw.rpartition(b"\r\n\r\n")[0] if reply.to_close else reply.raw
    begun = whole[: size % len(whole)]
    for pieces in splits(begun, cuts):
        engine = Engine()
        if reused:
            engine.ask()
            engine.reply(b"HTTP/1.1 204 X\r\n\r\n")
        leg = engine.ask()
        engine.reply(*pieces)
        assert leg.told == []
        engine.hang_up(ConnectionResetError() if reset else None)
        # Only before a byte came can it be that the engine never saw the request.
        assert leg.told == [("lost", reused and not begun)]
        assert (engine.pool.freed, engine.pool.gone_) == (reused, 1)


def test_a_body_to_the_close_is_lost_if_the_connection_is_reset() -> None:
    engine = Engine()
    leg = engine.ask()
    engine.reply(b"HTTP/1.1 200 OK\r\n\r\nhalf")
    engine.hang_up(ConnectionResetError())
    assert leg.told == [("lost", False)]


@dataclass(frozen=True)
class Streamed:
    """A streamed reply and what is to come of it."""

    payload: bytes
    client: bytes
    calls: list[str]
    failure: str | None = None


STREAMED = st.sampled_from(
    [
        Streamed(EVENT * 3 + DONE, SHOWN * 3 + DONE, ["output", "end"]),
        Streamed(b": hello\n\n" + EVENT + DONE, b": hello\n\n" + SHOWN + DONE, ["output", "end"]),
        Streamed(EVENT + DONE + EVENT, SHOWN + DONE, ["output", "end"]),
        Streamed(EVENT * 2, SHOWN * 2, ["output", "end"], "broken_stream"),
        Streamed(EVENT + ERROR + EVENT, SHOWN, ["output", "end"], "engine_error"),
        Streamed(ERROR + DONE, b"", ["end"], "engine_error"),
        Streamed(b"", b"", ["end"], "broken_stream"),
    ]
)


@settings(max_examples=60, deadline=None)
@given(
    STREAMED,
    st.sampled_from(["sized", "chunked", "to close"]),
    st.lists(st.integers(1, 90), max_size=4),
    CUTS,
)
def test_a_stream_goes_to_the_client_and_its_end_is_told_once(
    stream: Streamed, framing: str, sizes: list[int], cuts: list[int]
) -> None:
    raw = STREAM
    if framing == "sized":
        raw += b"Content-Length: %d\r\n\r\n" % len(stream.payload) + stream.payload
    elif framing == "chunked":
        raw += b"Transfer-Encoding: chunked\r\n\r\n" + chunked(stream.payload, sizes)
    else:
        raw += b"\r\n" + stream.payload
    for pieces in splits(raw, cuts):
        engine = Engine()
        leg = engine.ask(streamed=True)
        assert engine.relay is not None
        engine.reply(*pieces)
        freed = framing != "to close" and stream.failure is None
        assert engine.pool.freed == freed
        assert engine.link.idle == freed
        assert not engine.link.answering or framing == "to close"
        engine.hang_up()
        assert (engine.streamed, engine.owner.calls) == (stream.client, stream.calls)
        assert engine.relay.failure == stream.failure
        assert leg.told == []
        assert engine.pool.gone_ == 1
        assert engine.pool.freed == freed


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize(
    ("framing", "body"),
    [
        (b"Content-Length: 999\r\n", EVENT),
        (b"Transfer-Encoding: chunked\r\n", b"%x\r\n%b" % (len(EVENT), EVENT)),
        (b"", EVENT),
        (b"Transfer-Encoding: chunked\r\n", chunked(EVENT, [])[:-5] + b"x"),
    ],
)
def test_a_stream_that_breaks_off_has_failed_after_what_came_of_it(
    framing: bytes, body: bytes, reset: bool
) -> None:
    raw = STREAM + framing + b"\r\n" + body
    for pieces in splits(raw):
        engine = Engine()
        leg = engine.ask(streamed=True)
        engine.reply(*pieces)
        engine.hang_up(ConnectionResetError() if reset else None)
        assert engine.relay is not None
        assert (engine.streamed, engine.owner.calls) == (SHOWN, ["output", "end"])
        assert engine.relay.failure == "broken_stream"
        assert (leg.told, engine.pool.freed, engine.pool.gone_) == ([], 0, 1)


def test_the_end_is_told_with_done_and_the_connection_goes_back_with_the_end_of_the_reply() -> None:
    engine = Engine()
    engine.ask(streamed=True)
    coded = chunked(EVENT + DONE, [])
    engine.reply(STREAM + b"Transfer-Encoding: chunked\r\n\r\n" + coded[:-5])
    assert engine.owner.calls == ["output", "end"]
    assert not engine.link.answering
    assert not engine.link.idle
    engine.reply(b"0\r\n")
    assert engine.pool.freed == 0
    engine.reply(b"\r\n")
    assert engine.pool.freed == 1
    assert engine.link.freed_at > 0


def test_events_that_come_with_done_are_counted_though_each_is_a_chunk() -> None:
    engine = Engine()
    engine.ask(streamed=True)
    sizes = [len(EVENT), len(DONE), 20]
    engine.reply(STREAM + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(EVENT + DONE + EVENT, sizes))
    assert engine.relay is not None
    assert engine.relay.dropped_after_done == 1
    assert engine.streamed == SHOWN + DONE
    assert engine.pool.freed == 1


def test_events_that_come_reads_after_done_are_counted_once_the_reply_has_ended() -> None:
    for ends in (b"0\r\n\r\n", None):
        engine = Engine()
        engine.ask(streamed=True)
        late = chunked(EVENT + EVENT, [20, 30])
        engine.reply(STREAM + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(EVENT + DONE, [])[:-5])
        for at in range(len(late) - 5):
            engine.reply(late[at : at + 1])
        assert engine.pool.events_after_done == 0
        if ends is None:
            engine.hang_up(None)
        else:
            engine.reply(ends)
        assert engine.pool.events_after_done == 2
        assert engine.streamed == SHOWN + DONE


@pytest.mark.parametrize("framing", [b"Content-Length: 10000000\r\n", b""])
def test_what_follows_done_is_read_over_but_not_without_end(framing: bytes) -> None:
    engine = Engine()
    engine.ask(streamed=True)
    engine.reply(STREAM + framing + b"\r\n" + EVENT + DONE)
    engine.reply(*[b"x" * 1000] * (SURPLUS_LIMIT // 1000))
    assert not engine.transport.closing
    engine.reply(b"x" * 1000)
    assert engine.transport.aborts == 1
    engine.hang_up()
    assert engine.owner.calls == ["output", "end"]
    assert (engine.pool.freed, engine.pool.gone_) == (0, 1)


@pytest.mark.parametrize("head", [b"Content-Length: 1001\r\n", b"Transfer-Encoding: chunked\r\n", b""])
def test_a_reply_larger_than_the_limit_is_lost(head: bytes) -> None:
    for size in (LIMIT, LIMIT + 1):
        engine = Engine()
        leg = engine.ask()
        body = b"x" * size
        coded = chunked(body, [600]) if b"chunked" in head else body
        engine.reply(
            b"HTTP/1.1 200 OK\r\n" + head.replace(b"1001", b"%d" % size) + b"\r\n", coded[:700], coded[700:]
        )
        if size > LIMIT:
            assert engine.transport.aborts == 1
        engine.hang_up()
        assert leg.told == ([(200, body, -1)] if size == LIMIT else [("lost", False)])
        assert engine.pool.gone_ == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\nA: b\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 nope\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * 65536,
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_a_reply_that_is_not_http_is_lost_and_the_connection_closed(raw: bytes, streamed: bool) -> None:
    for pieces in splits(raw) if len(raw) < 1000 else ([raw], [raw[:40000], raw[40000:]]):
        engine = Engine()
        leg = engine.ask(streamed)
        engine.reply(*pieces)
        assert leg.told == [("lost", False)]
        assert engine.transport.aborts == 1
        engine.hang_up()
        assert (leg.told, engine.pool.freed, engine.pool.gone_) == ([("lost", False)], 0, 1)


def test_bytes_beyond_a_reply_keep_the_connection_from_being_used_again() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    for surplus in (b"x", b"HTTP/1.1 200 OK\r\n\r\n"):
        for pieces in ([raw + surplus], [raw, surplus]):
            engine = Engine()
            leg = engine.ask()
            engine.reply(*pieces)
            assert leg.told == [(200, b"ok", -1)]
            assert not engine.link.idle
            assert engine.transport.aborts == 1
            engine.hang_up()
            assert engine.pool.gone_ == 1


# Ends that nobody waits for.


@pytest.mark.parametrize(
    "before",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        STREAM + b"\r\n",
        STREAM + b"\r\n" + EVENT,
        STREAM + b"\r\n" + EVENT + DONE,
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_an_abort_closes_the_connection_and_tells_nobody(before: bytes, streamed: bool) -> None:
    engine = Engine()
    leg = engine.ask(streamed)
    if before:
        engine.reply(before)
    calls = list(engine.owner.calls)
    engine.link.abort()
    engine.link.abort()
    assert engine.transport.aborts == 1
    engine.link.data_received(EVENT)
    engine.hang_up()
    assert (leg.told, engine.owner.calls) == ([], calls)
    assert (engine.pool.freed, engine.pool.gone_) == (0, 1)


def test_an_idle_connection_that_the_engine_closes_is_not_used_again() -> None:
    engine = Engine()
    assert engine.link.idle
    assert not engine.link.eof_received()
    assert not engine.link.idle
    engine.link.connection_lost(None)
    assert engine.pool.gone_ == 1


def test_an_idle_connection_that_says_something_is_not_used_again() -> None:
    engine = Engine()
    engine.reply(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    assert engine.transport.aborts == 1
    assert not engine.link.idle


@pytest.mark.parametrize("reused", [True, False])
def test_a_request_on_a_connection_that_is_gone_is_told_at_once(reused: bool) -> None:
    engine = Engine()
    if reused:
        engine.ask()
        engine.reply(b"HTTP/1.1 204 X\r\n\r\n")
    engine.hang_up()
    leg = engine.ask()
    assert leg.told == [("lost", reused)]
    assert not engine.link.idle
    assert engine.pool.gone_ == 1


# What callbacks may do.


def _stream(engine: Engine, body: bytes, end: bool = True) -> None:
    coded = chunked(body, [])
    engine.reply(STREAM + b"Transfer-Encoding: chunked\r\n\r\n" + (coded if end else coded[:-5]))


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("body", [EVENT, EVENT + DONE, EVENT + ERROR])
@pytest.mark.parametrize("call", ["output", "end"])
def test_the_owner_may_abort_from_within_a_call(call: str, body: bytes, end: bool) -> None:
    engine = Engine()
    engine.ask(streamed=True)
    relay = engine.relay
    assert relay is not None

    def drop() -> None:
        relay.abandon()
        engine.link.abort()

    engine.owner.on[call] = drop
    _stream(engine, body, end)
    if call in engine.owner.calls:
        engine.hang_up()
        assert engine.owner.calls == (["output"] if call == "output" else ["output", "end"])
        assert (engine.pool.freed, engine.pool.gone_) == (0, 1)


def test_the_pool_may_use_a_connection_the_moment_it_is_freed() -> None:
    for streamed in (True, False):
        engine = Engine()
        second = Leg()
        engine.pool.on_free = lambda link, leg=second: link.start([REQUEST], len(REQUEST), leg, None)  # type: ignore[misc]
        first = engine.ask(streamed)
        if streamed:
            _stream(engine, EVENT + DONE)
            assert engine.owner.calls == ["output", "end"]
        else:
            engine.reply(b"HTTP/1.1 503 X\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\nno")
            assert first.told == [(503, b"no", 3)]
        engine.pool.on_free = lambda link: None
        engine.reply(b"HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\nok")
        assert second.told == [(200, b"ok", -1)]


# Back-pressure.


def test_a_slow_client_stops_the_reading_and_its_catching_up_resumes_it() -> None:
    engine = Engine()
    engine.ask(streamed=True)
    engine.link.pause()
    engine.link.pause()
    assert not engine.transport.reading
    engine.link.resume()
    assert engine.transport.reading


@pytest.mark.parametrize("end", [True, False])
def test_a_connection_is_never_left_paused_by_a_client_that_has_its_answer(end: bool) -> None:
    engine = Engine()
    engine.ask(streamed=True)
    engine.client.on_write = engine.link.pause
    _stream(engine, EVENT + DONE, end)
    assert engine.owner.calls == ["output", "end"]
    assert engine.transport.reading
    if not end:
        engine.reply(b"0\r\n\r\n")
    assert engine.pool.freed == 1


def test_a_streams_acknowledgements_are_deferred_and_left_alone_for_a_while_where_that_held_it_up() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            ours = socket.create_connection(listening.getsockname())
            theirs, _ = listening.accept()
        ours.setblocking(False)
        with theirs, ours.dup() as same:

            def quick() -> bool:
                return same.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) != 0

            async def send(data: bytes) -> None:
                heard = relay.heard_at
                theirs.sendall(data)
                await until(lambda: relay.heard_at != heard)

            same.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            link = EngineLink(Pool(), LIMIT)
            Reactor.of(asyncio.get_running_loop()).attach(ours.detach(), link)
            outlet = Outlet()
            outlet.attach(RecordingTransport())
            relay = Relay(Owner(), outlet=outlet)
            relay.begin(True)
            link.start([REQUEST], len(REQUEST), Leg(), relay)
            assert quick()
            await send(STREAM + b"\r\n" + EVENT)
            assert not quick()
            # As the system does when something waited for long.
            same.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            await send(EVENT)
            assert quick()
            async with asyncio.timeout(10):
                while quick():
                    await send(EVENT)
                    await asyncio.sleep(0.01)
            link.abort()
            await asyncio.sleep(0)

    asyncio.run(main())
