"""A router over a simulated fleet, in one event loop, and what tests say of it.

Every test that uses `routed` or `on_router` also checks, at its end, that the router has come to rest: no
request held, waiting or in flight, no seat taken, nothing running at any engine, and the counters' law.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import orjson
import yaml

from narwhal._fast.loop import run as run_in_loop
from narwhal.admission.door import Door
from narwhal.admission.grant import Grant
from narwhal.admission.line import SeatRequest
from narwhal.config import FleetConfig, parse
from narwhal.fleet.table import Phase
from narwhal.serving.router import Router
from narwhal.serving.server import Server
from narwhal.sim import SimFleet, SimOptions
from tests.http.sim_client import Answer, Client, ask, message

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

__all__ = [
    "CHAT", "COMPLETIONS", "Answer", "Client", "Routed", "ask", "assert_idle", "body_for", "config_of",
    "eventually", "message", "on_router", "routed", "seat",
]  # fmt: skip


async def eventually(condition: Callable[[], Any], what: str = "", *, within_s: float = 10.0) -> None:
    """Wait for a condition. Raises AssertionError if it does not come true."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    pause = 0.0005
    while not condition():
        if loop.time() > end:
            raise AssertionError(f"this never came true: {what or condition}")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.01)


def body_for(path: str, prompt: str = "How big is a narwhal? 🐋", **more: Any) -> dict[str, Any]:
    """A small request to one of the completion routes."""
    what = {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    return {"model": "sim-model", **what, "max_tokens": 8, **more}


def config_of(
    fleet: SimFleet,
    *,
    serving: dict[str, Any] | None = None,
    engines: dict[str, Any] | None = None,
    **sections: Any,
) -> FleetConfig:
    """The configuration for a fleet; `engines` are keys for each of its engines."""
    keys = {"port": 0, "admission": "open"} | (serving or {})
    # Engines see no probes, unless a test is about those.
    sections["recovery"] = {"liveness_interval_s": 3600} | sections.get("recovery", {})
    document = fleet.config(serving=keys, **sections)
    for engine in document["engines"]:
        engine.update(engines or {})
    return parse(yaml.safe_dump(document), "fleet.yaml")


class Routed:
    """A fleet and the router before it."""

    def __init__(self, fleet: SimFleet, server: Server, journal: Path) -> None:
        self.fleet = fleet
        self.server = server
        self._journal = journal
        self._clients: list[Client] = []

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def router(self) -> Router:
        assert self.server.router is not None
        return self.server.router

    @property
    def door(self) -> Door:
        return self.router.door

    @property
    def counts(self) -> dict[str, int]:
        """The counters of the law by name."""
        return self.router.accounts.counters.snapshot()

    @property
    def endings(self) -> dict[str, int]:
        """How requests have ended, by name of the outcome; those that none had are left out."""
        return {name: count for name, count in self.router.accounts.counters.endings.items() if count}

    @property
    def seats(self) -> tuple[int, int]:
        """Seats taken in the fleet, for prefill and for decode."""
        table = self.router.table
        return sum(table.prefill_seats), sum(table.decode_seats)

    async def connect(self) -> Client:
        """A client's connection to the router, closed at the end if it is not before."""
        client = await Client.connect(self.url)
        self._clients.append(client)
        return client

    async def ask(self, path: str, body: Any = None, *, method: str = "POST", **options: Any) -> Answer:
        """One request over a connection of its own."""
        return await ask(self.url, method, path, body, **options)

    async def rows(self, count: int = 1) -> list[dict[str, Any]]:
        """The journal, once it has `count` rows."""
        await eventually(lambda: self._lines() >= count, f"{count} rows in the journal")
        assert self._lines() == count
        return [orjson.loads(line) for line in self._journal.read_bytes().splitlines()]

    async def row(self) -> dict[str, Any]:
        """The journal's one row."""
        return (await self.rows())[0]

    async def hang_up(self) -> None:
        """Close every connection that `connect` made."""
        for client in self._clients:
            await client.close()

    def _lines(self) -> int:
        return self._journal.read_bytes().count(b"\n") if self._journal.exists() else 0


@contextlib.asynccontextmanager
async def routed(
    *,
    prefill: int = 1,
    decode: int = 1,
    both: int = 0,
    options: SimOptions | None = None,
    fleet: SimFleet | None = None,
    serving: dict[str, Any] | None = None,
    **config: Any,
) -> AsyncIterator[Routed]:
    """Start a fleet, unless one that runs is given, and a router; at the end, see both come to rest.

    `serving` are keys of that section; `config` is for `config_of`.
    """
    async with contextlib.AsyncExitStack() as stack:
        if fleet is None:
            sims = SimFleet(prefill=prefill, decode=decode, both=both, options=options)
            fleet = await stack.enter_async_context(sims)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        journal = folder / "journal.jsonl"
        keys = {"journal_path": str(journal)} | (serving or {})
        server = Server(config_of(fleet, serving=keys, **config))
        await server.start()
        stack.push_async_callback(server.stop, 0)
        where = Routed(fleet, server, journal)
        stack.push_async_callback(where.hang_up)
        yield where
        await where.hang_up()
        await at_rest(where)


def seat(where: Routed, phase: Phase, avoid: Iterable[int] = ()) -> Grant:
    """Take a free seat of a phase; the caller gives it back."""
    request = SeatRequest(phase, 0.0, frozenset(avoid), lambda grant: None, lambda ending: None)
    grant = where.door.ask(request, time.monotonic())
    assert grant is not None
    return grant


def on_router(test: Callable[[Routed], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run a test on a router; see `routed`."""

    async def run() -> None:
        async with routed(**options) as where:
            await test(where)

    run_in_loop(run())


async def at_rest(where: Routed) -> None:
    """Wait for the router and its fleet to come to rest. Raises AssertionError if they don't."""
    await eventually(lambda: not where.counts["in_flight"], "no request in flight")
    assert_idle(where.server)
    await eventually(lambda: not where.fleet.active, "no engine busy")


def assert_idle(server: Server) -> None:
    """Nothing is held, waits, is seated or in flight, and each request offered has ended once."""
    router = server.router
    assert router is not None
    assert router.door.held == 0
    assert [router.door.waiting(phase) for phase in Phase] == [0, 0]
    assert router.table.idle
    assert not router.exchanges
    counters = router.accounts.counters
    assert counters.in_flight == 0
    assert counters.law_holds()
