"""Work: what the legs on each engine have left to do, and what their ends teach.

An engine prefills one prompt after another, in the order it was sent them; engines that take several at
once come to about the same sums. So of the legs on it the first is under way, and what is left of it is the
time until its predicted end; the others are whole. When a leg ends, whatever was thought of it is taken out
and the next is the first, from this moment. So an error lasts no longer than the leg it was made about.

A decode engine is described by how many sequences it runs and how many KV tokens they hold. A leg is counted
with what it holds on average over its life (the prompt and half the output), so nothing moves with each
token. Sums over time of both are kept, so that the pace a stream had can be laid to the mean batch it ran in.

Durations and tokens are integers, so that what was added is taken away exactly.
"""

from __future__ import annotations

from array import array
from collections import deque

from narwhal._fast.columns import add_to, set_real, set_whole, whole
from narwhal.fleet.table import FleetTable, Phase
from narwhal.profiles.models import FleetModels

# A stream shorter than this says little about the interval between tokens.
_LEAST_TOKENS = 4
# What chance makes of a longer leg does not matter, and the sum of squares must fit its column.
_MOST_US = 100_000_000


_PREFILL, _DECODE = Phase.PREFILL, Phase.DECODE  # a look-up in the class is slow


class PrefillLeg:
    """A prompt on its way through an engine."""

    __slots__ = ("cost_us", "engine", "kv", "sent", "tokens")

    def __init__(self, engine: int, tokens: int, kv: int, cost_us: int, sent: float) -> None:
        self.engine = engine
        self.tokens = tokens
        self.kv = kv
        self.cost_us = cost_us
        self.sent = sent


class DecodeLeg:
    """An answer being written by an engine."""

    __slots__ = ("engine", "first", "kv_mean", "kv_most", "kv_then", "running_then", "sent", "tokens")

    def __init__(self, engine: int, tokens: int, output_tokens: int, sent: float) -> None:
        self.engine = engine
        self.tokens = tokens
        self.kv_most = tokens + output_tokens
        self.kv_mean = tokens + output_tokens // 2
        self.sent = sent
        self.first: float | None = None
        self.running_then = self.kv_then = 0.0  # the engine's sums over time at the first token


class _Sums:
    """One engine's: decode seats and KV tokens summed over time up to a moment, and when it was last free."""

    __slots__ = ("freed", "kv", "running", "up_to")

    def __init__(self) -> None:
        self.running = self.kv = self.up_to = 0.0
        self.freed = 0.0  # when its last prefill leg ended


class Work:
    """The ledger of one fleet: it keeps the table's columns of work, and teaches the models."""

    __slots__ = ("_legs", "_models", "_sums", "_table", "shown")

    def __init__(self, table: FleetTable, models: FleetModels, now: float) -> None:
        self._table = table
        self._models = models
        self._legs: list[deque[PrefillLeg]] = []
        # By phase: when each engine last showed how fast it is.
        self.shown = (array("d"), array("d"))
        self._sums: list[_Sums] = []
        for _ in range(len(table)):
            self.add(now)

    def add(self, now: float) -> None:
        """The table has one more engine."""
        self._legs.append(deque())
        for shown in self.shown:
            shown.append(now)
        self._sums.append(_Sums())

    # ---- prefill

    def begin_prefill(self, engine: int, tokens: int, kv: int, cost_s: float, now: float) -> PrefillLeg:
        """A leg over a prompt is sent to an engine, which is predicted to take `cost_s` for it.

        `kv` is how many KV tokens the request will want of a decode engine.
        """
        table = self._table
        leg = PrefillLeg(engine, tokens, kv, round(cost_s * 1e6), now)
        legs = self._legs[engine]
        if legs:
            add_to(table.queued_us, engine, leg.cost_us)
        else:
            self._lead(leg, now)
        legs.append(leg)
        add_to(table.squares_us2, engine, min(leg.cost_us, _MOST_US) ** 2)
        add_to(table.coming_kv, engine, kv)
        return leg

    def end_prefill(self, leg: PrefillLeg, now: float) -> None:
        """The leg is over, one way or the other."""
        table, engine, legs = self._table, leg.engine, self._legs[leg.engine]
        add_to(table.squares_us2, engine, -(min(leg.cost_us, _MOST_US) ** 2))
        add_to(table.coming_kv, engine, -leg.kv)
        sums = self._sums[engine]
        sums.freed = now
        if legs[0] is not leg:
            add_to(table.queued_us, engine, -leg.cost_us)
            legs.remove(leg)
            return
        legs.popleft()
        set_whole(table.head_us, engine, 0)
        set_whole(table.head_due_us, engine, 0)
        if legs:
            add_to(table.queued_us, engine, -legs[0].cost_us)
            self._lead(legs[0], now)

    def prefilled(self, leg: PrefillLeg, tokens: int, now: float) -> float:
        """The leg has done its work on `tokens` tokens (those not cached); call this before `end_prefill`.

        Returns the seconds it took, not counting those that the engine spent on legs before it.
        """
        set_real(self.shown[_PREFILL], leg.engine, now)
        sums = self._sums[leg.engine]
        took = now - max(leg.sent, sums.freed)
        self._models.learn_prefill(leg.engine, tokens, took)
        return took

    def _lead(self, leg: PrefillLeg, now: float) -> None:
        set_whole(self._table.head_us, leg.engine, leg.cost_us)
        set_whole(self._table.head_due_us, leg.engine, round(now * 1e6) + leg.cost_us)

    # ---- decode

    def begin_decode(self, engine: int, tokens: int, output_tokens: int, now: float) -> DecodeLeg:
        """A leg is sent to an engine, for an answer of `output_tokens` tokens or so."""
        leg = DecodeLeg(engine, tokens, output_tokens, now)
        self._sum_up(engine, now)
        add_to(self._table.kv_tokens, engine, leg.kv_mean)
        add_to(self._table.kv_reserved, engine, leg.kv_most)
        return leg

    def first_token(self, leg: DecodeLeg, now: float, handed_over: bool) -> None:
        """The leg's first token came; `handed_over`: to an engine that had another one prefill its prompt."""
        self._sum_up(leg.engine, now)
        leg.first = now
        sums = self._sums[leg.engine]
        leg.running_then, leg.kv_then = sums.running, sums.kv
        if handed_over:
            self._models.learn_handoff(leg.engine, leg.tokens, now - leg.sent)

    def decoded(self, leg: DecodeLeg, output_tokens: int, now: float) -> None:
        """The leg's last token came, the last of so many; call this before `end_decode`."""
        if leg.first is None or output_tokens < _LEAST_TOKENS or now <= leg.first:
            return
        engine, lasted = leg.engine, now - leg.first
        set_real(self.shown[_DECODE], engine, now)
        self._sum_up(engine, now)
        sums = self._sums[engine]
        running = (sums.running - leg.running_then) / lasted
        kv = (sums.kv - leg.kv_then) / lasted
        self._models.learn_interval(engine, running, kv, lasted / (output_tokens - 1))

    def end_decode(self, leg: DecodeLeg, now: float) -> None:
        """The leg is over, one way or the other."""
        self._sum_up(leg.engine, now)
        add_to(self._table.kv_tokens, leg.engine, -leg.kv_mean)
        add_to(self._table.kv_reserved, leg.engine, -leg.kv_most)

    def _sum_up(self, engine: int, now: float) -> None:
        # Before the seats or the KV tokens of an engine change, and before its sums are read.
        table, sums = self._table, self._sums[engine]
        lasted = now - sums.up_to
        if lasted > 0:
            sums.running += whole(table.decode_seats, engine) * lasted
            sums.kv += whole(table.kv_tokens, engine) * lasted
            sums.up_to = now
