"""A grant: the seats one leg holds on one engine, the work counted with them, and the way both go back."""

from __future__ import annotations

from collections.abc import Callable

from narwhal.fleet.table import FleetTable, Phase
from narwhal.fleet.work import DecodeLeg, PrefillLeg, Work
from narwhal.placement.place import Offer

_PREFILL = Phase.PREFILL  # a look-up in the class is slow


class Grant:
    """Seats held on one engine: one, or on a `both` engine one in each phase, which go back one by one.

    A seat given back may be granted to a waiting request before the call returns.
    """

    __slots__ = ("_decode", "_freed", "_prefill", "_table", "_work", "both", "engine", "held", "offer")

    def __init__(
        self,
        table: FleetTable,
        work: Work,
        engine: int,
        freed: Callable[[int, float], None],
        prefill: PrefillLeg | None,
        decode: DecodeLeg | None,
        offer: Offer,
    ) -> None:
        """Take the seats that one leg needs; its work is in the ledger already."""
        self.engine = engine
        self.offer = offer  # what the leg might have had instead
        self.held: tuple[Phase, ...] = table.needs(engine)
        self.both = len(self.held) == 2  # one leg does the whole request
        self._table = table
        self._work = work
        self._freed = freed
        self._prefill = prefill
        self._decode = decode
        for phase in self.held:
            table.take(engine, phase)

    def prefilled(self, tokens: int, now: float) -> None:
        """The prompt is prefilled, `tokens` tokens of it computed; call it before the seat goes back."""
        if self._prefill is not None and tokens > 0:
            self._work.prefilled(self._prefill, tokens, now)

    def first_token(self, now: float) -> None:
        """The first token of a decode leg came."""
        if self._decode is not None:
            self._work.first_token(self._decode, now, not self.both)

    def decoded(self, output_tokens: int, now: float) -> None:
        """The last token came, the last of so many; call it before the seat goes back."""
        if self._decode is not None:
            self._work.decoded(self._decode, output_tokens, now)

    def release(self, phase: Phase, now: float) -> None:
        """Give the seat of one phase back. Raises RuntimeError if the grant does not hold it (any more)."""
        if phase not in self.held:
            name = self._table.ids[self.engine]
            raise RuntimeError(f"this grant on engine {name} holds no {phase.name.lower()} seat")
        # All is settled before anyone is told: what is told may call back into this grant.
        self.held = (self.held[1 if self.held[0] is phase else 0],) if len(self.held) == 2 else ()
        self._give(phase, now)
        self._freed(self.engine, now)

    def release_all(self, now: float) -> None:
        """Give back whatever is still held; nothing happens if that is nothing."""
        phases, self.held = self.held, ()
        for phase in phases:
            self._give(phase, now)
        if phases:
            self._freed(self.engine, now)

    def _give(self, phase: Phase, now: float) -> None:
        if phase is _PREFILL:
            if self._prefill is not None:
                self._work.end_prefill(self._prefill, now)
                self._prefill = None
        elif self._decode is not None:
            self._work.end_decode(self._decode, now)
            self._decode = None
        self._table.give(self.engine, phase)
