"""Connections of the reactor: every byte once and in order, every end told once, and nobody's turn taken.

The rules are those of asyncio's transports. A socket pair stands for a connection; the test plays the peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal._fast import loop
from narwhal._fast.batch import Batch
from narwhal._fast.link import EngineLink
from narwhal._fast.outlet import Outlet
from narwhal._fast.reactor import Reactor, Transport
from narwhal._fast.relay import Relay
from tests.fast.transports import RecordingTransport
from tests.fast.waiting import until

A_TURN = 256  # connections that are served before the loop has its turn
A_READ = 262144  # bytes
HIGH_WATER, LOW_WATER = 65536, 16384
PLENTY = os.urandom(8 << 20)  # more than a pair of sockets holds

Run = Callable[[Coroutine[Any, Any, None]], None]


def run_one_by_one(main: Coroutine[Any, Any, None]) -> None:
    """On the router's own loop, where the system has no lists of calls."""

    async def without_lists() -> None:
        reactor = Reactor.of(asyncio.get_running_loop())
        reactor.batch = Batch(alone=True)
        await main
        assert not reactor.batch.listed

    loop.run(without_lists())


on_each_loop = pytest.mark.parametrize("run", [asyncio.run, uvloop.run, loop.run, run_one_by_one])


class Told(asyncio.Protocol):
    """Keeps what it is told."""

    def __init__(self, keep_open: bool = False) -> None:
        self.keep_open = keep_open
        self.received = b""
        self.calls: list[Any] = []
        self.on_data: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.calls.append("made")

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.on_data()

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return self.keep_open

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append(("lost", type(exc) if exc else None))


LOST, RESET = ("lost", None), ("lost", ConnectionResetError)


class Nobody:
    """Whoever is told of an engine's connection."""

    def free(self, link: EngineLink) -> None: ...

    def gone(self, link: EngineLink) -> None: ...

    def after_done(self, events: int) -> None: ...

    def on_reply(self, status: int, body: bytes, retry_after_s: int) -> None: ...

    def on_lost(self, why: str, stale: bool) -> None: ...


NOBODY = Nobody()
EVENT = b'data: {"choices":[{"text":"a"}]}\n\n'


class Owner:
    """A relay's owner, who does something at the first output."""

    def __init__(self, on_output: Callable[[], object]) -> None:
        self._on_output = on_output

    def on_output(self) -> None:
        self._on_output()

    def on_end(self) -> None: ...


class End:
    """One connection of the loop's reactor, and the peer's socket."""

    def __init__(self, protocol: Told | None = None, pair: tuple[socket.socket, socket.socket] | None = None):
        ours, self.peer = pair or socket.socketpair()
        ours.setblocking(False)
        self.peer.setblocking(False)
        self.told = protocol or Told()
        self.reactor = Reactor.of(asyncio.get_running_loop())
        self.fd = ours.detach()
        self.transport = self.reactor.attach(self.fd, self.told)

    def read(self, size: int = 1 << 24) -> bytes:
        """What the peer has been sent so far."""
        data = b""
        while len(data) < size:
            try:
                more = self.peer.recv(size - len(data))
            except BlockingIOError:
                break
            if not more:
                break
            data += more
        return data

    async def read_all(self) -> bytes:
        """What the peer is sent until the end of it."""
        return await _read_all(self.peer)


async def _read_all(peer: socket.socket) -> bytes:
    data = b""
    while more := await asyncio.get_running_loop().sock_recv(peer, 1 << 20):
        data += more
    return data


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection: a socket pair knows no reset."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        peer = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
    return ours, peer


def reset(peer: socket.socket) -> None:
    """Close with a reset."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


async def turns(count: int = 20) -> None:
    """Let the loop turn, for something not to happen."""
    for _ in range(count):
        await asyncio.sleep(0)


def open_files() -> int:
    """How many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def is_ready(reactor: Reactor) -> bool:
    """Whether the loop has to serve the reactor now."""
    return bool(select.select([reactor], [], [], 0)[0])


# ---- bytes


@on_each_loop
def test_what_comes_is_told_and_what_is_written_is_sent_by_the_end_of_the_turn(run: Run) -> None:
    async def main() -> None:
        end = End()
        end.peer.send(b"question")
        await until(lambda: end.told.received == b"question")
        end.transport.write(b"an")
        end.transport.writelines([b"s", memoryview(b"we"), bytearray(b"r")])
        end.transport.write(b"")
        await asyncio.sleep(0)
        assert end.read() == b"answer"
        end.transport.write(b"more")
        await asyncio.sleep(0)
        assert end.read() == b"more"
        end.transport.close()
        assert await end.read_all() == b""
        await until(lambda: end.told.calls == ["made", LOST])
        end.peer.close()

    run(main())


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "pieces", "read", "turn", "ask"]),
        st.integers(1, 400) | st.integers(1, 400_000),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([uvloop.run, loop.run]), STEPS, st.booleans())
def test_bytes_arrive_once_and_in_order_whatever_the_reader_does(
    run: Run, steps: list[tuple[str, int]], half: bool
) -> None:
    async def main() -> None:
        end, written, received = End(Told(keep_open=True)), 0, b""
        for step, size in steps:
            if step in ("write", "pieces"):
                data = PLENTY[written : written + size]
                written += len(data)
                if step == "write":
                    end.transport.write(data)
                else:
                    cuts = sorted((0, size // 7, size // 2, size))
                    pieces = [memoryview(data)[a:b] for a, b in itertools.pairwise(cuts)]
                    end.transport.writelines([*pieces, b""])
            elif step == "read":
                received += end.read(size)
            elif step == "turn":
                await asyncio.sleep(0)
            else:
                assert 0 <= end.transport.get_write_buffer_size() <= written - len(received)
        if half:
            end.transport.write_eof()
            end.transport.write(b"late")
            end.peer.send(b"heard")
        else:
            end.transport.close()
        received += await end.read_all()
        assert received == PLENTY[:written]
        if half:
            await until(lambda: end.told.received == b"heard")
            end.transport.close()
        await until(lambda: LOST in end.told.calls)
        end.peer.close()
        # To stop and to go on alternate, however often.
        marks = [call for call in end.told.calls if call in ("pause", "resume")]
        assert marks == ["pause", "resume"] * (len(marks) // 2)

    run(main())


WRITES = st.lists(
    st.tuples(
        st.integers(0, 7),
        st.integers(1, 300) | st.integers(8_000, 16_384) | st.integers(1, 100_000),
        st.integers(1, 40),
        st.booleans(),
    ),
    max_size=16,
)
LAST_STEPS = st.lists(
    st.sampled_from(["nothing", "close", "write_eof", "ask", "abort", "peer"]), min_size=8, max_size=8
)


@settings(max_examples=80, deadline=None)
@given(WRITES, LAST_STEPS, st.sampled_from([loop.run, run_one_by_one]))
def test_what_several_write_in_one_turn_goes_to_each_in_order(
    writes: list[tuple[int, int, int, bool]], last: list[str], run: Run
) -> None:
    async def main() -> None:
        ends = [End(Told(keep_open=True)) for _ in range(8)]
        written = [0] * 8
        refused = [0] * 8  # bytes that a socket had no room for, of those that are aborted
        for which, size, times, in_pieces in writes:
            outlet = Outlet()
            outlet.attach(ends[which].transport)
            for _ in range(times):
                data = PLENTY[written[which] : written[which] + size]
                written[which] += len(data)
                if in_pieces:
                    outlet.write_pieces([data[: size // 2], memoryview(data)[size // 2 :]], len(data))
                else:
                    outlet.write_bytes(data)
        for number, (end, step) in enumerate(zip(ends, last, strict=True)):
            if step == "peer":
                end.peer.close()
            elif step == "ask":
                assert end.transport.unsent() >= 0
            elif step != "nothing":
                if step == "abort":
                    refused[number] = end.transport.get_write_buffer_size()
                getattr(end.transport, step)()
        await asyncio.sleep(0)
        for end, size, step, lost in zip(ends, written, last, refused, strict=True):
            if step == "peer":
                await until(lambda end=end: end.told.calls[-1] != "made")  # type: ignore[misc]
                end.transport.abort()
                continue
            received = b""
            if step in ("nothing", "ask"):
                async with asyncio.timeout(30):
                    while len(received) < size:
                        received += end.read()
                        await asyncio.sleep(0)
                end.transport.close()
            received += await end.read_all()
            # What the peer's socket had no room for goes with an abort.
            assert received == PLENTY[: len(received)]
            assert len(received) == size - lost
            end.transport.close()
            end.peer.close()
        await until(lambda: all(end.told.calls[-1][0] == "lost" for end in ends))

    run(main())


@on_each_loop
@pytest.mark.parametrize("ends", [False, True])
def test_all_that_came_while_nobody_read_is_told_though_nothing_more_comes(run: Run, ends: bool) -> None:
    async def main() -> None:
        end = End(pair=tcp_pair())
        end.transport.pause_reading()
        # More than one read takes, and nothing that comes later will remind of it.
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while sent < len(PLENTY):
                sent += end.peer.send(PLENTY[sent:])
        assert sent > 2 * A_READ
        if ends:
            end.peer.shutdown(socket.SHUT_WR)
        await turns()
        end.transport.resume_reading()
        await until(lambda: len(end.told.received) == sent)
        assert end.told.received == PLENTY[:sent]
        if ends:
            await until(lambda: LOST in end.told.calls)
        else:
            end.transport.abort()
            await turns()
        assert end.told.calls == ["made", *["eof"] * ends, LOST]
        end.peer.close()

    run(main())


def test_small_pieces_for_a_reader_who_is_behind_are_put_together() -> None:
    async def main() -> None:
        end = End()
        end.transport.write(PLENTY)
        behind = end.transport.get_write_buffer_size()
        gc.collect()
        before = len(gc.get_objects())
        for number in range(10_000):
            end.transport.write(b"%05d" % number)
        assert end.transport.get_write_buffer_size() == behind + 50_000
        assert len(gc.get_objects()) < before + 100
        end.transport.close()
        assert await end.read_all() == PLENTY + b"".join(b"%05d" % number for number in range(10_000))
        end.peer.close()

    uvloop.run(main())


@on_each_loop
def test_a_protocol_is_told_to_stop_writing_above_one_mark_and_to_go_on_below_another(run: Run) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        end = End(pair=(ours, theirs))
        while not end.transport.get_write_buffer_size():
            end.transport.write(PLENTY[:1000])
        queued = end.transport.get_write_buffer_size()
        end.transport.write(PLENTY[: HIGH_WATER - queued])
        assert end.told.calls == ["made"]
        end.transport.write(b"1")
        end.transport.write(b"2")
        assert end.told.calls == ["made", "pause"]
        await turns()
        assert end.told.calls == ["made", "pause"]
        sizes = []
        while end.told.calls == ["made", "pause"]:
            sizes.append(end.transport.get_write_buffer_size())
            end.read(1000)
            await asyncio.sleep(0)
        assert end.told.calls == ["made", "pause", "resume"]
        assert min(sizes) > LOW_WATER >= end.transport.get_write_buffer_size() > 0
        end.transport.abort()
        end.peer.close()
        await turns()

    run(main())


@on_each_loop
def test_what_lies_behind_an_urgent_byte_is_told_though_nothing_more_comes(run: Run) -> None:
    async def main() -> None:
        end = End(pair=tcp_pair())
        end.peer.send(b"before")
        end.peer.send(b"!", socket.MSG_OOB)
        end.peer.send(b"after")
        await until(lambda: end.told.received == b"beforeafter")
        end.transport.abort()
        end.peer.close()
        await turns()

    run(main())


@on_each_loop
def test_while_reading_is_paused_nothing_is_told_and_nothing_lost(run: Run) -> None:
    async def main() -> None:
        end = End()
        end.transport.pause_reading()
        end.transport.pause_reading()
        assert not end.transport.is_reading()
        end.peer.send(b"waits")
        end.peer.shutdown(socket.SHUT_WR)
        await turns()
        assert (end.told.received, end.told.calls) == (b"", ["made"])
        assert not is_ready(end.reactor)
        end.transport.resume_reading()
        end.transport.resume_reading()
        await until(lambda: LOST in end.told.calls)
        assert (end.told.received, end.told.calls) == (b"waits", ["made", "eof", LOST])
        end.peer.close()

    run(main())


# ---- ends


@on_each_loop
@pytest.mark.parametrize("keep_open", [False, True])
def test_the_peers_end_is_told_once_and_its_protocol_decides(run: Run, keep_open: bool) -> None:
    async def main() -> None:
        end = End(Told(keep_open))
        end.peer.shutdown(socket.SHUT_WR)
        if keep_open:
            await until(lambda: "eof" in end.told.calls)
            end.transport.resume_reading()
            await turns()
            assert end.told.calls == ["made", "eof"]
            assert not is_ready(end.reactor)
            end.transport.write(b"still heard")
            end.transport.close()
        await until(lambda: LOST in end.told.calls)
        assert await end.read_all() == (b"still heard" if keep_open else b"")
        assert end.told.calls == ["made", "eof", LOST]
        end.peer.close()

    run(main())


@on_each_loop
def test_closing_sends_what_is_queued_and_reads_no_more(run: Run) -> None:
    async def main() -> None:
        end = End()
        end.transport.write(PLENTY)
        end.transport.close()
        end.transport.close()
        end.transport.write(b"late")
        end.transport.writelines([b"late"])
        end.transport.resume_reading()
        assert end.transport.is_closing()
        end.peer.send(b"not read")
        await turns()
        assert end.told.calls == ["made", "pause"]
        data = b""
        while len(data) < len(PLENTY):
            data += end.read(len(PLENTY) - len(data))
            await asyncio.sleep(0)
        assert data == PLENTY
        await until(lambda: LOST in end.told.calls)
        assert end.told.received == b""
        end.peer.close()

    run(main())


@on_each_loop
def test_an_abort_drops_what_is_queued_and_is_told_later(run: Run) -> None:
    async def main() -> None:
        end = End()
        end.transport.write(PLENTY)
        end.transport.abort()
        assert end.told.calls == ["made", "pause"]
        end.transport.abort()
        end.transport.close()
        end.transport.write(b"late")
        end.transport.write_eof()
        end.transport.pause_reading()
        end.transport.resume_reading()
        assert end.transport.is_closing()
        assert end.transport.get_write_buffer_size() == end.transport.unsent() == 0
        await turns()
        assert end.told.calls == ["made", "pause", LOST]
        assert len(await end.read_all()) < len(PLENTY)
        end.peer.close()

    run(main())


@on_each_loop
@pytest.mark.parametrize("reading", [True, False])
@pytest.mark.parametrize("writing", [True, False])
def test_a_reset_ends_a_connection_that_is_read_or_written(run: Run, reading: bool, writing: bool) -> None:
    async def main() -> None:
        end = End(pair=tcp_pair())
        assert end.transport.is_established()
        if writing:
            end.transport.write(PLENTY)
        if not reading:
            end.transport.pause_reading()
        reset(end.peer)
        if not reading and not writing:
            # Nobody waits for anything, so nobody is disturbed; who asks is told.
            await until(lambda: not end.transport.is_established())
            await turns()
            assert end.told.calls == ["made"]
            assert not is_ready(end.reactor)
            end.transport.resume_reading()
        await until(lambda: RESET in end.told.calls)
        assert [call for call in end.told.calls if call not in ("made", "pause")] == [RESET]
        assert not end.transport.is_established()

    run(main())


def test_a_write_that_fails_ends_the_connection_once() -> None:
    async def main() -> None:
        end = End()
        end.peer.close()
        end.transport.write(b"one")
        end.transport.write(b"two")
        assert end.transport.is_closing()
        await turns()
        assert end.told.calls == ["made", ("lost", BrokenPipeError)]

    uvloop.run(main())


def test_what_a_peer_has_not_taken_counts_as_unsent() -> None:
    async def main() -> None:
        end = End(pair=tcp_pair())
        end.transport.write(PLENTY)
        queued = end.transport.get_write_buffer_size()
        assert queued < end.transport.unsent() <= len(PLENTY)
        async with asyncio.timeout(10):
            got = len(end.read())
            while end.transport.unsent():
                await asyncio.sleep(0)
                got += len(end.read())
        assert got <= len(PLENTY)
        end.transport.abort()
        end.peer.close()
        await turns()

    uvloop.run(main())


# ---- one among many


@on_each_loop
@pytest.mark.parametrize("what", ["abort", "pause_reading"])
def test_what_a_protocol_does_to_a_connection_that_is_ready_too_holds_at_once(run: Run, what: str) -> None:
    async def main() -> None:
        ends = [End(), End()]
        for end, other in zip(ends, reversed(ends), strict=True):
            end.told.on_data = getattr(other.transport, what)
            end.peer.send(b"x")
        await turns()
        # Whichever came first has silenced the other.
        assert sorted(end.told.received for end in ends) == [b"", b"x"]
        for end in ends:
            end.transport.abort()
            end.peer.close()
        await turns()

    run(main())


@on_each_loop
def test_a_descriptors_new_owner_is_not_told_of_what_was_ready_for_the_last(run: Run) -> None:
    async def main() -> None:
        ends = [End(), End()]
        new: list[End] = []

        def replace(other: End) -> None:
            other.transport.abort()
            pairs = [socket.socketpair() for _ in range(3)]
            # The lowest free number is given out first.
            (pair,) = [pair for pair in pairs if other.fd in (pair[0].fileno(), pair[1].fileno())]
            for unused in pairs:
                if unused is not pair:
                    unused[0].close()
                    unused[1].close()
            new.append(End(pair=pair if pair[0].fileno() == other.fd else (pair[1], pair[0])))
            assert new[0].fd == other.fd

        for end, other in zip(ends, reversed(ends), strict=True):
            end.told.on_data = lambda other=other: replace(other)  # type: ignore[misc]
            end.peer.send(b"x")
        await turns()
        assert len(new) == 1
        assert new[0].told.calls == ["made"]
        new[0].peer.send(b"its own")
        await until(lambda: new[0].told.received == b"its own")
        for end in (*ends, *new):
            end.transport.abort()
            end.peer.close()
        await turns()

    run(main())


@on_each_loop
def test_a_protocol_that_fails_loses_its_own_connection_and_no_other(run: Run) -> None:
    async def main() -> None:
        reports: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))

        def fail() -> None:
            raise ValueError("a mistake")

        bad, good = End(), End()
        bad.told.on_data = fail
        for end in (bad, good):
            end.peer.send(b"x")
        await until(lambda: good.told.received and bad.told.calls == ["made", ("lost", ValueError)])
        assert [str(report["exception"]) for report in reports] == ["a mistake"]
        assert good.told.calls == ["made"]
        good.transport.close()
        for end in (bad, good):
            end.peer.close()
        await turns()

    run(main())


@on_each_loop
def test_a_writer_does_not_suffer_from_another_protocols_failure(run: Run) -> None:
    async def main() -> None:
        reports: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))

        class Bad(Told):
            def pause_writing(self) -> None:
                raise ValueError("a mistake")

        end = End(Bad())
        end.transport.write(PLENTY)
        assert end.transport.is_closing()
        assert len(reports) == 1
        end.peer.close()
        await turns()
        assert end.told.calls == ["made", ("lost", ValueError)]

    run(main())


@on_each_loop
def test_others_have_their_turn_while_many_connections_are_ready(run: Run) -> None:
    async def main() -> None:
        ends = [End() for _ in range(A_TURN + 50)]
        served: list[End] = []
        for end in ends:
            end.told.on_data = lambda end=end: served.append(end)  # type: ignore[misc]
            end.peer.send(b"x")
        seen = []
        while len(served) < len(ends):
            await asyncio.sleep(0)
            seen.append(len(served))
        assert any(0 < count < len(ends) for count in seen)
        assert len(set(map(id, served))) == len(ends)
        for end in ends:
            end.transport.abort()
            end.peer.close()
        await turns()

    run(main())


class Stream:
    """An engine's stream that the test plays, on a connection of the loop's reactor."""

    def __init__(self, pair: tuple[socket.socket, socket.socket] | None = None) -> None:
        ours, self.engine = pair or socket.socketpair()
        ours.setblocking(False)
        self.fd = ours.fileno()
        self.link = EngineLink(NOBODY, 1000)
        Reactor.of(asyncio.get_running_loop()).attach(ours.detach(), self.link)
        outlet = Outlet()
        outlet.attach(RecordingTransport())
        self.on_output: Callable[[], object] = lambda: None
        self.relay = Relay(Owner(lambda: self.on_output()), outlet=outlet)
        self.relay.begin(False)
        self.link.start([b"POST"], 4, NOBODY, self.relay)

    def begin(self) -> None:
        """The engine sends a first event."""
        self.engine.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + EVENT)


async def close(*streams: Stream) -> None:
    for stream in streams:
        stream.link.abort()
        stream.engine.close()
    await turns()


@on_each_loop
def test_what_was_read_for_a_stream_goes_to_no_other_when_it_is_closed_meanwhile(run: Run) -> None:
    async def main() -> None:
        streams = [Stream() for _ in range(5)]
        new: list[Stream] = []

        def close_the_others(first: Stream) -> None:
            for other in streams:
                if other is not first:
                    other.link.abort()
            # The lowest free numbers are given out first, so these have those of some that were closed.
            new.extend(Stream() for _ in range(2))

        for stream in streams:
            stream.on_output = partial(close_the_others, stream)
            stream.begin()
        await turns()
        assert {stream.fd for stream in new} & {stream.fd for stream in streams}
        assert [stream.relay.output_events for stream in new] == [0, 0]
        assert sum(stream.relay.output_events for stream in streams) == 1
        for stream in new:
            stream.begin()
        await until(lambda: all(stream.relay.output_events == 1 for stream in new))
        await close(*streams, *new)

    run(main())


@on_each_loop
def test_a_stream_does_not_wait_for_a_burst_of_requests(run: Run) -> None:
    async def main() -> None:
        order: list[str] = []
        stream = Stream()
        stream.on_output = lambda: order.append("output")

        def request() -> None:
            if not order:
                stream.begin()
            order.append("request")
            time.sleep(0.002)  # longer than the reactor gives to all of them at once

        ends = [End() for _ in range(20)]
        for end in ends:
            end.told.on_data = request
            end.peer.send(b"x")
        await until(lambda: order.count("request") == len(ends))
        assert order.index("output") < 10
        for end in ends:
            end.transport.abort()
            end.peer.close()
        await close(stream)

    run(main())


@on_each_loop
def test_streams_are_served_before_replies_and_those_before_requests(run: Run) -> None:
    async def main() -> None:
        order: list[str] = []

        class Leg(Nobody):
            def on_reply(self, status: int, body: bytes, retry_after_s: int) -> None:
                order.append("reply")

        request, stream = End(), Stream()
        request.told.on_data = lambda: order.append("request")
        ours, engine = socket.socketpair()
        ours.setblocking(False)
        link = EngineLink(NOBODY, 1000)
        Reactor.of(asyncio.get_running_loop()).attach(ours.detach(), link)
        link.start([b"POST"], 4, Leg())
        stream.on_output = lambda: order.append("stream")
        await turns()
        request.peer.send(b"x")
        engine.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        stream.begin()
        await until(lambda: len(order) == 3)
        assert order == ["stream", "reply", "request"]
        request.transport.abort()
        request.peer.close()
        link.abort()
        engine.close()
        await close(stream)

    run(main())


def system_has_lists() -> bool:
    """Whether it takes a list of calls, found out by the only way there is."""
    found = []

    async def main() -> None:
        ends = [End() for _ in range(8)]
        outlets = [Outlet() for _ in ends]
        for end, outlet in zip(ends, outlets, strict=True):
            outlet.attach(end.transport)
            outlet.write_bytes(b"x")
        await until(lambda: all(end.read() == b"x" for end in ends))
        found.append(ends[0].reactor.batch.listed)
        for end in ends:
            end.transport.close()
            end.peer.close()
        await turns()

    loop.run(main())
    return found[0]


def test_a_system_that_takes_lists_of_calls_is_given_them() -> None:
    kernel = tuple(int(part) for part in os.uname().release.split(".")[:2])
    disabled = Path("/proc/sys/kernel/io_uring_disabled")
    if kernel < (6, 1) or (disabled.exists() and disabled.read_text().strip() != "0"):
        pytest.skip("this system has no io_uring that can be used")
    assert system_has_lists()


def test_a_loop_that_goes_on_in_another_thread_loses_nothing() -> None:
    # A list is the affair of the thread that gave the first. The system refuses the next.
    mine = loop.Loop()
    ends: list[End] = []

    async def write(data: bytes) -> None:
        if not ends:
            ends.extend(End() for _ in range(8))
        outlets = [Outlet() for _ in ends]
        for end, outlet in zip(ends, outlets, strict=True):
            outlet.attach(end.transport)
            outlet.write_bytes(data)
        await until(lambda: all(end.read() == data for end in ends))

    mine.run_until_complete(write(b"one"))
    other = threading.Thread(target=lambda: mine.run_until_complete(write(b"two")))
    other.start()
    other.join()
    assert not ends[0].reactor.batch.listed
    mine.run_until_complete(write(b"three"))
    for end in ends:
        end.transport.abort()
        end.peer.close()
    mine.run_until_complete(turns())
    mine.close()


def test_loops_in_two_threads_do_not_meet() -> None:
    def echo(seed: int) -> None:
        async def main() -> None:
            end = End(Told(keep_open=True))
            end.told.on_data = lambda: None
            size, mine = 3 << 20, asyncio.get_running_loop()
            data = bytes([seed]) * size
            sending = asyncio.create_task(mine.sock_sendall(end.peer, data))
            await until(lambda: len(end.told.received) == size)
            await sending
            assert end.told.received == data
            end.transport.close()
            end.peer.close()
            await turns()
            results.append(seed)

        uvloop.run(main())

    results: list[int] = []
    threads = [threading.Thread(target=echo, args=(seed,)) for seed in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [1, 2, 3]


@on_each_loop
def test_a_reactor_goes_with_its_last_connection(run: Run) -> None:
    async def main() -> None:
        before = open_files()
        for _ in range(3):
            end = End()
            assert end.reactor is Reactor.of(asyncio.get_running_loop())
            assert end.reactor.open == 1
            end.transport.close()
            await until(partial(end.told.calls.__contains__, LOST))
            assert end.reactor.open == 0
            end.peer.close()
            del end
            gc.collect()
            assert open_files() <= before

    run(main())


def test_a_loop_that_is_closed_with_connections_open_leaves_no_descriptor() -> None:
    def leave() -> None:
        async def main() -> None:
            ends.append(End())

        ends: list[End] = []
        uvloop.run(main())
        ends.pop().peer.close()

    leave()
    gc.collect()
    before = open_files()
    for _ in range(3):
        leave()
    gc.collect()
    assert open_files() == before


def test_a_forked_childs_end_does_not_touch_the_parents_connections() -> None:
    async def main() -> None:
        end, gone = End(), End()
        wait_here, go_on = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(go_on)
            os.read(wait_here, 1)
            # Drop everything, as an interpreter's end would.
            end.transport = gone.transport = None  # type: ignore[assignment]
            gc.collect()
            os._exit(0)
        os.close(wait_here)
        # What is closed here is still open in the child, perhaps: it must not be heard of again.
        gone.transport.abort()
        with contextlib.suppress(BrokenPipeError):
            gone.peer.send(b"to nobody")
        assert not is_ready(end.reactor)
        os.close(go_on)
        await asyncio.to_thread(os.waitpid, child, 0)
        end.peer.send(b"still here")
        await until(lambda: end.told.received == b"still here")
        assert gone.told.received == b""
        for each in (end, gone):
            each.transport.abort()
            each.peer.close()
        await turns()

    uvloop.run(main())


def test_only_what_is_asked_for_is_told_of_a_connection() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        told = Told()
        peer = ("192.0.2.1", 80)
        transport = Reactor.of(asyncio.get_running_loop()).attach(ours.detach(), told, peer)
        assert isinstance(transport, Transport)
        assert transport.get_extra_info("peername") == peer
        assert transport.get_extra_info("socket") is None
        assert transport.get_extra_info("cipher", "none") == "none"
        assert transport.get_protocol() is told
        transport.abort()
        theirs.close()
        await turns()

    uvloop.run(main())
