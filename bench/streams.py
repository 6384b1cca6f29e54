"""Streams between sockets: engines on one side, clients on the other, and the router's own relay between.

The sockets keep messages apart, so that each event is one read however many of them wait.
"""

from __future__ import annotations

import asyncio
import socket

from bench.in_memory import STREAM_HEAD
from narwhal._fast.link import EngineLink
from narwhal._fast.outlet import Outlet
from narwhal._fast.reactor import Reactor
from narwhal._fast.relay import Relay


class _Nobody(asyncio.Protocol):
    """Whoever is told of something."""

    def on_output(self) -> None: ...

    def on_end(self) -> None: ...

    def free(self, link: EngineLink) -> None: ...

    def gone(self, link: EngineLink) -> None: ...

    def after_done(self, events: int) -> None: ...

    def on_reply(self, status: int, body: bytes, retry_after_s: int) -> None: ...

    def on_lost(self, why: str, stale: bool) -> None: ...


class Streams:
    """Open streams of the running loop's reactor, whose heads have come."""

    def __init__(self, count: int) -> None:
        self.reactor = Reactor.of(asyncio.get_running_loop())
        self._engines: list[socket.socket] = []
        self._clients: list[socket.socket] = []
        self._relays: list[Relay] = []
        nobody = _Nobody()
        for _ in range(count):
            ends = [socket.socketpair(type=socket.SOCK_SEQPACKET) for _ in range(2)]
            for ours, _ in ends:
                ours.setblocking(False)
            outlet = Outlet()
            outlet.attach(self.reactor.attach(ends[1][0].detach(), nobody))
            relay = Relay(nobody, outlet=outlet, head=b"HTTP/1.1 200 OK\r\n\r\n")
            relay.begin(True)
            link = EngineLink(nobody, 1 << 20)
            self.reactor.attach(ends[0][0].detach(), link)
            link.start([b"POST"], 4, nobody, relay)
            self._engines.append(ends[0][1])
            self._clients.append(ends[1][1])
            self._relays.append(relay)
        self.send(STREAM_HEAD)
        self.reactor.serve()

    def send(self, event: bytes) -> None:
        """Each engine sends this; `reactor.serve` passes it on."""
        for engine in self._engines:
            engine.send(event)

    def read(self) -> None:
        """Each client reads an event. Raises BlockingIOError if one has none."""
        for client in self._clients:
            client.recv(1 << 16, socket.MSG_DONTWAIT)

    def check(self, events: int) -> None:
        """Raises RuntimeError unless each stream has passed on that many tokens."""
        if {relay.tokens for relay in self._relays} != {events}:
            raise RuntimeError(f"events failed: {[relay.failure_message for relay in self._relays]}")

    async def close(self) -> None:
        """Close all sockets."""
        for sock in self._engines + self._clients:
            sock.close()
        for _ in range(10):  # the reactor sees that they closed, and tells who had them
            await asyncio.sleep(0)
