"""The server's limits: sizes, times, numbers of connections. Whoever meets one can read the reply."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from narwhal.serving import http
from tests.http.support import CHAT, COMPLETIONS, Routed, body_for, eventually, on_router
from tests.http.wire import Wire, chunked_request, request

HEALTH = request("GET", "/health")
MEGABYTES = 20


def head_of(size: int) -> bytes:
    """A good request whose head has this many bytes."""
    start = b"GET /health HTTP/1.1\r\nHost: x\r\nA: "
    return start + b"x" * (size - len(start) - 4) + b"\r\n\r\n"


def test_a_head_of_64_kib_is_served_and_a_larger_one_is_refused() -> None:
    async def run(on: Routed) -> None:
        for split in (1, 30_000, 65_535, 65_536):
            async with await Wire.connect(on.url) as client:
                head = head_of(65_536)
                assert (await client.ask(head[:split], head[split:] + HEALTH)).status == 200
                assert (await client.reply()).status == 200
            for large in (head_of(65_537), head_of(70_000), head_of(65_537)[:-1] + b"x" * 1000):
                async with await Wire.connect(on.url) as client:
                    await client.send(large[:split], large[split:] + HEALTH)
                    reply = await client.reply()
                    assert (reply.status, reply.code) == (431, "head_too_large")
                    assert "65536 bytes" in reply.error["message"]
                    assert await client.rest() == b""

    on_router(run)


@pytest.mark.parametrize("framing", ["sized", "chunked"])
def test_a_client_that_sends_20_megabytes_before_it_reads_gets_its_reply(framing: str) -> None:
    """The reply comes long before the body's end; no reset may take it away."""
    block = b"x" * (1 << 20)
    if framing == "sized":
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {MEGABYTES << 20}\r\n\r\n".encode()
        pieces = [head, *[block] * MEGABYTES]
    else:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        pieces = [head, *[b"100000\r\n" + block + b"\r\n"] * MEGABYTES, b"0\r\n\r\n"]

    def blunt_client(url: str) -> bytes:
        where = urlsplit(url)
        assert where.hostname
        with socket.create_connection((where.hostname, where.port or 80), timeout=30) as sock:
            for piece in pieces:
                sock.sendall(piece)
            seen = b""
            while data := sock.recv(65536):
                seen += data
            return seen

    async def run(on: Routed) -> None:
        seen = await asyncio.to_thread(blunt_client, on.url)
        assert seen.startswith(b"HTTP/1.1 413 ")
        assert seen.count(b"HTTP/1.1") == 1
        assert b"request_too_large" in seen
        assert on.endings == {"request_too_large": 1}

    on_router(run)


def test_a_body_over_the_limit_is_refused_on_its_declared_length_or_when_it_gets_there() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            reply = await client.ask(request("POST", CHAT, b"x" * 1001)[:-1001])
            assert (reply.status, reply.code, reply.error["type"]) == (413, *["request_too_large"] * 2)
            assert reply.error["message"] == (
                "the body may be 1000 bytes at most (serving.max_request_bytes); this one has 1001 bytes"
            )
            assert reply.header("x-should-retry") == "false"
            assert not on.counts["in_flight"]
        async with await Wire.connect(on.url) as client:
            whole = chunked_request(CHAT, [b"x" * 1000, b"y", b"z" * 9])
            end = whole.index(b"z")
            assert (await client.ask(whole[:200], whole[200:end])).status == 413
            assert not on.counts["in_flight"]
            await client.send(whole[end:])
            assert await client.rest() == b""
        async with await Wire.connect(on.url) as client:
            exact = b" " * 998 + b"{}"
            for whole in (request("POST", CHAT, exact), chunked_request(CHAT, [exact[:500], exact[500:]])):
                assert (await client.ask(whole)).status == 400
        assert on.endings == {"request_too_large": 2, "invalid_field": 2}

    on_router(run, serving={"max_request_bytes": 1000})


def test_a_control_body_has_a_limit_of_its_own() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            reply = await client.ask(request("POST", "/narwhal/maintenance", b"x" * 65_537))
            assert (reply.status, reply.closes) == (413, False)
            assert "65536 bytes" in reply.error["message"]
            assert "max_request_bytes" not in reply.error["message"]

    on_router(run)


def test_one_connection_too_many_is_told_so_and_finds_room_later() -> None:
    async def run(on: Routed) -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(await Wire.connect(on.url)) for _ in range(3)]
            for client in clients:
                assert (await client.ask(HEALTH)).status == 200
            async with await Wire.connect(on.url) as late:
                reply = await late.reply()
                assert (reply.status, reply.code, reply.error["type"]) == (
                    503,
                    "connection_limit",
                    "overloaded",
                )
                assert reply.header("retry-after") == "1"
                assert "3 connections" in reply.error["message"]
                assert "serving.client_connection_limit" in reply.error["message"]
                assert await late.rest() == b""
            clients[0].close()
            await eventually(lambda: len(on.server._connections) == 2)
            async with await Wire.connect(on.url) as client:
                assert (await client.ask(HEALTH)).status == 200

    on_router(run, serving={"client_connection_limit": 3})


def test_a_slow_head_is_cut_off_however_its_bytes_drip() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            # A request before it makes no difference, nor empty lines in between.
            assert (await client.ask(HEALTH)).status == 200
            await client.send(b"\r\n\r\n")
            reading = asyncio.ensure_future(client.reply())
            with contextlib.suppress(OSError):
                for byte in request("GET", "/health", None, "A: " + "x" * 2000):
                    await client.send(bytes([byte]))
                    await asyncio.sleep(0.005)
                    if reading.done():
                        break
            reply = await reading
            assert (reply.status, reply.code) == (408, "head_timeout")
            assert "0.1 s" in reply.error["message"]
            assert "serving.head_timeout_s" in reply.error["message"]
            assert await client.rest() == b""
        async with await Wire.connect(on.url) as client:
            assert await client.rest() == b""  # not a byte: nothing to answer

    on_router(run, serving={"head_timeout_s": 0.1})


def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as idle, await Wire.connect(on.url) as busy:
            assert (await idle.ask(HEALTH)).status == 200
            slow = body_for(CHAT, stream=True, sim={"fault": {"name": "slow_first_token", "seconds": 0.4}})
            await busy.send(request("POST", CHAT, slow))
            assert await idle.rest() == b""
            assert on.counts["in_flight"] == 1
            assert (await busy.reply()).events

    on_router(run, serving={"idle_timeout_s": 0.1})


@pytest.mark.parametrize("path", [CHAT, "/narwhal/maintenance"])
def test_a_stalled_body_is_given_up(path: str) -> None:
    async def run(on: Routed) -> None:
        for whole in (request("POST", path, b"x" * 500), chunked_request(path, [b"x" * 500])):
            async with await Wire.connect(on.url) as client:
                await client.send(whole[:100], whole[100:-10])
                reply = await client.reply()
                assert (reply.status, reply.code) == (408, "body_timeout")
                assert "0.1 s (serving.body_timeout_s); " in reply.error["message"]
                assert " bytes had come" in reply.error["message"]
                assert await client.rest() == b""
        if path == CHAT:
            assert on.counts["cancelled"] == 2
            assert on.endings == {"body_timeout": 2}

    on_router(run, serving={"body_timeout_s": 0.1})


def test_a_dripping_body_ends_with_the_requests_deadline() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            reading = asyncio.ensure_future(client.reply())
            await client.send(request("POST", CHAT, b"x" * 5000)[:-5000])
            with contextlib.suppress(OSError):
                while not reading.done():
                    await client.send(b"x")
                    await asyncio.sleep(0.01)
            reply = await reading
            assert (reply.status, reply.code) == (504, "deadline_expired")
            assert "0.2 s after its arrival (serving.request_timeout_s)" in reply.error["message"]
            assert on.endings == {"deadline_expired": 1}

    on_router(run, serving={"request_timeout_s": 0.2})


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing connections wait a fifth of a second where they would wait five."""
    monkeypatch.setattr(http, "LINGER_IDLE_S", 0.2)


@pytest.mark.usefixtures("impatient")
def test_a_slow_reader_gets_the_whole_of_a_last_reply() -> None:
    """It reads for much longer than an idle one is waited for."""

    async def run(on: Routed) -> None:
        size = 12 << 20
        text = body_for(COMPLETIONS, sim={"fault": {"name": "huge_event", "size": size}})
        async with await Wire.connect(on.url, room=4096) as client:
            await client.send(request("POST", COMPLETIONS, text, "Connection: close"))
            [connection] = list(on.server._connections)
            await eventually(lambda: connection.unsent() > 1 << 20)
            seen = 0
            for _ in range(8):
                await asyncio.sleep(0.1)
                for _ in range(20):
                    seen += len(await asyncio.get_running_loop().sock_recv(client.sock, 262144))
            assert seen < size
            seen += len(await client.rest())
            assert seen > size

    on_router(run, serving={"max_response_bytes": 64 << 20})


@pytest.mark.usefixtures("impatient")
def test_a_client_that_sends_on_and_on_before_it_reads_is_waited_for() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            await client.send(request("POST", CHAT, b"x" * (8 << 20))[: -(8 << 20)])
            for _ in range(8):
                await asyncio.sleep(0.1)
                await client.send(b"x" * (1 << 20))
            assert (await client.reply()).status == 413
            assert await client.rest() == b""

    on_router(run)


@pytest.mark.usefixtures("impatient")
def test_a_stream_whose_client_neither_reads_nor_sends_is_let_go() -> None:
    async def run(on: Routed) -> None:
        huge = {"fault": {"name": "huge_event", "size": 12 << 20, "leg": "decode"}}
        async with await Wire.connect(on.url, room=4096) as client:
            await client.send(request("POST", CHAT, body_for(CHAT, stream=True, sim=huge, max_tokens=500)))
            await eventually(lambda: any(one._writing_paused for one in on.server._connections))
            client.half_close()
            await eventually(lambda: not on.server._connections)
            assert on.endings == {"disconnected": 1}

    on_router(run, serving={"max_response_bytes": 64 << 20})


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("options", ["Connection: close", "Connection: keep-alive"])
def test_a_client_that_never_reads_its_reply_is_let_go(options: str) -> None:
    async def run(on: Routed) -> None:
        text = body_for(COMPLETIONS, sim={"fault": {"name": "huge_event", "size": 12 << 20}})
        async with await Wire.connect(on.url, room=4096) as client:
            await client.send(request("POST", COMPLETIONS, text, options))
            await eventually(lambda: on.endings == {"disconnected": 1})
            await eventually(lambda: not on.server._connections)

    on_router(run, serving={"max_response_bytes": 64 << 20, "idle_timeout_s": 0.2})


@pytest.mark.usefixtures("impatient")
def test_a_client_that_stays_after_its_last_reply_is_let_go() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            assert (await client.ask(request("GET", "/health", None, "Connection: close"))).status == 200
            assert await client.rest() == b""
            await eventually(lambda: not on.server._connections)

    on_router(run)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_two_thousand_short_connections_leave_nothing_behind() -> None:
    async def one(on: Routed, kind: int) -> None:
        async with await Wire.connect(on.url) as client:
            match kind % 6:
                case 0:
                    assert (await client.ask(HEALTH)).status == 200
                case 1:
                    await client.send(HEALTH[:10])
                case 2:
                    assert (await client.ask(b"\0")).status == 400
                case 3:
                    await client.send(request("POST", CHAT, b"x" * 100)[:-1])
                case 4:
                    await client.send(HEALTH)
                    client.reset()
                case 5:
                    reply = await client.ask(request("GET", "/nope", None, "Connection: close"))
                    assert reply.status == 404
                    assert await client.rest() == b""

    async def run(on: Routed) -> None:
        await one(on, 0)
        before = open_files()
        for batch in range(20):
            await asyncio.gather(*(one(on, batch + kind) for kind in range(100)))
        await eventually(lambda: not on.server._connections)
        await eventually(lambda: open_files() <= before)

    on_router(run)
