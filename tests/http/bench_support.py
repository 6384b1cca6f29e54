"""Runs of the harness in a test's own loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from narwhal.harness.endpoint import CHAT, Access, Endpoint, read_url
from narwhal.harness.generator import Asking
from narwhal.harness.lengths import read_lengths
from narwhal.harness.load import Load, Point
from narwhal.harness.prompts import MadeUp
from narwhal.harness.run import Run, Runner
from narwhal.harness.sample import Sample

PROMPTS = MadeUp(chat=True, vocabulary=None, seed=0)


def load(point: Point, *more: Point, output: str = "8", **settings: Any) -> Load:
    """A small load: one round, no warm-up."""
    settings = {
        "rounds": 1,
        "duration_s": None,
        "requests": None,
        "warmup_s": 0.0,
        "prompts": PROMPTS,
    } | settings
    return Load(
        (point, *more), input_lengths=read_lengths("20"), output_lengths=read_lengths(output), **settings
    )


class Bench:
    """An endpoint under load."""

    def __init__(self, url: str, *, ca_file: Path | None = None, api_key: str | None = None) -> None:
        self.endpoint = Endpoint(Access(read_url(url), api_key, ca_file), timeout_s=10.0)
        self.runner: Runner | None = None
        self.samples: list[Sample] = []  # as they come in

    async def run(self, of: Load, **asking: Any) -> Run:
        """Measure it."""
        how: dict[str, Any] = {"path": CHAT, "model": "sim-model", "timeout_s": 20.0} | asking
        self.runner = Runner(self.endpoint, of, Asking(**how), on_sample=self.samples.append)
        try:
            return await self.runner.carry_out()
        finally:
            await self.endpoint.close()
