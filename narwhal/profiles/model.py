"""One engine's model: how long it will take over a prompt, a handoff, a decode step.

Each kind of work has a curve and a correction. The curve is the profile's where there is one, else it is
learned from traffic; the correction follows what the engine does of late. What a caller gets is the corrected
price and whether it can be relied on: a learned curve that has not seen enough can't.
"""

from __future__ import annotations

from typing import NamedTuple

from narwhal.profiles.correction import Correction
from narwhal.profiles.curves import UNBOUNDED, DecodeCurve, HandoffCurve, PrefillCurve, beyond
from narwhal.profiles.nonnegative import Triple
from narwhal.profiles.online import OnlineFit


class Price(NamedTuple):
    """What work will take."""

    seconds: float
    sure: bool  # there is a profile, or enough was learned
    extrapolated: bool  # outside the range that was measured or seen


class _Work:
    """One kind of work: its curve (measured or learned) and the correction on top."""

    __slots__ = ("_measured", "correction", "edge", "hi", "kv_hi", "learned", "lo")

    def __init__(self, measured: Triple | None, lo: float, hi: float, kv_hi: float = UNBOUNDED) -> None:
        self.learned = OnlineFit()
        self.correction = Correction()
        self.set_measured(measured, lo, hi, kv_hi)

    def set_measured(
        self, measured: Triple | None, lo: float = 0, hi: float = 0, kv_hi: float = UNBOUNDED
    ) -> None:
        """Go by these coefficients from now on; None: learn them."""
        self._measured = measured
        self.lo, self.hi, self.kv_hi = (lo, hi, kv_hi) if measured is not None else (UNBOUNDED, 0, 0)
        self.reset()

    def reset(self) -> None:
        """Forget what traffic taught."""
        self.correction.reset()
        if self._measured is None:
            self.learned.reset()
            self.lo, self.hi, self.kv_hi = UNBOUNDED, 0, 0

    @property
    def is_measured(self) -> bool:
        return self._measured is not None

    @property
    def bare(self) -> Triple:
        """The curve's coefficients before correction."""
        return self._measured if self._measured is not None else self.learned.coefficients

    @property
    def corrected(self) -> Triple:
        """The coefficients to price by."""
        factor = self.correction.factor
        x0, x1, x2 = self.bare
        return x0 * factor, x1 * factor, x2 * factor

    @property
    def sure(self) -> bool:
        return self._measured is not None or self.learned.sure

    @property
    def confidence(self) -> float:
        """0 to 1: a profile confirmed by traffic is at 1 less its spread, one not yet used at 0.9."""
        if self._measured is None:
            return self.learned.confidence
        return max(0.0, 1 - self.correction.spread)

    def learn(self, x: Triple, bare_s: float, size: float, kv_tokens: float, seen_s: float) -> None:
        if self._measured is None:
            if self.learned.sure:
                self.correction.learn(bare_s, seen_s)
            self.learned.learn(x, seen_s)
            self.lo, self.hi = min(self.lo, size), max(self.hi, size)
            self.kv_hi = max(self.kv_hi, kv_tokens)
        else:
            self.correction.learn(bare_s, seen_s)


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
        self.prefill = _Work(
            (prefill.a, prefill.b, prefill.c) if prefill else None,
            prefill.lo if prefill else 0,
            prefill.hi if prefill else 0,
        )
        self.interval = _Work(
            (decode.p, decode.q, decode.c) if decode else None,
            0,
            decode.running_hi if decode else 0,
            decode.kv_hi if decode else 0,
        )
        self.handoff = _Work(
            (0.0, handoff.b, handoff.c) if handoff else None,
            handoff.lo if handoff else 0,
            handoff.hi if handoff else 0,
        )

    def prefill_s(self, tokens: float) -> Price:
        """Seconds to prefill one prompt alone."""
        return _by_length(self.prefill, tokens)

    def handoff_s(self, tokens: float) -> Price:
        """Seconds from sending a prompt's decode leg to its first token."""
        return _by_length(self.handoff, tokens)

    def interval_s(self, running: float, kv_tokens: float) -> Price:
        """Seconds between two decode steps of a batch of `running` sequences holding `kv_tokens`."""
        work = self.interval
        p, q, c = work.corrected
        outside = running > work.hi or kv_tokens > work.kv_hi
        return Price(c + p * running + q * kv_tokens, work.sure, outside)

    def learn_prefill(self, tokens: float, seen_s: float) -> None:
        """A prompt was prefilled. `seen_s`: from its sending, or from the end of the one before it on this
        engine if that was later, to its own end."""
        _learn_by_length(self.prefill, tokens, seen_s)

    def learn_handoff(self, tokens: float, seen_s: float) -> None:
        """A decode leg gave its first token `seen_s` after it was sent."""
        _learn_by_length(self.handoff, tokens, seen_s)

    def learn_interval(self, running: float, kv_tokens: float, seen_s: float) -> None:
        """A stream's tokens came `seen_s` apart, while on average `running` sequences held `kv_tokens`."""
        work = self.interval
        p, q, c = work.bare
        bare = c + p * running + q * kv_tokens
        work.learn((running, kv_tokens, 1.0), bare, running, kv_tokens, seen_s)

    def restarted(self) -> None:
        """The engine is a new process: what traffic taught of the old one is void, the profile stays."""
        for work in (self.prefill, self.interval, self.handoff):
            work.reset()


def _by_length(work: _Work, tokens: float) -> Price:
    a, b, c = work.corrected
    hi = work.hi
    seconds = beyond((a * tokens + b) * tokens + c, (a * hi + b) * hi + c, hi, tokens)
    return Price(seconds, work.sure, not work.lo <= tokens <= hi)


def _learn_by_length(work: _Work, tokens: float, seen_s: float) -> None:
    a, b, c = work.bare
    work.learn((tokens * tokens, tokens, 1.0), (a * tokens + b) * tokens + c, tokens, 0.0, seen_s)
