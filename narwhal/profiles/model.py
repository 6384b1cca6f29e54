"""One engine's model: how long it will take over a prompt, a handoff, a decode step.

Each kind of work has a curve and a correction. The curve is the profile's where there is one, else it is
learned from traffic; the correction follows what the engine does of late. What a caller gets is the corrected
price and whether it can be relied on: a learned curve that has not seen enough can't.

A profile was measured over lengths chosen for it; traffic may have shown one length only, and then which of
the terms the time goes by is anybody's guess. So a learned curve is not followed past the range that was
seen. There the price grows as most engines' does: a pass takes some time whatever it is over, and the rest
goes by the tokens.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from narwhal.profiles.correction import Correction
from narwhal.profiles.curves import DecodeCurve, HandoffCurve, PrefillCurve
from narwhal.profiles.nonnegative import Triple
from narwhal.profiles.online import OnlineFit

# What a pass takes whatever it is over, of what a learned curve says at the end of the range seen, in tokens.
PASS_TOKENS = 512.0
# Work this many times the largest seen is taken for the same as that many times it, as a step's price goes.
REACH = 2.0


class Price(NamedTuple):
    """What work will take."""

    seconds: float
    sure: bool  # there is a profile, or enough was learned
    extrapolated: bool  # outside the range that was measured or seen


class WorkReport(NamedTuple):
    """How well one kind of work is known, for people."""

    measured: bool  # there is a profile
    sure: bool  # its prices are relied on
    confidence: float  # 0 to 1
    samples: int  # pieces of work that were learned from
    correction: float  # the factor on top of the curve
    spread: float  # of single pieces of work about their price: relative, root mean square


class Work:
    """One kind of work on one engine: three terms, the coefficients of which are measured or learned.

    `lo` and `hi` are the range, measured or seen so far, of the second term (tokens; of a decode step the
    first, running sequences), `kv_hi` that of the KV tokens.
    """

    __slots__ = ("_anchor_due", "_measured", "anchor", "correction", "hi", "kv_hi", "learned", "lo")

    def __init__(
        self, measured: Triple | None = None, lo: float = 0, hi: float = 0, kv_hi: float = 0
    ) -> None:
        self._measured = measured
        self.lo, self.hi, self.kv_hi = lo, hi, kv_hi
        self.learned = OnlineFit()
        self.correction = Correction()
        self.reset()

    def reset(self) -> None:
        """Forget what traffic taught."""
        self.correction.reset()
        self.learned.reset()
        if self._measured is None:
            self.lo = self.hi = self.kv_hi = 0.0
        # The curve that drift is judged by; a learned one is held still for that, or it would follow.
        self.anchor = self._measured
        self._anchor_due = 0

    @property
    def measured(self) -> bool:
        """Whether there is a profile."""
        return self._measured is not None

    @property
    def bare(self) -> Triple:
        """The curve's coefficients before correction."""
        return self.learned.coefficients if self._measured is None else self._measured

    @property
    def corrected(self) -> Triple:
        """The coefficients to price by."""
        factor = self.correction.factor
        first, second, third = self.bare
        return first * factor, second * factor, third * factor

    @property
    def sure(self) -> bool:
        """Whether its prices can be relied on."""
        return self._measured is not None or self.learned.sure

    @property
    def confidence(self) -> float:
        """How sure its prices are, from 0 to 1: less by how far single pieces of work are from them."""
        if self._measured is None:
            return self.learned.confidence
        return max(0.0, 1 - self.correction.spread)

    @property
    def shift(self) -> float:
        """Tokens to add to a length, and to `hi`, for the price past the range to be in proportion."""
        return 0.0 if self.measured else PASS_TOKENS

    @property
    def edge(self) -> float:
        """Corrected seconds for one of those tokens at the end of the range, of lengths; 0 without one."""
        hi = self.hi
        return value(self.corrected, (hi * hi, hi, 1.0)) / (hi + self.shift) if hi else 0.0

    @property
    def reach(self) -> tuple[float, float]:
        """How far a decode step's price is followed: in running sequences, and in KV tokens."""
        return (math.inf, math.inf) if self.measured else (REACH * self.hi, REACH * self.kv_hi)

    def past(self, tokens: float) -> float:
        """Corrected seconds for work of a length past the range: at least in proportion to the end's.

        Of a learned curve just that; a measured one that curves upwards is followed.
        """
        seconds = self.edge * (tokens + self.shift)
        return (
            max(seconds, value(self.corrected, (tokens * tokens, tokens, 1.0))) if self.measured else seconds
        )

    def report(self) -> WorkReport:
        """Its state."""
        correction = self.correction
        samples = self.learned.samples if self._measured is None else correction.samples
        return WorkReport(
            self.measured, self.sure, self.confidence, samples, correction.factor, correction.spread
        )

    def learn(self, terms: Triple, size: float, kv_tokens: float, seen_s: float) -> None:
        """Take note of a piece of work and the time it took. `size` is what `lo` and `hi` are of."""
        if self.sure:
            self.correction.learn(value(self.bare, terms), seen_s)
        if self._measured is None:
            self.lo = min(self.lo, size) if self.learned.samples else size
            self.hi = max(self.hi, size)
            self.kv_hi = max(self.kv_hi, kv_tokens)
            self.learned.learn(terms, seen_s)

    def renew_anchor(self) -> bool:
        """Let drift be judged by the learned curve as it is now, if it has twice the samples it had before.

        Returns whether that is so; then what was compared with the old one is void.
        """
        if self._measured is not None or not self.learned.sure or self.learned.samples < self._anchor_due:
            return False
        self.anchor = self.bare
        self._anchor_due = 2 * self.learned.samples
        return True


class EngineModel:
    """What is known of one engine's pace."""

    __slots__ = ("handoff", "interval", "prefill")

    def __init__(
        self,
        prefill: PrefillCurve | None = None,
        decode: DecodeCurve | None = None,
        handoff: HandoffCurve | None = None,
    ) -> None:
        """With the curves of the engine's profile; those that it lacks are learned."""
        # The terms: L², L, 1; L again for a handoff, whose first is nothing; n, kv, 1.
        self.prefill = Work((prefill.a, prefill.b, prefill.c), prefill.lo, prefill.hi) if prefill else Work()
        self.handoff = Work((0.0, handoff.b, handoff.c), handoff.lo, handoff.hi) if handoff else Work()
        self.interval = Work()
        if decode:
            measured = (decode.p, decode.q, decode.c)
            self.interval = Work(measured, 0, decode.running_hi, decode.kv_hi)

    def prefill_s(self, tokens: float) -> Price:
        """Seconds to prefill one prompt alone."""
        return _by_length(self.prefill, tokens)

    def handoff_s(self, tokens: float) -> Price:
        """Seconds from sending a prompt's decode leg to its first token."""
        return _by_length(self.handoff, tokens)

    def interval_s(self, running: float, kv_tokens: float) -> Price:
        """Seconds between two decode steps of a batch of `running` sequences that hold `kv_tokens`."""
        work = self.interval
        reach, kv_reach = work.reach
        seconds = value(work.corrected, (min(running, reach), min(kv_tokens, kv_reach), 1.0))
        return Price(seconds, work.sure, running > work.hi or kv_tokens > work.kv_hi)

    def report(self) -> dict[str, WorkReport]:
        """How well each kind of work is known."""
        return {name: getattr(self, name).report() for name in self.__slots__}

    def restarted(self) -> None:
        """The engine is a new process: what traffic taught of the old one is void, the profile stays."""
        for name in self.__slots__:
            getattr(self, name).reset()


def value(coefficients: Triple, terms: Triple) -> float:
    """What a curve says."""
    return coefficients[0] * terms[0] + coefficients[1] * terms[1] + coefficients[2] * terms[2]


def _by_length(work: Work, tokens: float) -> Price:
    inside = value(work.corrected, (tokens * tokens, tokens, 1.0))
    seconds = work.past(tokens) if tokens > work.hi > 0 else inside
    return Price(seconds, work.sure, not work.lo <= tokens <= work.hi)
