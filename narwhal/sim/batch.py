"""What a simulated engine computes with: a queue of prompts, and a batch of sequences that decode in step.

Prompts are prefilled one pass after another. All running sequences advance together, one step each time the
interval is over, and the interval depends on how many there are and how much KV cache they hold. So many
streams get their next token in the same instant, as with real engines.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from narwhal.sim.timing import Timing

_TIMER_SLACK_S = 0.001


class Sequence(Protocol):
    """A request that the engine computes."""

    prompt_tokens: int

    def prefilled(self) -> bool:
        """Its prompt is computed, and with it the first token. Returns whether it goes on to decode."""

    def step(self) -> int:
        """One decode step. Returns how many tokens came (0: it stands still); -1: it has ended."""


class Batch:
    """One engine's computing. Times are the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timing: Timing, max_sequences: int) -> None:
        self.timing = timing
        self._loop = loop
        self._max = max_sequences
        self._prompts: deque[Sequence] = deque()
        self._prefilling: list[Sequence] = []
        self._prefill_timer: asyncio.TimerHandle | None = None
        self._running: dict[Sequence, int] = {}  # with the KV tokens each holds
        self._joining: deque[Sequence] = deque()
        self._kv_tokens = 0
        self._step_timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    @property
    def running(self) -> int:
        """Sequences being computed."""
        return len(self._running) + len(self._prefilling)

    @property
    def waiting(self) -> int:
        """Sequences queued."""
        return len(self._prompts) + len(self._joining)

    def prefill(self, sequence: Sequence) -> None:
        """Queue a prompt."""
        self._prompts.append(sequence)
        if self._prefill_timer is None:
            self._begin_prefill(self._loop.time())

    def decode(self, sequence: Sequence) -> None:
        """Let a sequence whose prompt is computed join the batch."""
        self._joining.append(sequence)
        if self._step_timer is None:
            self._admit()
            self._schedule(self._loop.time())

    def drop(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is. Its prefill pass, once begun, still takes its time."""
        if sequence in self._running:
            self._kv_tokens -= self._running.pop(sequence)
            return
        for queue in (self._prompts, self._prefilling, self._joining):
            if sequence in queue:
                queue.remove(sequence)

    def stop(self) -> None:
        """Compute nothing any more."""
        for timer in (self._prefill_timer, self._step_timer):
            if timer is not None:
                timer.cancel()
        self._prefill_timer = self._step_timer = None

    def _begin_prefill(self, start: float) -> None:
        self._prefill_timer = None
        while self._prompts and len(self._prefilling) < self.timing.prefill_batch:
            self._prefilling.append(self._prompts.popleft())
        if self._prefilling:
            took = self.timing.prefill_s([sequence.prompt_tokens for sequence in self._prefilling])
            self._prefill_timer = self._loop.call_at(start + took, self._end_prefill, start + took)

    def _end_prefill(self, due: float) -> None:
        done, self._prefilling = self._prefilling, []
        self._begin_prefill(self._next_start(due))
        for sequence in done:
            if sequence.prefilled():
                self.decode(sequence)

    def _admit(self) -> None:
        while self._joining and len(self._running) < self._max:
            sequence = self._joining.popleft()
            self._running[sequence] = sequence.prompt_tokens
            self._kv_tokens += sequence.prompt_tokens

    def _schedule(self, start: float) -> None:
        self._due = start + self.timing.interval_s(len(self._running), self._kv_tokens)
        self._step_timer = self._loop.call_at(self._due, self._step)

    def _step(self) -> None:
        self._step_timer = None
        for sequence in list(self._running):
            if sequence not in self._running:  # an earlier one's step ended it
                continue
            tokens = sequence.step()
            if tokens < 0:
                self.drop(sequence)
            elif tokens and sequence in self._running:
                self._running[sequence] += tokens
                self._kv_tokens += tokens
        self._admit()
        if self._running:
            self._schedule(self._next_start(self._due))

    def _next_start(self, due: float) -> float:
        # A timer's lateness must not add up; an engine that is later than that doesn't hurry to catch up.
        return max(due, self._loop.time() - _TIMER_SLACK_S)
