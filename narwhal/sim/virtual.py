"""Engines in virtual time: the simulated engines' pace without their servers, thousands of seconds at once.

A clock is a heap of things to call. A prefill engine computes one prompt after another, a decode engine steps
a batch whose interval grows with the sequences and the KV tokens in it. Every duration varies by chance, from
seeds, so a run can be repeated.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from narwhal.sim.timing import Timing


class Clock:
    """Virtual time in seconds, and what is to happen when."""

    __slots__ = ("_count", "_heap", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, moment: float, call: Callable[..., None], *args: Any) -> None:
        """Call at a moment; of equal moments, in the order of asking."""
        self._count += 1
        heapq.heappush(self._heap, (moment, self._count, call, args))

    def step(self) -> bool:
        """Go on to the next thing and do it. Returns whether there was one."""
        if not self._heap:
            return False
        self.now, _, call, args = heapq.heappop(self._heap)
        call(*args)
        return True


@dataclass(frozen=True, slots=True)
class Noise:
    """By how much durations vary: a standard deviation, as a share."""

    share: float = 0.1

    def __call__(self, chance: Random) -> float:
        """A factor: normal about one, and never near zero."""
        return max(0.2, chance.gauss(1.0, self.share))


class Prompt(Protocol):
    """A request at a prefill engine."""

    prompt_tokens: int
    prefill_noise: float  # a factor on its duration: its own, so that it is the same on every fork

    def prefilled(self) -> None:
        """Its prompt is computed."""


class PrefillEngine:
    """Computes prompts one after another."""

    __slots__ = ("_clock", "_prompts", "_timing", "busy_s")

    def __init__(self, clock: Clock, timing: Timing) -> None:
        self._clock = clock
        self._timing = timing
        self._prompts: deque[Prompt] = deque()
        self.busy_s = 0.0

    def submit(self, prompt: Prompt) -> None:
        """Queue a prompt."""
        self._prompts.append(prompt)
        if len(self._prompts) == 1:
            self._begin()

    def _begin(self) -> None:
        prompt = self._prompts[0]
        took = self._timing.prefill_s([prompt.prompt_tokens]) * prompt.prefill_noise
        self.busy_s += took
        self._clock.at(self._clock.now + took, self._end)

    def _end(self) -> None:
        prompt = self._prompts.popleft()
        if self._prompts:
            self._begin()
        prompt.prefilled()


class Sequence(Protocol):
    """A request at a decode engine."""

    prompt_tokens: int
    output_tokens: int

    def first_token(self) -> None:
        """Its first token came."""

    def decoded(self) -> None:
        """Its last token came."""


class DecodeEngine:
    """Steps a batch of sequences. Who joins takes part from the next step on."""

    __slots__ = (
        "_chance", "_clock", "_ends", "_joined", "_joining", "_kv_tokens", "_noise", "_running", "_step",
        "_stepping", "_timing",
    )  # fmt: skip

    def __init__(self, clock: Clock, timing: Timing, noise: Noise, seed: int) -> None:
        self._clock = clock
        self._timing = timing
        self._noise = noise
        self._chance = Random(seed)
        self._joining: list[Sequence] = []
        self._joined = 0
        # (the step that brings the last token, order, the sequence)
        self._ends: list[tuple[int, int, Sequence]] = []
        self._running = 0
        self._kv_tokens = 0
        self._step = 0
        self._stepping = False

    def join(self, sequence: Sequence) -> None:
        """A sequence whose KV cache is here."""
        self._joining.append(sequence)
        if not self._stepping:
            self._begin_step()

    def _begin_step(self) -> None:
        self._stepping = True
        for sequence in self._joining:
            self._joined += 1
            heapq.heappush(self._ends, (self._step + sequence.output_tokens, self._joined, sequence))
            self._kv_tokens += sequence.prompt_tokens
        self._running += len(self._joining)
        joined, self._joining = self._joining, []
        took = self._timing.interval_s(self._running, self._kv_tokens) * self._noise(self._chance)
        self._clock.at(self._clock.now + took, self._end_step, joined)

    def _end_step(self, joined: list[Sequence]) -> None:
        self._step += 1
        self._kv_tokens += self._running
        ended = []
        while self._ends and self._ends[0][0] <= self._step:
            sequence = heapq.heappop(self._ends)[2]
            self._running -= 1
            self._kv_tokens -= sequence.prompt_tokens + sequence.output_tokens
            ended.append(sequence)
        self._stepping = False
        if self._running or self._joining:
            self._begin_step()
        for sequence in joined:
            sequence.first_token()
        for sequence in ended:
            sequence.decoded()
