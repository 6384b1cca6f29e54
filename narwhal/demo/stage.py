"""The demo's fleet and router, started and stopped together.

The engines' pace is about that of a large model on a busy GPU, and the limits are small, so that a short load
shows a queue, refusals and late answers.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from narwhal.config import FleetConfig, parse
from narwhal.serving.server import Server
from narwhal.sim import Curve, Interval, SimFleet, SimOptions, Timing

MODEL = "demo"
PREFILL_ENGINES = DECODE_ENGINES = 2
TIMING = Timing(prefill=Curve(b=3e-4, c=0.02), interval=Interval(base=0.017, per_seq=3e-4))
TTFT_TARGET_S = 1.0
TPOT_TARGET_S = 0.05
_GRACE_S = 1.0


class Stage:
    """Simulated engines with a router before them. An asynchronous context manager; entering it raises
    CannotListen."""

    def __init__(self, port: int, answer: str | None = None) -> None:
        """`port` is the router's; 0: any free one. `answer` is what the engines say to requests that do not
        tell them; None: they make up words."""
        self._port = port
        self.fleet = SimFleet(
            prefill=PREFILL_ENGINES,
            decode=DECODE_ENGINES,
            options=SimOptions(model=MODEL, timing=TIMING, answer=answer),
        )
        self._server: Server | None = None

    @property
    def server(self) -> Server:
        """The router's server, once it is started."""
        assert self._server is not None
        return self._server

    @property
    def config(self) -> FleetConfig:
        """What the router goes by."""
        return self.server.config

    def asked(self, role: str) -> str | None:
        """The first engine of a role that has been asked for a completion."""
        engines = (engine.id for engine in self.config.engines if engine.role == role)
        return next((engine for engine in engines if self.fleet[engine].requests), None)

    async def __aenter__(self) -> Self:
        await self.fleet.start()
        try:
            serving = {"port": self._port, "prefill_concurrency": 2, "queue_capacity": 16}
            text = self.fleet.yaml(ttft_s=TTFT_TARGET_S, tpot_s=TPOT_TARGET_S, serving=serving)
            server = Server(parse(text, "the demo's fleet file"))
            await server.start()
        except BaseException:
            await self.fleet.stop()
            raise
        self._server = server
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.server.stop(_GRACE_S if kind is None else 0)
        await self.fleet.stop()
