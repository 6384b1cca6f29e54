"""A connection's way out: on any transport the same bytes, and nothing after its end."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvloop

from narwhal._fast.outlet import Outlet
from narwhal._fast.reactor import Reactor
from tests.fast.transports import RecordingTransport

PIECES: list[list[bytes | memoryview]] = [
    [b"one"],
    [b"two", memoryview(b"three")],
    [b""],
    [b"x" * 70_000, memoryview(b"y" * 70_000)],
]
SENT = b"".join(b"".join(pieces) for pieces in PIECES)


def _write(outlet: Outlet) -> None:
    for pieces in PIECES:
        if len(pieces) == 1:
            outlet.write_bytes(bytes(pieces[0]))
        else:
            outlet.write_pieces(pieces, sum(map(len, pieces)))


def test_on_the_reactor_bytes_are_at_the_peer_before_the_loop_turns() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            transport = Reactor.of(asyncio.get_running_loop()).attach(ours.detach(), asyncio.Protocol())
            outlet = Outlet()
            outlet.attach(transport)
            _write(outlet)
            received = b""
            while len(received) < len(SENT):
                received += theirs.recv(len(SENT), socket.MSG_DONTWAIT)
            assert received == SENT
            outlet.close()
            await asyncio.sleep(0)

    uvloop.run(main())


def test_on_another_transport_they_go_through_it() -> None:
    transport = RecordingTransport()
    outlet = Outlet()
    outlet.attach(transport)
    _write(outlet)
    assert b"".join(transport.writes) == SENT
    assert transport.writes[:2] == [b"one", b"twothree"]


def test_a_transport_that_closes_is_sent_nothing() -> None:
    transport = RecordingTransport()
    outlet = Outlet()
    outlet.attach(transport)
    transport.close()
    _write(outlet)
    assert transport.writes == []


@pytest.mark.parametrize("end", ["detach", "close", "abort"])
def test_after_its_end_nothing_is_sent(end: str) -> None:
    transport = RecordingTransport()
    outlet = Outlet()
    outlet.attach(transport)
    getattr(outlet, end)()
    getattr(outlet, end)()
    _write(outlet)
    assert outlet.transport_or_none() is None
    assert transport.writes == []
    assert (transport.closes, transport.aborts) == (end == "close", end == "abort")
