"""What is measured: which prompt lengths, and which batches of streams."""

from __future__ import annotations

import math
from dataclasses import dataclass

SHORTEST = 32  # tokens
LONGEST = 32768  # unless an engine allows less
FEWEST = 5  # lengths: with fewer, leaving one out would say nothing of the fit's error


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    length_step: int  # each length is at most this many times the one before
    repeats: int  # of each length; the median counts
    largest_batch: int
    window_tokens: int  # that each stream of a batch yields while it is timed
    setup_s: float  # the longest that prefilling the prompts of one batch may take


FULL = Effort(length_step=2, repeats=3, largest_batch=256, window_tokens=48, setup_s=60.0)
QUICK = Effort(length_step=4, repeats=2, largest_batch=32, window_tokens=24, setup_s=10.0)


@dataclass(frozen=True, slots=True)
class Batch:
    """So many streams at once, each with a prompt of so many tokens."""

    streams: int
    prompt_tokens: int

    @property
    def kv_tokens(self) -> int:
        """What their prompts hold."""
        return self.streams * self.prompt_tokens


def lengths(longest: int, effort: Effort) -> list[int]:
    """Prompt lengths from SHORTEST to `longest`, each about as many times the one before; at least FEWEST."""
    shortest = min(SHORTEST, longest)
    steps = max(FEWEST - 1, math.ceil(math.log(longest / shortest, effort.length_step)))
    found = {round(shortest * (longest / shortest) ** (step / steps)) for step in range(steps + 1)}
    return sorted(found)


def batches(seats: int, longest: int, kv_tokens: int | None, effort: Effort) -> list[Batch]:
    """Batches that tell apart what a sequence costs and what a token held costs.

    Each size comes with short prompts and with long ones, up to `seats` streams and to nine tenths of the
    KV tokens that the engines hold, output included.
    """
    sizes = [1]
    while sizes[-1] * 2 <= min(seats, effort.largest_batch):
        sizes.append(sizes[-1] * 2)
    room = 0.9 * kv_tokens if kv_tokens is not None else float("inf")
    prompts = sorted(
        {min(SHORTEST * 2, longest), max(1, min(longest // 2, 512)), max(1, min(longest // 2, 4096))}
    )
    return [
        Batch(size, prompt)
        for size in sizes
        for prompt in prompts
        if size * (prompt + 4 * effort.window_tokens) <= room
    ]
