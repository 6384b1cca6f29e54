"""The inbox: a body is put together whatever the reads, and what follows it is the next request's."""

from __future__ import annotations

import asyncio
import socket

from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal._fast.inbox import Inbox
from narwhal._fast.reactor import Reactor


class Reader(Inbox):
    """Reads bodies of a length that each begins with, one byte of it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.grown: list[int] = []
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Nothing to do."""

    def data_received(self, data: bytes) -> None:
        while data:
            size, data = data[0], data[1:]
            self.gather(size)
            used = self.fill(data)
            data = data[used:]
            if self.gathered < size:
                return
            self.bodies.append(self.stop_gathering())

    def body_grows(self) -> None:
        self.grown.append(self.gathered)

    def body_is_whole(self, rest: bytes) -> None:
        self.bodies.append(self.stop_gathering())
        self.data_received(rest)

    def eof_received(self) -> bool:
        self.over.set_result(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to do."""


async def received(pieces: list[bytes]) -> Reader:
    """What a reader has after these pieces, each a read of its own."""
    ours, peer = socket.socketpair()
    ours.setblocking(False)
    reader = Reader()
    with peer:
        Reactor.of(asyncio.get_running_loop()).attach(ours.detach(), reader)
        for piece in pieces:
            peer.send(piece)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        peer.shutdown(socket.SHUT_WR)
        await reader.over
    return reader


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=200), max_size=5), st.data())
def test_bodies_come_whole_whatever_the_reads(bodies: list[bytes], data: st.DataObject) -> None:
    sent = b"".join(bytes([len(body)]) + body for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    pieces = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True) if a < b]
    reader = asyncio.run(received(pieces))
    assert reader.bodies == bodies
    assert not reader.gathering()


def test_whoever_gathers_is_told_of_each_read() -> None:
    reader = asyncio.run(received([b"\x05ab", b"c", b"de"]))
    assert reader.grown == [3]
    assert reader.bodies == [b"abcde"]
