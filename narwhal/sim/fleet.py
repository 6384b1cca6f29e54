"""A fleet of simulated engines in one process, and the fleet file that a router needs to serve it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import yaml

from narwhal.sim.engine import SimEngine, SimOptions


class SimFleet:
    """Some engines for each role, started and stopped together. An asynchronous context manager."""

    def __init__(
        self, *, prefill: int = 0, decode: int = 0, both: int = 0, options: SimOptions | None = None
    ) -> None:
        self.options = options or SimOptions()
        counts = {"prefill": prefill, "decode": decode, "both": both}
        self._engines = {
            f"{role[0]}{i}": SimEngine(replace(self.options, role=role))
            for role, count in counts.items()
            for i in range(count)
        }

    def __getitem__(self, engine_id: str) -> SimEngine:
        """An engine by its ID: p0, p1 ... for prefill, d0 ... for decode, b0 ... for both."""
        return self._engines[engine_id]

    @property
    def engines(self) -> Sequence[SimEngine]:
        """All of them, in the fleet file's order."""
        return list(self._engines.values())

    def of(self, role: str) -> Sequence[SimEngine]:
        """Those of one role."""
        return [engine for engine in self.engines if engine.options.role == role]

    async def start(self, host: str = "127.0.0.1") -> None:
        """Start all, each on a free port."""
        await asyncio.gather(*(engine.start(host) for engine in self.engines))

    async def stop(self) -> None:
        """Stop all."""
        await asyncio.gather(*(engine.stop() for engine in self.engines))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def active(self) -> int:
        """Completion requests that some engine is busy with."""
        return sum(engine.stats.active for engine in self.engines)

    def config(self, *, ttft_s: float = 2.0, tpot_s: float = 0.05, **sections: Any) -> dict[str, Any]:
        """The fleet file's content. `sections` (serving, engine, profiles ...) are put in as they are."""
        engines = [
            {"id": engine_id, "url": engine.url, "role": engine.options.role}
            for engine_id, engine in self._engines.items()
        ]
        base = {"model": self.options.model, "slo": {"ttft_s": ttft_s, "tpot_s": tpot_s}, "engines": engines}
        return base | sections

    def yaml(self, **overrides: Any) -> str:
        """The fleet file: `config`, as text."""
        return yaml.safe_dump(self.config(**overrides), sort_keys=False, allow_unicode=True)
