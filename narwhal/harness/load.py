"""What is to be put on an endpoint: the points of a sweep, their rounds, and each round's requests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from narwhal.harness.arrivals import Pattern, arrivals
from narwhal.harness.generator import Draft
from narwhal.harness.lengths import Lengths
from narwhal.harness.prompts import FromFile, MadeUp
from narwhal.harness.trace import Recorded


@dataclass(frozen=True, slots=True)
class Point:
    """One load of a sweep: a rate in requests per second, or so many clients, or neither: a trace's own."""

    rate: float | None = None
    concurrency: int | None = None

    def __str__(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g}/s"
        return f"{self.concurrency} clients" if self.concurrency is not None else "trace"


@dataclass(frozen=True, slots=True)
class Load:
    """The whole of it."""

    points: tuple[Point, ...]
    prompts: MadeUp | FromFile
    input_lengths: Lengths
    output_lengths: Lengths
    pattern: Pattern = Pattern.POISSON
    rounds: int = 3
    duration_s: float | None = 20.0  # of a round; one of the two
    requests: int | None = None
    warmup_s: float = 2.0  # before each round, with the same load
    ramp_s: float = 0.0  # the warm-up's beginning, in which the load grows
    seed: int = 0
    trace: tuple[Recorded, ...] = field(default=(), repr=False)

    @property
    def lead_s(self) -> float:
        """From a round's begin to what is measured."""
        return 0.0 if self.trace else max(self.warmup_s, self.ramp_s)

    def source(self, round_number: int) -> Random:
        """A round's chance: the same for every point, so that points differ in their load alone."""
        return Random(f"{self.seed}-{round_number}")

    def closed(self, round_number: int) -> Iterator[Draft]:
        """The requests of a closed loop, without end."""
        source = self.source(round_number)
        return (self._draft(source, 0.0, True) for _ in itertools.count())

    def open(self, point: Point, round_number: int) -> Iterator[Draft]:
        """The requests of an open loop, by time."""
        source = self.source(round_number)
        if self.trace:
            yield from self._replay(source)
            return
        assert point.rate is not None
        lead, measured = self.lead_s, 0
        until = float("inf") if self.duration_s is None else lead + self.duration_s
        # Another source, so that how a prompt is made has no say in when it is due.
        times = Random(f"{self.seed}-{round_number}-times")
        for at in arrivals(self.pattern, point.rate, times, ramp_s=self.ramp_s):
            if at >= until or measured == self.requests:
                return
            measured += at >= lead
            yield self._draft(source, at, at >= lead)

    def _replay(self, source: Random) -> Iterator[Draft]:
        for recorded in self.trace[: self.requests]:
            if self.duration_s is not None and recorded.at_s >= self.duration_s:
                return
            prompt = self.prompts.make(source, recorded.input_tokens, recorded.hash_ids)
            yield Draft(prompt, recorded.input_tokens, recorded.output_tokens, recorded.at_s)

    def _draft(self, source: Random, at: float, measured: bool) -> Draft:
        tokens, output = self.input_lengths.draw(source), self.output_lengths.draw(source)
        prompt = self.prompts.make(source, tokens)
        return Draft(prompt, tokens, prompt.output_tokens or output, at, measured)

    def as_summary(self) -> dict[str, Any]:
        """The settings, for the summary."""
        trace = bool(self.trace)
        return {
            "pattern": "trace" if trace else None if self.points[0].rate is None else str(self.pattern),
            "input_tokens": "trace" if trace else str(self.input_lengths),
            "output_tokens": "trace" if trace else str(self.output_lengths),
            "prompts": self.prompts.kind,
            "rounds": self.rounds,
            "duration_s": self.duration_s,
            "requests": self.requests,
            "warmup_s": self.lead_s,
            "ramp_s": self.ramp_s,
            "seed": self.seed,
        }
