"""Who connects at once is taken in at once."""

from __future__ import annotations

import asyncio
import socket

from narwhal._fast.loop import run as run_in_loop
from narwhal.serving.listener import A_TURN, Listener


class Taken(asyncio.Protocol):
    """A connection that is only counted."""

    def __init__(self, taken: list[asyncio.BaseTransport]) -> None:
        self._taken = taken

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._taken.append(transport)


def test_a_burst_of_clients_is_taken_in_within_a_few_turns_of_the_loop() -> None:
    # One client a turn would keep the last of a thousand waiting for a thousand turns, each of which relays.
    clients = A_TURN + 50

    async def burst() -> int:
        taken: list[asyncio.BaseTransport] = []
        listener = await Listener.open("127.0.0.1", 0, lambda: Taken(taken))
        # The kernel completes these by itself; the loop has not turned once when they have all connected.
        sockets = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(clients)]
        turns = 0
        while len(taken) < clients:
            await asyncio.sleep(0)
            turns += 1
        for transport in taken:
            transport.close()
        for sock in sockets:
            sock.close()
        listener.close()
        return turns

    assert run_in_loop(burst()) < 20
