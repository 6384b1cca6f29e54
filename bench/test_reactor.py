"""Events from engines' sockets to clients', a hundred streams at once, against asyncio's protocols and json.

Both sides pay the system for a send and a receive for each event, and for the harness's.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import uvloop

from bench.against import measure
from bench.in_memory import TOKEN, chunk
from bench.streams import Streams

COUNT = 100
ROUNDS = 20


class _Pass(asyncio.Protocol):
    def __init__(self, client: socket.socket) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        event = json.loads(data.split(b"data: ", 1)[1].split(b"\n\n", 1)[0])
        for choice in event["choices"]:
            choice.pop("token_ids")
        self._client.send(chunk(b"data: " + json.dumps(event).encode() + b"\n\n"))


def test_relay_between_sockets(benchmark: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def open_streams() -> Streams:
            return Streams(COUNT)

        streams = runner.run(open_streams())

        def ours() -> None:
            for _ in range(ROUNDS):
                streams.send(TOKEN)
                streams.reactor.serve()
                streams.read()

        async def passed_on() -> None:
            loop = asyncio.get_running_loop()
            engines, clients, ends = [], [], []
            for _ in range(COUNT):
                ours, engine = socket.socketpair()
                theirs, client = socket.socketpair()
                transport, _ = await loop.create_connection(lambda end=theirs: _Pass(end), sock=ours)  # type: ignore[misc]
                ends.append(transport)
                engines.append(engine)
                clients.append((client, theirs))
            for _ in range(ROUNDS):
                for engine in engines:
                    engine.send(TOKEN)
                await asyncio.sleep(0.001)
                for client, _ in clients:
                    client.recv(1 << 16)
            for transport in ends:
                transport.close()
            for sock in (*engines, *(sock for pair in clients for sock in pair)):
                sock.close()

        measure(
            benchmark,
            ours,
            lambda: runner.run(passed_on()),
            items=COUNT * ROUNDS,
            size=COUNT * ROUNDS * len(TOKEN),
        )
        runner.run(streams.close())
