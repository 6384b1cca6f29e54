"""A router that has no descriptors or ports left says so, blames no engine, and recovers."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal._fast.loop import run as run_in_loop
from narwhal.config import parse
from narwhal.engines import exhaustion, pool
from narwhal.fleet.lifecycle import State
from narwhal.serving import listener
from narwhal.serving.descriptors import share_out
from narwhal.serving.listener import Listener
from narwhal.sim import SimFleet
from tests.http.commands import Running, process
from tests.http.support import CHAT, Client, Routed, body_for, eventually, on_router
from tests.http.test_recovery import QUICK, state

FILES = 64  # enough for the router itself, a probe of each engine, and some connections


class Shortage:
    """Stands in for the module `socket` where engines are connected to; no socket comes while it lasts."""

    def __init__(self, error: int, *, spared: int = 0) -> None:
        """`spared` sockets come all the same, before the others."""
        self.error: int | None = error
        self.spared = spared
        self.asked = 0

    def put_into(self, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
        names = {name: getattr(socket, name) for name in dir(socket)}
        monkeypatch.setattr(module, "socket", SimpleNamespace(**names | {"socket": self.socket}))

    def socket(self, *args: int) -> socket.socket:
        self.asked += 1
        if self.error is not None and self.asked > self.spared:
            raise OSError(self.error, os.strerror(self.error))
        return socket.socket(*args)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (errno.EMFILE, "`ulimit -n`, or LimitNOFILE"),
        (errno.ENFILE, "fs.file-max"),
        (errno.ENOBUFS, "no memory left for sockets"),
        (errno.EADDRNOTAVAIL, "net.ipv4.ip_local_port_range"),
    ],
)
def test_a_request_is_told_what_is_lacking_and_its_engine_is_not_blamed(
    error: int, advice: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shortage = Shortage(error)

    async def test(where: Routed) -> None:
        times = 10
        for _ in range(times):
            answer = await where.ask(CHAT, body_for(CHAT))
            told = answer.json()["error"]
            assert (answer.status, told["type"], told["code"]) == (503, "overloaded", "sockets_exhausted")
            assert answer.headers["retry-after"] == "1"
            assert "engine p0 (prefill leg)" in told["message"]
            assert advice in told["message"]
        assert where.endings == {"sockets_exhausted": times}
        assert where.counts["rejected"] == times
        assert where.router.accounts.engines.failures == {}
        assert state(where, "p0") is State.SERVING
        # The same thing is said about once a second, not with every request.
        lines = [record for record in caplog.records if advice in record.getMessage()]
        assert 0 < len(lines) < times
        shortage.error = None
        assert (await where.ask(CHAT, body_for(CHAT))).status == 200

    with caplog.at_level(logging.WARNING):
        shortage.put_into(monkeypatch, pool)
        on_router(test)


def test_a_decode_leg_without_a_socket_ends_its_request_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    shortage = Shortage(errno.EMFILE, spared=1)  # for the prefill leg

    async def test(where: Routed) -> None:
        answer = await where.ask(CHAT, body_for(CHAT, stream=True))
        assert (answer.status, answer.json()["error"]["code"]) == (503, "sockets_exhausted")
        assert "engine d0 (decode leg)" in answer.json()["error"]["message"]
        assert where.router.accounts.engines.failures == {}

    shortage.put_into(monkeypatch, pool)
    on_router(test)


def test_an_address_without_a_route_is_the_engines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    # It gets the error that one without free ports gets.
    shortage = Shortage(errno.EADDRNOTAVAIL)

    async def test(where: Routed) -> None:
        answer = await where.ask(CHAT, body_for(CHAT))
        assert (answer.status, answer.json()["error"]["code"]) == (502, "connect_failed")

    shortage.put_into(monkeypatch, pool)
    shortage.put_into(monkeypatch, exhaustion)
    on_router(test, serving={"max_attempts": 1})


def test_a_look_up_that_fails_for_want_of_files_is_no_fault_of_the_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert exhaustion.lacking_files(failed) is None
    Shortage(errno.EMFILE).put_into(monkeypatch, exhaustion)
    assert "EMFILE" in (exhaustion.lacking_files(failed) or "")


def test_probes_that_get_no_socket_say_nothing_of_an_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shortage = Shortage(errno.EMFILE)

    async def test(where: Routed) -> None:
        misses = QUICK["liveness_misses"]
        await eventually(lambda: shortage.asked > 2 * len(where.fleet.engines) * misses)
        assert {life.state for life in where.router.lifecycle.lives} == {State.SERVING}
        shortage.error = None
        await eventually(lambda: all(engine.stats.connections_opened for engine in where.fleet.engines))
        assert {life.state for life in where.router.lifecycle.lives} == {State.SERVING}
        told = [record for record in caplog.records if "can't be probed" in record.getMessage()]
        assert len(told) == 1

    with caplog.at_level(logging.WARNING):
        shortage.put_into(monkeypatch, pool)
        on_router(test, recovery=QUICK)


def test_a_listener_without_descriptors_pauses_and_takes_up_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "PAUSE_S", 0.02)
    accepts = 0

    class Refusing(socket.socket):
        def accept(self) -> tuple[socket.socket, Any]:
            nonlocal accepts
            accepts += 1
            if accepts <= 3:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    async def test() -> None:
        sock = Refusing()
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        made: list[asyncio.BaseTransport] = []

        class Taken(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.append(transport)

        listening = Listener([sock], Taken, asyncio.get_running_loop())
        with socket.create_connection(("127.0.0.1", listening.port)):
            await eventually(lambda: made)
        made[0].close()
        listening.close()

    with caplog.at_level(logging.ERROR):
        run_in_loop(test())
    assert accepts == 5  # the last finds nobody else
    assert len([record for record in caplog.records if "no connection can be taken in" in record.msg]) == 1


def test_idle_clients_leave_requests_the_descriptors_they_need(tmp_path: Path) -> None:
    async def test() -> None:
        async with SimFleet(prefill=4, decode=4) as fleet:
            path = tmp_path / "fleet.yaml"
            serving = {"port": 0, "admission": "open"}
            path.write_text(fleet.yaml(serving=serving, recovery={"liveness_interval_s": 3600}))
            command = f"ulimit -n {FILES}; exec {sys.executable} -m narwhal serve --fleet {path}"
            async with process("/bin/sh", "-c", command) as child:
                await crowd(Running(child))

    run_in_loop(test())


async def crowd(router: Running) -> None:
    url = await router.url()
    first = await Client.connect(url)
    others = [await Client.connect(url) for _ in range(2 * FILES)]
    answers = [await client.ask("GET", "/health") for client in others]
    turned_away = [answer for answer in answers if answer.status != 200]
    assert FILES < len(turned_away) < 2 * FILES
    for answer in turned_away:
        assert (answer.status, answer.json()["error"]["code"]) == (503, "connection_limit")
        assert f"the {FILES} files that this process may have open" in answer.json()["error"]["message"]
    for _ in range(10):
        assert (await first.ask("POST", CHAT, body_for(CHAT))).status == 200
    # All who were let in at once: connections that prefill engines are done with make room for decode legs.
    served = [client for client, answer in zip(others, answers, strict=True) if answer.status == 200]
    for _ in range(5):
        asked = await asyncio.gather(*(client.ask("POST", CHAT, body_for(CHAT)) for client in served))
        assert {answer.status for answer in asked} == {200}
    known = (await first.ask("GET", "/narwhal/state")).json()
    assert known["requests"]["offered"] == known["requests"]["served"] == 10 + 5 * len(served)
    assert {engine["lifecycle"]["state"] for engine in known["engines"]} == {"serving"}
    for client in others:
        await client.close()
    # As soon as the router has seen them go, there is room for others.
    async with asyncio.timeout(10):
        while True:
            newcomer = await Client.connect(url)
            answer = await newcomer.ask("POST", CHAT, body_for(CHAT))
            await newcomer.close()
            if answer.status == 200:
                break
            assert answer.json()["error"]["code"] == "connection_limit"
    await first.close()
    router.child.terminate()
    ended = await router.ended()
    assert ended.code == 0
    assert "Traceback" not in ended.err
    assert ended.err.count("clients are turned away") == 1


@given(st.integers(1, 40_000), st.integers(1, 3000), st.integers(8, 1 << 20))
def test_clients_have_what_engines_leave_but_half_at_least(clients: int, seats: int, files: int) -> None:
    engine = {"id": "a", "url": "http://127.0.0.1:9", "role": "both", "decode_concurrency": seats}
    serving = {"client_connection_limit": clients, "retention_limit": 1500, "prefill_concurrency": 1}
    slo = {"ttft_s": 1, "tpot_s": 1}
    config = parse(json.dumps({"model": "m", "slo": slo, "serving": serving, "engines": [engine]}), "fleet")
    limit = share_out(config, files)
    engines = min(seats + 1, 1500) + 1
    free = files - min(128, files // 2)
    assert limit.connections <= clients
    if limit.connections < clients:
        assert limit.connections >= free // 2
        assert limit.connections == free // 2 or limit.connections + engines == free
        assert f"{files} files" in limit.setting
    else:
        assert limit.setting == "serving.client_connection_limit"
        assert clients <= max(free - engines, free // 2)
