"""Engines are killed, stopped, restarted and made to misbehave in random order, under load, as processes.

NARWHAL_CHAOS_S says for how long (`make chaos`: 60 seconds), NARWHAL_CHAOS_SEED in what order; the seed is
printed. What engines do wrong is bounded in one way only: at every moment there are engines of each role that
do nothing wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import orjson
import pytest
import yaml

from narwhal._fast.loop import run as run_in_loop
from narwhal.sim import expected_output
from tests.http.commands import Running, started
from tests.http.sim_client import Answer, Client, ask
from tests.http.support import CHAT, COMPLETIONS, body_for

SECONDS = float(os.environ.get("NARWHAL_CHAOS_S", "20"))
AT_ONCE = 400
WARM_UP_S = 3.0
DEADLINE_S = 30.0
ROLES = ("prefill",) * 3 + ("decode",) * 5
# So many of each role are left alone at any time.
SPARED = {"prefill": 1, "decode": 2}
ENDINGS = ("served", "failed", "expired", "cancelled", "rejected", "refused", "invalid_requests")
FAULTS: tuple[dict[str, Any], ...] = (
    {"name": "bad_status", "status": 500},
    {"name": "bad_status", "status": 503},
    {"name": "hang"},
    {"name": "reset"},
    {"name": "reset", "at": "accept"},
    {"name": "refuse"},
    {"name": "broken_json"},
    {"name": "broken_json", "after": 2},
    {"name": "broken_chunking", "after": 1},
    {"name": "ids_missing", "after": 2},
    {"name": "ids_nested"},
    {"name": "no_handoff"},
    {"name": "die_after", "after": 3, "how": "truncate"},
    {"name": "stall", "after": 2},
    {"name": "error_in_stream", "after": 1},
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Engine:
    """One simulated engine, in a process of its own."""

    def __init__(self, name: str, role: str) -> None:
        self.name, self.role, self.port = name, role, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.at_fault = False
        self._child: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "narwhal", "sim", "--role", self.role, "--port", str(self.port),
            "--interval", "0.08", "--prefill-c", "0.01", stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self._child.stdout is not None
        assert b"id: sim-" in await self._child.stdout.readline()

    async def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            await self._child.communicate()
            self._child = None

    def signal(self, number: int) -> None:
        assert self._child is not None
        self._child.send_signal(number)

    async def set(self, *faults: dict[str, Any]) -> None:
        # One that resets what it accepts can only be told to stop doing so by starting anew.
        with contextlib.suppress(OSError):
            await ask(self.url, "POST", "/sim/faults", list(faults), wait_s=2.0)


class Chaos:
    """What goes wrong."""

    def __init__(self, engines: list[Engine], dice: Random) -> None:
        self.log: list[str] = []
        self._engines = engines
        self._dice = dice

    async def reign(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._dice.uniform(0.8, 2.0))
                victim = self._dice.choice(self._engines)
                well = [one for one in self._engines if one.role == victim.role and not one.at_fault]
                if not victim.at_fault and len(well) > SPARED[victim.role]:
                    victim.at_fault = True
                    group.create_task(self._torment(victim, self._dice.uniform(0.5, 4.0)))

    async def _torment(self, engine: Engine, seconds: float) -> None:
        way = self._dice.choice(("kill", "stop", "restart", "fault", "fault", "fault"))
        fault = self._dice.choice(FAULTS)
        self.log.append(f"{engine.name}: {way if way != 'fault' else fault} for {seconds:.1f} s")
        if way == "fault":
            await engine.set(fault)
        elif way == "stop":
            engine.signal(signal.SIGSTOP)
        else:
            await engine.kill()
        if way != "restart":
            await asyncio.sleep(seconds)
        await self.mend(engine, way)

    async def mend(self, engine: Engine, way: str) -> None:
        if way == "stop":
            engine.signal(signal.SIGCONT)
        else:
            await engine.kill()
            await engine.start()
        engine.at_fault = False


class Clients:
    """Who asks, and what they were told."""

    def __init__(self, url: str, dice: Random) -> None:
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._url = url
        self._dice = dice
        self._number = 0

    async def ask_until(self, end: float) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._one_after_another(end))

    async def _one_after_another(self, end: float) -> None:
        client: Client | None = None
        while time.monotonic() < end:
            if client is None:
                client = await Client.connect(self._url)
            self._number += 1
            path = self._dice.choice((CHAT, COMPLETIONS))
            body = body_for(
                path, f"request {self._number}", max_tokens=self._dice.randint(2, 16), return_token_ids=True,
                stream=self._dice.random() < 0.25,
            )  # fmt: skip
            began = time.monotonic()
            answer = await client.ask("POST", path, body, wait_s=DEADLINE_S + 10)
            took = time.monotonic() - began
            what = self._judge(answer, body)
            self.ended[what] += 1
            if took > DEADLINE_S + 2:
                self.wrong.append(f"{what} after {took:.1f} s")
            if answer.ended != "whole" or answer.headers.get("connection") == "close":
                await client.close()
                client = None
        if client is not None:
            await client.close()

    def _judge(self, answer: Answer, body: dict[str, Any]) -> str:
        kind = "stream" if body["stream"] else "whole"
        if answer.ended != "whole":
            self.wrong.append(f"{kind}: {answer.ended} {answer.status} {answer.body[-300:]!r}")
            return "wrong"
        expected = expected_output(body)[0]
        if answer.status != 200:
            error = orjson.loads(answer.body)["error"]
            return f"{kind}: {answer.status} {error['code']}"
        if kind == "whole":
            ids = answer.json()["choices"][0]["token_ids"]
        elif answer.blocks[-1] == b"[DONE]":
            ids = answer.token_ids
        else:
            assert b'"error"' in answer.blocks[-1], answer.body
            # What came before is the beginning of the answer.
            ids = [token for event in map(orjson.loads, answer.blocks[:-1]) for token in _ids(event)]
            if ids != expected[: len(ids)]:
                self.wrong.append(f"{ids} is no beginning of {expected}")
            return "stream: terminal event"
        if ids != expected:
            self.wrong.append(f"{kind}: {ids} instead of {expected}")
            return "wrong"
        return f"{kind}: served"


def _ids(event: dict[str, Any]) -> list[int]:
    return [token for choice in event["choices"] for token in choice.get("token_ids") or []]


class Watched:
    """The router's process, seen from outside."""

    def __init__(self, router: Running, url: str) -> None:
        self.url = url
        self._proc = Path(f"/proc/{router.child.pid}")

    async def state(self) -> dict[str, Any]:
        state: dict[str, Any] = (await ask(self.url, "GET", "/narwhal/state")).json()
        requests = state["requests"]
        law = sum(requests[name] for name in ENDINGS) + requests["in_flight"]
        assert requests["offered"] == law, requests
        return state

    async def sample(self) -> None:
        while True:
            await self.state()
            await asyncio.sleep(0.5)

    @property
    def files(self) -> int:
        return len(list((self._proc / "fd").iterdir()))

    @property
    def memory_mib(self) -> float:
        return int((self._proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20

    async def rest(self) -> dict[str, Any]:
        """Wait until every engine is back and nothing runs."""
        async with asyncio.timeout(30):
            while True:
                state = await self.state()
                busy = [
                    phase["seats_in_use"]
                    for engine in state["engines"]
                    for phase in engine["phases"].values()
                ]
                held = [engine["lifecycle"]["handoffs_held"] for engine in state["engines"]]
                idle = not state["requests"]["in_flight"] and not state["requests"]["held"]
                settled = all(engine["lifecycle"]["state"] == "serving" for engine in state["engines"])
                # Connections that nobody uses are closed after a while.
                closed = all(engine["connections"] == 0 for engine in state["engines"])
                if idle and settled and closed and not any(busy) and not any(held):
                    return state
                await asyncio.sleep(0.1)


def fleet_file(folder: Path, engines: list[Engine]) -> str:
    path = folder / "fleet.yaml"
    document = {
        "model": "sim-model",
        "slo": {"ttft_s": 2.0, "tpot_s": 0.1},
        "engines": [{"id": one.name, "url": one.url, "role": one.role} for one in engines],
        "serving": {
            "port": 0, "admission": "open", "max_attempts": 3, "request_timeout_s": DEADLINE_S,
            "queue_timeout_s": DEADLINE_S, "prefill_timeout_s": 4.0, "first_token_timeout_s": 4.0,
            "stream_idle_timeout_s": 4.0, "retention_limit": 1000, "queue_capacity": 1000,
            "prefill_concurrency": 64, "retry_reserve": 2000, "retry_share": 1.0, "continue_streams": True,
        },
        "engine": {"connect_timeout_s": 2.0, "idle_connection_s": 1.0},
        "recovery": {"liveness_interval_s": 1.0, "liveness_misses": 2, "probe_timeout_s": 3.0,
                     "readmit_ramp_s": 2.0},
    }  # fmt: skip
    path.write_text(yaml.safe_dump(document))
    return str(path)


async def chaos(folder: Path, seed: int) -> None:
    engines = [Engine(f"{role[0]}{number}", role) for number, role in enumerate(ROLES)]
    try:
        await asyncio.gather(*(engine.start() for engine in engines))
        async with started("serve", "--fleet", fleet_file(folder, engines), "--log-level", "error") as router:
            await under_chaos(Watched(router, await router.url()), engines, Random(seed))
    finally:
        await asyncio.gather(*(engine.kill() for engine in engines))


async def under_chaos(router: Watched, engines: list[Engine], dice: Random) -> None:
    # What a router that has served so many at once looks like, at rest.
    warming = Clients(router.url, dice)
    await warming.ask_until(time.monotonic() + WARM_UP_S)
    assert set(warming.ended) == {"whole: served", "stream: served"}, warming.ended
    await router.rest()
    files, memory = router.files, router.memory_mib

    clients, disorder = Clients(router.url, dice), Chaos(engines, dice)
    background = [asyncio.create_task(disorder.reign()), asyncio.create_task(router.sample())]
    try:
        await clients.ask_until(time.monotonic() + SECONDS)
        for task in background:
            assert not task.done(), task.exception()
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
    for engine in engines:
        if engine.at_fault:
            with contextlib.suppress(ProcessLookupError, AssertionError):
                engine.signal(signal.SIGCONT)
            await engine.kill()
            await engine.start()
    state = await router.rest()

    print(*disorder.log, sep="\n")
    for what, count in sorted(clients.ended.items()):
        print(f"{count:6} {what}")
    print(f"files {files} -> {router.files}, memory {memory:.0f} -> {router.memory_mib:.0f} MiB")
    assert not clients.wrong, clients.wrong[:5]
    told = sum(clients.ended.values()) + sum(warming.ended.values())
    assert state["requests"]["offered"] == told
    for kind in ("whole", "stream"):
        asked = sum(count for what, count in clients.ended.items() if what.startswith(f"{kind}: "))
        print(f"{clients.ended[f'{kind}: served'] / asked:.2%} of {asked} served ({kind})")
        assert clients.ended[f"{kind}: served"] >= 0.99 * asked
    print(f"{state['requests']['continuations']} of {state['requests']['retries']} further attempts went on")
    assert state["requests"]["continuations"] > 0
    assert router.files <= files + 4
    assert router.memory_mib <= memory * 1.1 + 16


@pytest.mark.timeout(SECONDS + 180)
def test_in_chaos_every_client_gets_an_answer_and_nearly_all_are_served(tmp_path: Path) -> None:
    seed = int(os.environ.get("NARWHAL_CHAOS_SEED") or SystemRandom().randrange(10**6))
    print(f"NARWHAL_CHAOS_SEED={seed}")
    run_in_loop(chaos(tmp_path, seed))
