"""Listening, and stopping: what runs is finished, or told that it is not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from narwhal._fast.loop import run as run_in_loop
from narwhal.serving.descriptors import raise_file_limit
from narwhal.serving.server import CannotListen, Server
from narwhal.sim import SimFleet
from tests.http.support import CHAT, Routed, body_for, config_of, eventually, on_router
from tests.http.wire import Wire, request

HEALTH = request("GET", "/health")


def stream(**sim: object) -> bytes:
    return request("POST", CHAT, body_for(CHAT, stream=True, sim=sim))


STALL = {"name": "stall", "after": 2, "leg": "decode"}


def test_a_stop_lets_what_runs_finish_and_closes_the_rest_at_once() -> None:
    async def run(on: Routed) -> None:
        async with contextlib.AsyncExitStack() as stack:
            idle, begun, busy, sending = [
                await stack.enter_async_context(await Wire.connect(on.url)) for _ in range(4)
            ]
            assert (await idle.ask(HEALTH)).status == 200
            await begun.send(HEALTH[:-2])
            await busy.send(stream(fault={"name": "slow_first_token", "seconds": 0.3}))
            body = request("POST", CHAT, body_for(CHAT))
            await sending.send(body[:-10])
            await eventually(lambda: on.counts["in_flight"] == 2)
            url = on.url
            stopping = asyncio.ensure_future(on.server.stop(10))
            assert await idle.rest() == b""
            await stops_listening(url)
            assert on.counts["in_flight"] == 2
            # Half a request is no request under way, but whoever completes it is answered, for the last time.
            await begun.send(HEALTH[-2:])
            reply = await begun.reply()
            assert (reply.status, reply.closes) == (200, True)
            await sending.send(body[-10:])
            reply = await sending.reply()
            assert (reply.status, reply.closes) == (200, True)
            begun.close()
            sending.close()
            assert len((await busy.reply()).events) == 9
            assert await busy.rest() == b""
            busy.close()
            await stopping
            assert on.endings == {"served": 2}

    on_router(run)


async def stops_listening(url: str) -> None:
    # One that the system has taken in when the listener closes is reset.
    with contextlib.suppress(ConnectionRefusedError, ConnectionResetError):
        async with asyncio.timeout(10):
            while True:
                (await Wire.connect(url)).close()


def test_what_does_not_end_in_time_is_told_so() -> None:
    async def run(on: Routed) -> None:
        async with contextlib.AsyncExitStack() as stack:
            streaming, waiting, sending = [
                await stack.enter_async_context(await Wire.connect(on.url)) for _ in range(3)
            ]
            await streaming.send(stream(fault=STALL))
            await waiting.send(stream(fault="hang"))
            await sending.send(request("POST", CHAT, body_for(CHAT))[:-10])
            await eventually(lambda: on.counts["in_flight"] == 3 and on.fleet.active == 2)
            await asyncio.get_running_loop().sock_recv(streaming.sock, 12)  # its status has come
            stopping = asyncio.ensure_future(on.server.stop(0.1))
            rest = await streaming.rest()
            assert b'"code":"failed"' in rest
            assert b"[DONE]" not in rest
            assert rest.endswith(b"\r\n0\r\n\r\n")
            for client in (waiting, sending):
                reply = await client.reply()
                assert (reply.status, reply.code, reply.error["type"]) == (503, "shutdown", "not_ready")
                assert reply.header("retry-after") == "1"
                assert await client.rest() == b""
            await stopping
            assert on.endings == {"shutdown": 3}

    on_router(run)


def test_a_second_stop_ends_what_the_first_would_wait_for() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            await client.send(stream(fault=STALL))
            await eventually(lambda: on.fleet.active)
            stopping = asyncio.ensure_future(on.server.stop(1000))
            await eventually(lambda: on.router.readiness.blocker)
            await on.server.stop(0)
            await asyncio.wait_for(stopping, 1)
            assert on.endings == {"shutdown": 1}
            await on.server.stop(0)

    on_router(run)


def test_a_client_that_does_not_read_holds_no_stop_up() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url, room=4096) as client:
            await client.send(stream(fault={"name": "huge_event", "size": 12 << 20}))
            await eventually(lambda: any(one._writing_paused for one in on.server._connections))
            await asyncio.wait_for(on.server.stop(0.05), 5)
            assert not on.server._connections

    on_router(run, serving={"max_response_bytes": 64 << 20})


def test_the_port_is_free_again_at_once_and_taken_ones_are_named() -> None:
    async def run() -> None:
        async with SimFleet(both=1) as fleet:
            first = Server(config_of(fleet))
            await first.start()
            port = first.port
            async with await Wire.connect(first.url) as client:
                assert (await client.ask(HEALTH)).status == 200
                with pytest.raises(
                    CannotListen, match=rf"127\.0\.0\.1 port {port}: .*serving\.host, --port or serving\.port"
                ):
                    await Server(config_of(fleet, serving={"port": port})).start()
                await first.stop(0)  # the connection is left in TIME_WAIT
            again = Server(config_of(fleet, serving={"port": port}))
            await again.start()
            await again.stop(0)
            with pytest.raises(CannotListen, match=r"192\.0\.2\.1"):
                await Server(config_of(fleet, serving={"host": "192.0.2.1"})).start()

    run_in_loop(run())


def test_it_listens_on_ipv6() -> None:
    async def run(on: Routed) -> None:
        assert on.url == f"http://[::1]:{on.server.port}"
        async with await Wire.connect(on.url) as client:
            assert (await client.ask(request("POST", CHAT, body_for(CHAT)))).status == 200

    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    on_router(run, serving={"host": "::1"})


def test_a_burst_of_connections_is_accepted_in_few_turns_of_a_busy_loop() -> None:
    async def run(on: Routed) -> None:
        where = ("127.0.0.1", on.server.port)
        clients = [socket.create_connection(where) for _ in range(64)]  # nothing else runs meanwhile
        turns = 0
        while len(on.server._connections) < len(clients):
            await asyncio.sleep(0)
            turns += 1
        assert turns <= 12
        for client in clients:
            client.close()

    on_router(run)


def test_a_thousand_clients_may_connect_at_once() -> None:
    async def run(on: Routed) -> None:
        clients = await asyncio.gather(*(Wire.connect(on.url) for _ in range(1000)))
        replies = await asyncio.gather(*(client.ask(HEALTH) for client in clients))
        assert {reply.status for reply in replies} == {200}
        for client in clients:
            client.close()

    on_router(run)


def test_too_few_files_for_the_connections_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = [(256, 1024)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))

    async def run(on: Routed) -> None:
        with caplog.at_level(logging.WARNING):
            share = raise_file_limit(on.server.config)
        assert limits[-1] == (1024, 1024)
        assert f"more than {share.connections} clients are turned away" in caplog.text
        assert "at most 1024 files can be open (ulimit -n), but" in caplog.text
        assert "serving.client_connection_limit" in caplog.text

    on_router(run)


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_stops_the_command_and_a_second_one_ends_it(signals: int, tmp_path: Path) -> None:
    async def run() -> None:
        async with SimFleet(both=1) as fleet:
            path = tmp_path / "fleet.yaml"
            path.write_text(fleet.yaml(serving={"port": 0}))
            serve = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "narwhal", "serve", "--fleet", str(path),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            try:
                assert serve.stdout is not None
                line = (await asyncio.wait_for(serve.stdout.readline(), 30)).decode()
                url = next(word for word in line.split() if word.startswith("http"))
                async with await Wire.connect(url) as client:
                    seconds = 0.3 if signals == 1 else 1000
                    await client.send(stream(fault={"name": "slow_first_token", "seconds": seconds}))
                    await eventually(lambda: fleet.active)
                    serve.send_signal(signal.SIGTERM)
                    await stops_listening(url)
                    if signals == 1:
                        assert len((await client.reply()).events) == 9
                    else:
                        serve.send_signal(signal.SIGINT)
                        reply = await client.reply()
                        assert (reply.status, reply.code) == (503, "shutdown")
                _, log = await asyncio.wait_for(serve.communicate(), 10)
                assert serve.returncode == signals - 1
                assert b"Traceback" not in log
            finally:
                if serve.returncode is None:
                    serve.kill()
                    await serve.wait()

    run_in_loop(run())
