"""Curves: what an engine's work costs in seconds, as sums of terms none of which is negative.

Prefill and handoff go by the prompt's length, a decode step by the batch. A curve is only as good as what
was measured: it keeps the range, and `covers` says whether a price lies in it. Outside the range it still
gives a price, a cautious one: no cheaper per token than the longest measured. Since no term is negative, a
curve never falls, so more work never costs less.
"""

from __future__ import annotations

from dataclasses import dataclass

UNBOUNDED = 2**53  # the largest integer that a float holds exactly, with all below it


def beyond(price_s: float, edge_s: float, edge: float, at: float) -> float:
    """A curve's price past the edge of its range: at least in proportion to the price at the edge.

    A curve that looks flat where it was measured may hide a term that only shows further out.
    """
    return max(price_s, edge_s * at / edge) if at > edge > 0 else price_s


@dataclass(frozen=True, slots=True)
class PrefillCurve:
    """Seconds to prefill one prompt of L tokens alone: `a * L**2 + b * L + c`, measured for lo <= L <= hi."""

    a: float = 0.0
    b: float = 0.0
    c: float = 0.0
    lo: int = 0
    hi: int = UNBOUNDED
    error: float | None = None  # relative, leave-one-out; None: not measured

    def price(self, tokens: float) -> float:
        """Seconds for a prompt of `tokens` tokens."""
        return beyond(self.at(tokens), self.at(self.hi), self.hi, tokens)

    def at(self, tokens: float) -> float:
        """The bare polynomial, whatever the range."""
        return (self.a * tokens + self.b) * tokens + self.c

    def covers(self, tokens: float) -> bool:
        """Whether a prompt of this length lies in the measured range; if not, its price is extrapolated."""
        return self.lo <= tokens <= self.hi


@dataclass(frozen=True, slots=True)
class DecodeCurve:
    """Seconds between two decode steps with n sequences that hold kv tokens: `c + p * n + q * kv`."""

    c: float = 0.0
    p: float = 0.0
    q: float = 0.0
    running_hi: int = UNBOUNDED  # the largest batch measured
    kv_hi: int = UNBOUNDED  # the most KV tokens measured
    error: float | None = None

    def price(self, running: float, kv_tokens: float) -> float:
        """Seconds of one step. No range: beyond it the terms go on as they are, since steps are linear."""
        return self.c + self.p * running + self.q * kv_tokens

    def covers(self, running: float, kv_tokens: float) -> bool:
        """Whether such a batch lies in the measured range."""
        return running <= self.running_hi and kv_tokens <= self.kv_hi


@dataclass(frozen=True, slots=True)
class HandoffCurve:
    """Seconds from sending a decode leg to its first token on an idle engine: `b * L + c`.

    That is fetching the KV cache of L tokens, and the first step.
    """

    b: float = 0.0
    c: float = 0.0
    lo: int = 0
    hi: int = UNBOUNDED
    error: float | None = None

    def price(self, tokens: float) -> float:
        """Seconds for a prompt of `tokens` tokens."""
        return beyond(self.at(tokens), self.at(self.hi), self.hi, tokens)

    def at(self, tokens: float) -> float:
        """The bare line, whatever the range."""
        return self.b * tokens + self.c

    def covers(self, tokens: float) -> bool:
        """Whether a prompt of this length lies in the measured range."""
        return self.lo <= tokens <= self.hi
