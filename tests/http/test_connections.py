"""Connections to engines: kept, used again, and given up when they are no good any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from narwhal._fast.loop import run as run_in_loop
from narwhal.sim import Fault, FaultName, SimEngine, SimFleet, expected_output
from tests.http.sim_client import Client
from tests.http.support import CHAT, COMPLETIONS, Routed, body_for, eventually, message, on_router, routed


def connections(engine: SimEngine) -> list[int]:
    """Over which connection each completion request came."""
    return [seen.connection for seen in engine.requests]


def test_requests_one_after_another_use_one_connection_to_each_engine() -> None:
    async def test(where: Routed) -> None:
        for stream in (True, False, True):
            for path in (CHAT, COMPLETIONS):
                assert (await where.ask(path, body_for(path, stream=stream))).status == 200
        assert [connections(engine) for engine in where.fleet.engines] == [[1] * 6] * 2
        state = (await where.ask("/narwhal/state", method="GET")).json()
        assert [engine["connections"] for engine in state["engines"]] == [1, 1]

    on_router(test)


def test_an_engines_error_reply_leaves_its_connection_good() -> None:
    async def test(where: Routed) -> None:
        where.fleet["p0"].faults.set(Fault(FaultName.BAD_STATUS, status=400, count=2))
        for status in (400, 400, 200):
            assert (await where.ask(CHAT, body_for(CHAT))).status == status
        assert connections(where.fleet["p0"]) == [1] * 3

    on_router(test)


def test_a_connection_that_broke_or_whose_stream_did_is_not_used_again() -> None:
    async def test(where: Routed) -> None:
        for name in ("ids_null", "broken_chunking", "die_after", "broken_json"):
            wish = {"fault": {"name": name, "leg": "decode"}}
            assert (await where.ask(CHAT, body_for(CHAT, sim=wish))).status == 502
        assert len(set(connections(where.fleet["d0"]))) == 4
        # One may be a probe's own.
        await eventually(lambda: where.fleet["d0"].stats.connections <= 1)
        assert connections(where.fleet["p0"]) == [1] * 4

    on_router(test, serving={"max_attempts": 1}, recovery={"eject_after": 100})


def test_a_burst_opens_connections_and_the_quiet_after_it_closes_them() -> None:
    async def test(where: Routed) -> None:
        clients = [await where.connect() for _ in range(6)]
        body = body_for(CHAT, stream=True, sim={"fault": {"name": "stall", "after": 1, "leg": "decode"}})
        for client in clients:
            client.writer.write(message("POST", CHAT, body))
        d0 = where.fleet["d0"]
        await eventually(lambda: d0.stats["decode"].active == 6)
        assert d0.stats.connections == 6
        for client in clients:
            await client.close()
        assert (await where.ask(CHAT, body_for(CHAT))).status == 200
        # Aborted legs took theirs with them; idle ones are closed in their time.
        await eventually(lambda: sum(engine.stats.connections for engine in where.fleet.engines) == 0)
        assert (await where.ask(CHAT, body_for(CHAT))).status == 200

    on_router(test, engine={"idle_connection_s": 0.05})


def test_an_engine_that_closed_an_idle_connection_or_came_back_is_not_noticed() -> None:
    async def test(where: Routed) -> None:
        body = body_for(CHAT, stream=True, return_token_ids=True)
        for restart in (False, True):
            assert (await where.ask(CHAT, body)).status == 200
            for engine in where.fleet.engines:
                if restart:
                    await engine.stop()
                    await engine.start(port=engine.port)
                else:
                    engine.faults.set("refuse")
                    engine.faults.set()
            # At once: the router may or may not have seen the closing yet.
            assert (await where.ask(CHAT, body)).token_ids == expected_output(body)[0]
        assert [len(row["attempts"]) for row in await where.rows(4)] == [1] * 4

    on_router(test)


@contextlib.asynccontextmanager
async def before(
    engine: SimEngine, may_pass: Callable[[int, int], bool]
) -> AsyncIterator[tuple[int, list[tuple[int, int]]]]:
    """A gateway to an engine that reads each request and passes it on, or closes the connection instead.

    `may_pass` is asked with the number of the connection and of the request on it, from 1. Gives its port and
    what it was asked.
    """
    asked: list[tuple[int, int]] = []
    opened = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        mine, count = opened, 0
        behind = await Client.connect(engine.url)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                request = head + await reader.readexactly(length)
                count += 1
                asked.append((mine, count))
                if not may_pass(mine, count):
                    break
                behind.writer.write(request)
                answer = await behind.read()
                writer.write(b"HTTP/1.1 %d OK\r\n" % answer.status)
                for name, value in answer.headers.items():
                    if name != "transfer-encoding":
                        writer.write(f"{name}: {value}\r\n".encode())
                if "content-length" not in answer.headers:
                    writer.write(b"content-length: %d\r\n" % len(answer.body))
                writer.write(b"\r\n" + answer.body)
        writer.close()
        await behind.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked


@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_a_used_connection_closed_before_a_byte_of_reply_is_replaced_by_a_fresh_one_once(leg: str) -> None:
    # The gateway closes a connection when its second request has come, as one whose idle time ran out then.
    def may_pass(connection: int, request: int) -> bool:
        return request == 1 and connection < 4

    async def main() -> None:
        async with SimFleet(prefill=1, decode=1) as fleet:
            engine = fleet["p0" if leg == "prefill" else "d0"]
            async with before(engine, may_pass) as (port, asked):
                true_port, engine.port = engine.port, port
                async with routed(fleet=fleet, serving={"max_attempts": 1}) as where:
                    engine.port = true_port
                    body = body_for(CHAT, stream=True, return_token_ids=True)
                    for _ in range(3):
                        assert (await where.ask(CHAT, body)).token_ids == expected_output(body)[0]
                    assert asked == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)]
                    # Not for ever: when the fresh one is closed, too, it is the engine that fails.
                    answer = await where.ask(CHAT, body)
                    assert answer.status == 502
                    assert "closed the connection without a reply" in answer.json()["error"]["message"]
                    assert asked[5:] == [(3, 2), (4, 1)]

    run_in_loop(main())


def test_a_reader_too_slow_for_the_end_of_its_answer_does_not_leave_a_deaf_connection() -> None:
    async def test(where: Routed) -> None:
        size = 6 << 20
        wish = {"fault": {"name": "huge_event", "size": size, "leg": "decode"}}
        slow = await where.connect()
        slow.writer.write(message("POST", CHAT, body_for(CHAT, stream=True, max_tokens=1, sim=wish)))
        # The engine's last bytes come while the client's queue is full, so reading from the engine pauses.
        await eventually(lambda: where.endings == {"served": 1})
        body = body_for(CHAT, stream=True, return_token_ids=True)
        assert (await where.ask(CHAT, body)).token_ids == expected_output(body)[0]
        assert connections(where.fleet["d0"]) == [1, 1]
        assert len((await slow.read()).body) > size

    on_router(test, serving={"first_token_timeout_s": 2.0})


def test_an_engine_sees_at_once_that_it_is_given_up() -> None:
    # A plain close would be told in its turn only, which memory pressure can put off.
    ends: list[Exception] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        except ConnectionResetError as reset:
            ends.append(reset)
        finally:
            writer.close()

    async def main() -> None:
        async with SimFleet(prefill=2, decode=1) as fleet:
            mute = await asyncio.start_server(silent, "127.0.0.1", 0)
            fleet["p0"].port = mute.sockets[0].getsockname()[1]
            async with mute, routed(fleet=fleet, serving={"prefill_timeout_s": 0.1}) as where:
                assert (await where.ask(CHAT, body_for(CHAT))).status == 200
                await eventually(lambda: len(ends) == 1)

    run_in_loop(main())


def test_an_engine_that_does_not_say_how_long_a_prompt_is_holds_nobody_up() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def main() -> None:
        async with SimFleet(prefill=2, decode=1) as fleet:
            mute = await asyncio.start_server(silent, "127.0.0.1", 0)
            true_port, fleet["p0"].port = fleet["p0"].port, mute.sockets[0].getsockname()[1]
            serving = {"prefill_timeout_s": 0.1}
            async with mute, routed(fleet=fleet, engine={"sizing": "exact"}, serving=serving) as where:
                fleet["p0"].port = true_port
                assert (await where.ask(CHAT, body_for(CHAT))).status == 200
                row = await where.row()
                assert row["input_tokens_from"] == "estimate"
                assert [attempt["prefill"] for attempt in row["attempts"]] == ["p0", "p1"]

    run_in_loop(main())
