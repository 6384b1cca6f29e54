"""A connection's way out: straight to the socket while it can, and never out of order or to a stranger."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal._fast.outlet import Outlet
from tests.fast.transports import RecordingTransport

Pair = tuple[socket.socket, socket.socket]


def _pair() -> Pair:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    return ours, theirs


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = _pair()
    with ours, theirs:
        yield ours, theirs


def _attached(transport: RecordingTransport) -> Outlet:
    outlet = Outlet()
    outlet.attach(transport)
    return outlet


def _received(sock: socket.socket, size: int = 1 << 24) -> bytes:
    data = b""
    try:
        while len(data) < size and (more := sock.recv(size - len(data))):
            data += more
    except BlockingIOError:
        pass
    return data


def test_bytes_go_straight_to_the_socket(pair: Pair) -> None:
    ours, theirs = pair
    transport = RecordingTransport(ours)
    outlet = _attached(transport)
    outlet.write_bytes(b"one")
    outlet.write_pieces([b"two", memoryview(b"three")], 8)
    outlet.write_bytes(b"")
    assert _received(theirs) == b"onetwothree"
    assert transport.writes == []


def test_under_tls_bytes_go_through_the_transport(pair: Pair) -> None:
    ours, theirs = pair
    transport = RecordingTransport(ours, tls=True)
    outlet = _attached(transport)
    outlet.write_bytes(b"one")
    assert transport.writes == [b"one"]
    assert _received(theirs) == b""


def test_what_the_socket_does_not_take_follows_through_the_transport(pair: Pair) -> None:
    ours, theirs = pair
    transport = RecordingTransport(ours)
    outlet = _attached(transport)
    data = os.urandom(4 << 20)
    outlet.write_bytes(data)
    (rest,) = transport.writes
    assert 0 < len(rest) < len(data)
    assert data.endswith(rest)
    outlet.write_bytes(b"after")
    assert transport.writes == [rest, b"after"]
    sent = b""
    while transport.queue:
        sent += _received(theirs)
        transport.flush(len(transport.queue))
    outlet.write_bytes(b"straight")
    assert sent + _received(theirs) == data + b"afterstraight"
    assert len(transport.writes) == 2


_SOURCE = os.urandom(25 * 300_000)
STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "write", "pieces", "read", "flush"]), st.integers(1, 300_000)),
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_bytes_arrive_in_order_whatever_the_reader_and_the_loop_do(steps: list[tuple[str, int]]) -> None:
    ours, theirs = _pair()
    with ours, theirs:
        transport = RecordingTransport(ours)
        outlet = _attached(transport)
        written = 0
        received = b""
        for step, size in steps:
            if step in ("write", "pieces"):
                data = _SOURCE[written : written + size]
                written += size
                if step == "write":
                    outlet.write_bytes(data)
                else:
                    outlet.write_pieces([data[: size // 3], memoryview(data)[size // 3 :]], size)
            elif step == "read":
                received += _received(theirs, size)
            else:
                transport.flush(size)
        while transport.queue:
            received += _received(theirs)
            transport.flush(len(transport.queue))
        received += _received(theirs)
        assert received == _SOURCE[:written]


def test_a_transport_that_closes_is_sent_nothing_even_if_its_descriptor_has_a_new_owner() -> None:
    ours, theirs = _pair()
    with theirs:
        transport = RecordingTransport(ours)
        outlet = _attached(transport)
        number = ours.fileno()
        transport.close()
        ours.close()
        new, peer = _pair()
        with new, peer:
            # The lowest free number is given out first.
            assert number in (new.fileno(), peer.fileno())
            outlet.write_bytes(b"for another client")
            outlet.write_pieces([b"x" * 100_000], 100_000)
            assert _received(new) == _received(peer) == b""
    assert transport.writes == []


def test_a_closing_transport_is_sent_nothing_behind_what_it_has_queued(pair: Pair) -> None:
    ours, _ = pair
    transport = RecordingTransport(ours)
    outlet = _attached(transport)
    outlet.write_bytes(bytes(4 << 20))
    writes = len(transport.writes)
    transport.close()
    outlet.write_bytes(b"late")
    assert len(transport.writes) == writes


@pytest.mark.parametrize("end", ["detach", "close", "abort"])
def test_after_its_end_nothing_is_sent(pair: Pair, end: str) -> None:
    ours, theirs = pair
    transport = RecordingTransport(ours)
    outlet = _attached(transport)
    getattr(outlet, end)()
    getattr(outlet, end)()
    outlet.write_bytes(b"late")
    outlet.write_pieces([b"x" * 100_000], 100_000)
    assert outlet.transport_or_none() is None
    assert _received(theirs) == b""
    assert transport.writes == []
    assert (transport.closes, transport.aborts) == (end == "close", end == "abort")


def test_a_socket_that_fails_aborts_the_connection_once(pair: Pair) -> None:
    ours, theirs = pair
    transport = RecordingTransport(ours)
    outlet = _attached(transport)
    theirs.close()
    outlet.write_bytes(b"one")
    outlet.write_bytes(b"two")
    assert (transport.aborts, transport.writes) == (1, [])
