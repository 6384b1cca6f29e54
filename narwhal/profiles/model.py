"""One engine's model: how long it will take over a prompt, a handoff, a decode step.

Each kind of work has a curve and a correction. The curve is the profile's where there is one, else it is
learned from traffic; the correction follows what the engine does of late. What a caller gets is the corrected
price and whether it can be relied on: a learned curve that has not seen enough can't.

A factor can't put right a profile whose shape is wrong, as one that was measured on a busy machine. So where
single pieces of work are far from their prices, a curve is learned beside the profile's, and takes its place
if it is clearly better; and the other way round.

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
    superseded: bool  # a curve that was learned is better, and in use
    sure: bool  # its prices are relied on
    confidence: float  # 0 to 1
    samples: int  # pieces of work that were learned from
    correction: float  # the factor on top of the curve
    spread: float  # of single pieces of work about their price: relative, root mean square


# From this spread of single pieces of work on, a profile is doubted.
DOUBTED = 0.15
# What another curve must have shown to take a curve's place: so many prices, off by this share of what the
# prices in use are off. Errors are averaged over so many.
TRIED, BETTER, MEMORY = 24, 0.8, 32


class Range:
    """What was measured, or seen: sizes (tokens; of a decode step running sequences), and KV tokens."""

    __slots__ = ("hi", "kv_hi", "lo")

    def __init__(self, lo: float = 0.0, hi: float = 0.0, kv_hi: float = 0.0) -> None:
        self.lo, self.hi, self.kv_hi = lo, hi, kv_hi

    def take_in(self, size: float, kv_tokens: float) -> None:
        """Something was seen; before the first, `hi` is 0."""
        self.lo = min(self.lo, size) if self.hi else size
        self.hi = max(self.hi, size)
        self.kv_hi = max(self.kv_hi, kv_tokens)


class Candidate:
    """A curve that prices could go by: its correction, and how far corrected prices have been off."""

    __slots__ = ("correction", "error", "tried")

    def __init__(self) -> None:
        self.correction = Correction()
        self.error = 0.0  # relative, a mean
        self.tried = 0

    def learn(self, predicted_s: float, seen_s: float) -> None:
        """Work that the curve, not corrected, priced at `predicted_s` took `seen_s`."""
        corrected = predicted_s * self.correction.factor
        if corrected > 0 and seen_s >= 0:
            self.tried += 1
            off = abs(corrected - seen_s) / max(corrected, seen_s)
            self.error += (off - self.error) / min(self.tried, MEMORY)
        self.correction.learn(predicted_s, seen_s)


class Work:
    """One kind of work on one engine: three terms, the coefficients of which are measured or learned.

    `range` is what the curve in use rests on.
    """

    __slots__ = (
        "_anchor_due", "_learned", "_measured", "_measured_range", "_of_learned", "_of_profile", "_seen",
        "anchor", "correction", "range", "superseded",
    )  # fmt: skip

    def __init__(
        self, measured: Triple | None = None, lo: float = 0, hi: float = 0, kv_hi: float = 0
    ) -> None:
        self._measured = measured
        self._measured_range = Range(lo, hi, kv_hi)
        self.reset()

    def reset(self) -> None:
        """Forget what traffic taught."""
        self._learned = OnlineFit()
        self._seen = Range()
        self._of_profile, self._of_learned = Candidate(), Candidate()
        # The curve that drift is judged by; a learned one is held still for that, or it would follow.
        self.anchor = self._measured
        self._anchor_due = 0
        self.superseded = False
        self._use()

    @property
    def measured(self) -> bool:
        """Whether there is a profile."""
        return self._measured is not None

    def bare(self) -> Triple:
        """The curve's coefficients before correction."""
        return self._learned.coefficients if self._measured is None or self.superseded else self._measured

    def by_profile(self) -> bool:
        """Whether the curve in use is the profile's."""
        return self._measured is not None and not self.superseded

    def corrected(self) -> Triple:
        """The coefficients to price by."""
        factor = self.correction.factor
        first, second, third = self.bare()
        return first * factor, second * factor, third * factor

    def is_sure(self) -> bool:
        """Whether its prices can be relied on."""
        return self._measured is not None or self._learned.is_sure()

    @property
    def confidence(self) -> float:
        """How sure its prices are, from 0 to 1: less by how far single pieces of work are from them."""
        if self._measured is None:
            return self._learned.confidence
        return max(0.0, 1 - self.correction.spread)

    def shift(self) -> float:
        """Tokens to add to a length, and to `hi`, for the price past the range to be in proportion."""
        return 0.0 if self.by_profile() else PASS_TOKENS

    def edge(self) -> float:
        """Corrected seconds for one of those tokens at the end of the range, of lengths; 0 without one."""
        hi = self.range.hi
        return value(self.corrected(), (hi * hi, hi, 1.0)) / (hi + self.shift()) if hi else 0.0

    def reach(self) -> tuple[float, float]:
        """How far a decode step's price is followed: in running sequences, and in KV tokens."""
        if self.by_profile():
            return math.inf, math.inf
        return REACH * self.range.hi, REACH * self.range.kv_hi

    def past(self, tokens: float) -> float:
        """Corrected seconds for work of a length past the range: at least in proportion to the end's.

        Of a learned curve just that; a measured one that curves upwards is followed.
        """
        seconds = self.edge() * (tokens + self.shift())
        if self.by_profile():
            return max(seconds, value(self.corrected(), (tokens * tokens, tokens, 1.0)))
        return seconds

    def report(self) -> WorkReport:
        """Its state."""
        correction, measured = self.correction, self._measured is not None
        samples = self._of_profile.correction.samples if measured else self._learned.samples
        return WorkReport(
            measured,
            self.superseded,
            self.is_sure(),
            self.confidence,
            samples,
            correction.factor,
            correction.spread,
        )

    def learn(self, terms: Triple, size: float, kv_tokens: float, seen_s: float) -> None:
        """Take note of a piece of work and the time it took. `size` is what the range is of."""
        if self._measured is not None:
            self._of_profile.learn(value(self._measured, terms), seen_s)
            if self._of_profile.correction.spread <= DOUBTED and not self.superseded:
                return
        if self._learned.is_sure():
            self._of_learned.learn(value(self._learned.coefficients, terms), seen_s)
        self._seen.take_in(size, kv_tokens)
        self._learned.learn(terms, seen_s)
        if self._measured is not None:
            self._compare()

    def _compare(self) -> None:
        used, other = self._of_profile, self._of_learned
        if self.superseded:
            used, other = other, used
        if other.tried >= TRIED and other.error < BETTER * used.error:
            self.superseded = not self.superseded
            self._use()

    def _use(self) -> None:
        self.correction = (self._of_profile if self.by_profile() else self._of_learned).correction
        self.range = self._measured_range if self.by_profile() else self._seen

    def renew_anchor(self) -> bool:
        """Let drift be judged by the learned curve as it is now, if it has twice the samples it had before.

        Returns whether that is so; then what was compared with the old one is void.
        """
        learned = self._learned
        if self._measured is not None or not learned.is_sure() or learned.samples < self._anchor_due:
            return False
        self.anchor = self.bare()
        self._anchor_due = 2 * learned.samples
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
        reach, kv_reach = work.reach()
        seconds = value(work.corrected(), (min(running, reach), min(kv_tokens, kv_reach), 1.0))
        return Price(seconds, work.is_sure(), running > work.range.hi or kv_tokens > work.range.kv_hi)

    def works(self) -> dict[str, Work]:
        """The kinds of work by name."""
        return {"prefill": self.prefill, "handoff": self.handoff, "interval": self.interval}

    def report(self) -> dict[str, WorkReport]:
        """How well each kind of work is known."""
        return {name: work.report() for name, work in self.works().items()}

    def restarted(self) -> None:
        """The engine is a new process: what traffic taught of the old one is void, the profile stays."""
        for work in self.works().values():
            work.reset()


def value(coefficients: Triple, terms: Triple) -> float:
    """What a curve says."""
    return coefficients[0] * terms[0] + coefficients[1] * terms[1] + coefficients[2] * terms[2]


def _by_length(work: Work, tokens: float) -> Price:
    lo, hi = work.range.lo, work.range.hi
    inside = value(work.corrected(), (tokens * tokens, tokens, 1.0))
    seconds = work.past(tokens) if tokens > hi > 0 else inside
    return Price(seconds, work.is_sure(), not lo <= tokens <= hi)
