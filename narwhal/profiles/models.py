"""The fleet's models: one per engine, and the same figures as flat columns for whoever loops over engines.

Columns hold the corrected coefficients, so a price is a few multiplications on arrays of doubles:

    prefill   (a * L + b) * L + c; where L > hi edge * (L + shift), or the former if shift is 0 and it is more
    handoff   b * L + c, likewise
    interval  c + p * n + q * kv, with n at most n_reach and kv at most kv_reach

`lo` and `hi` bound what was measured, or seen. The columns change when something is learned. An engine is its
index, as in the fleet's table. Everything learned of prefill and of the token interval also goes to the watch
over drift, whose verdict is the `surcharge` column.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from narwhal._fast.columns import set_real, set_whole
from narwhal.profiles.drift import Drift
from narwhal.profiles.model import EngineModel, Price, Work, value
from narwhal.profiles.nonnegative import Triple

PREFILL, DECODE = 0, 1  # indices by phase, as the fleet's


class FleetModels:
    """The models of a fleet. Columns may be read freely; they change through the methods only."""

    __slots__ = (
        "drift", "engines",
        "handoff_b", "handoff_c", "handoff_edge", "handoff_hi", "handoff_shift", "handoff_sure",
        "interval_c", "interval_hi", "interval_kv_hi", "interval_kv_reach", "interval_n_reach", "interval_p",
        "interval_q", "interval_sure",
        "prefill_a", "prefill_b", "prefill_c", "prefill_edge", "prefill_hi", "prefill_lo",
        "prefill_shift", "prefill_spread", "prefill_sure",
        "surcharge",
    )  # fmt: skip

    def __init__(self, engines: Sequence[EngineModel]) -> None:
        self.engines: list[EngineModel] = []
        self.drift = (Drift(), Drift())  # by phase
        self.prefill_a, self.prefill_b, self.prefill_c = array("d"), array("d"), array("d")
        self.prefill_lo, self.prefill_hi, self.prefill_edge = array("d"), array("d"), array("d")
        self.interval_c, self.interval_p, self.interval_q = array("d"), array("d"), array("d")
        self.handoff_b, self.handoff_c = array("d"), array("d")
        self.handoff_hi, self.handoff_edge = array("d"), array("d")
        self.prefill_shift, self.handoff_shift = array("d"), array("d")
        self.interval_hi, self.interval_kv_hi = array("d"), array("d")
        self.interval_n_reach, self.interval_kv_reach = array("d"), array("d")
        # Relative spread (root mean square) of single prompts about the corrected curve.
        self.prefill_spread = array("d")
        # 1: a profile, or enough learned.
        self.prefill_sure, self.interval_sure, self.handoff_sure = array("q"), array("q"), array("q")
        # By phase: the share that is added to an engine's price while on probation.
        self.surcharge = (array("d"), array("d"))
        for engine in engines:
            self.add(engine)

    def add(self, engine: EngineModel) -> None:
        """One more engine, the last."""
        self.engines.append(engine)
        for drift in self.drift:
            drift.add()
        for name in self.__slots__:
            column = getattr(self, name)
            if isinstance(column, array):
                column.append(0)
        for column in self.surcharge:
            column.append(0.0)
        self._refresh(len(self.engines) - 1)

    def __len__(self) -> int:
        return len(self.engines)

    def prefill_s(self, engine: int, tokens: float) -> Price:
        """Seconds to prefill one prompt alone."""
        return self.engines[engine].prefill_s(tokens)

    def interval_s(self, engine: int, running: float, kv_tokens: float) -> Price:
        """Seconds between two decode steps of a batch of `running` sequences that hold `kv_tokens`."""
        return self.engines[engine].interval_s(running, kv_tokens)

    def handoff_s(self, engine: int, tokens: float) -> Price:
        """Seconds from sending a prompt's decode leg to its first token."""
        return self.engines[engine].handoff_s(tokens)

    def learn_prefill(self, engine: int, tokens: float, seen_s: float) -> None:
        """A prompt was prefilled. `seen_s` is the time the engine had it to itself.

        That is from its sending, or the end of the prompt before it on this engine if that was later, to its
        own end.
        """
        model = self.engines[engine]
        work = model.prefill
        terms = (tokens * tokens, tokens, 1.0)
        self._watch(engine, PREFILL, work, terms, seen_s)
        work.learn(terms, tokens, 0.0, seen_s)
        self._refresh_prefill(engine)

    def learn_interval(self, engine: int, running: float, kv_tokens: float, seen_s: float) -> None:
        """A stream's tokens came `seen_s` apart, while on average `running` sequences held `kv_tokens`."""
        model = self.engines[engine]
        work = model.interval
        terms = (running, kv_tokens, 1.0)
        self._watch(engine, DECODE, work, terms, seen_s)
        work.learn(terms, running, kv_tokens, seen_s)
        self._refresh_interval(engine)

    def learn_handoff(self, engine: int, tokens: float, seen_s: float) -> None:
        """A decode leg gave its first token `seen_s` after it was sent."""
        model = self.engines[engine]
        model.handoff.learn((0.0, tokens, 1.0), tokens, 0.0, seen_s)
        self._refresh_handoff(engine)

    def tick(self, now: float) -> list[tuple[int, int]]:
        """Judge drift; call it every second or so. Returns (phase, engine) where the verdict changed.

        The verdict is `drift[phase].state(engine)`; State.TAKE_OUT asks for the engine to be taken out.
        """
        changed = [(phase, engine) for phase in (PREFILL, DECODE) for engine in self.drift[phase].tick(now)]
        for phase, engine in changed:
            self._set_surcharge(phase, engine)
        return changed

    def returned(self, engine: int) -> None:
        """The engine was taken out for drift and is back, on probation."""
        for phase in (PREFILL, DECODE):
            self.drift[phase].returned(engine)
            self._set_surcharge(phase, engine)

    def restarted(self, engine: int) -> None:
        """The engine is a new process: what traffic taught of the old one is void."""
        self.engines[engine].restarted()
        for phase in (PREFILL, DECODE):
            self.drift[phase].start_over(engine)
            self._set_surcharge(phase, engine)
        self._refresh(engine)

    def _watch(self, engine: int, phase: int, work: Work, terms: Triple, seen_s: float) -> None:
        drift = self.drift[phase]
        if drift.calm(engine) and work.renew_anchor():
            drift.start_over(engine)
        if work.anchor is not None:
            drift.observe(engine, value(work.anchor, terms), seen_s)

    def _set_surcharge(self, phase: int, engine: int) -> None:
        self.surcharge[phase][engine] = self.drift[phase].surcharge(engine)

    def _refresh(self, engine: int) -> None:
        self._refresh_prefill(engine)
        self._refresh_interval(engine)
        self._refresh_handoff(engine)

    def _refresh_prefill(self, engine: int) -> None:
        model = self.engines[engine]
        work = model.prefill
        a, b, c = work.corrected()
        set_real(self.prefill_a, engine, a)
        set_real(self.prefill_b, engine, b)
        set_real(self.prefill_c, engine, c)
        set_real(self.prefill_lo, engine, work.range.lo)
        set_real(self.prefill_hi, engine, work.range.hi)
        set_real(self.prefill_edge, engine, work.edge())
        set_real(self.prefill_shift, engine, work.shift())
        set_real(self.prefill_spread, engine, work.correction.spread)
        set_whole(self.prefill_sure, engine, work.is_sure())

    def _refresh_interval(self, engine: int) -> None:
        model = self.engines[engine]
        work = model.interval
        p, q, c = work.corrected()
        set_real(self.interval_p, engine, p)
        set_real(self.interval_q, engine, q)
        set_real(self.interval_c, engine, c)
        set_real(self.interval_hi, engine, work.range.hi)
        set_real(self.interval_kv_hi, engine, work.range.kv_hi)
        n_reach, kv_reach = work.reach()
        set_real(self.interval_n_reach, engine, n_reach)
        set_real(self.interval_kv_reach, engine, kv_reach)
        set_whole(self.interval_sure, engine, work.is_sure())

    def _refresh_handoff(self, engine: int) -> None:
        model = self.engines[engine]
        work = model.handoff
        _, b, c = work.corrected()
        set_real(self.handoff_b, engine, b)
        set_real(self.handoff_c, engine, c)
        set_real(self.handoff_hi, engine, work.range.hi)
        set_real(self.handoff_edge, engine, work.edge())
        set_real(self.handoff_shift, engine, work.shift())
        set_whole(self.handoff_sure, engine, work.is_sure())
