"""How long a simulated engine takes: a prefill curve, and a token interval that grows with the batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by length: `a * length**2 + b * length + c`."""

    a: float = 0.0
    b: float = 0.0
    c: float = 0.0

    def __call__(self, length: float) -> float:
        return (self.a * length + self.b) * length + self.c


@dataclass(frozen=True, slots=True)
class Interval:
    """Seconds between two decode steps: `base + per_seq * sequences + per_kv_token * kv_tokens`."""

    base: float = 0.0
    per_seq: float = 0.0
    per_kv_token: float = 0.0

    def __call__(self, sequences: int, kv_tokens: int) -> float:
        return self.base + self.per_seq * sequences + self.per_kv_token * kv_tokens


@dataclass(frozen=True, slots=True)
class Timing:
    """An engine's pace. The defaults are about those of an 8B model on one large GPU.

    `speed` divides every duration. `prefill_batch` is how many prompts one prefill pass takes at the most:
    the curve's terms by length add up over them, its constant is paid once.
    """

    prefill: Curve = Curve(a=1.5e-9, b=2.5e-5, c=0.008)
    interval: Interval = Interval(base=0.008, per_seq=4e-5, per_kv_token=1e-8)
    prefill_batch: int = 1
    speed: float = 1.0

    def prefill_s(self, lengths: list[int]) -> float:
        """Seconds of one prefill pass over prompts of these lengths (tokens)."""
        shared = self.prefill.c
        return (sum(self.prefill(length) - shared for length in lengths) + shared) / self.speed

    def interval_s(self, sequences: int, kv_tokens: int) -> float:
        """Seconds of one decode step."""
        return self.interval(sequences, kv_tokens) / self.speed


FAST = Timing(prefill=Curve(), interval=Interval(base=0.0005))
"""No prefill time and half a millisecond a token: for tests that are not about time."""
