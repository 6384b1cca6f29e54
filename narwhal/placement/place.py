"""Which engine? One decision: eligible, then priced, then picked.

The three steps are one loop over the fleet's columns and stand in `_fast/price.pyx`. Eligible are the engines
whose role answers the ask, that are available, and that the request need not avoid. A prefill leg's price is
what is left now of the work on the engine, and this prompt's; a decode leg's the token interval once it has
joined. Picked is the cheapest, the first by ID of equals, of those with room for one more leg.
"""

from __future__ import annotations

from array import array
from heapq import nsmallest
from math import copysign, isinf

from narwhal._fast.price import Board, Waiter
from narwhal.fleet.table import FleetTable, Phase
from narwhal.placement.eligible import eligible
from narwhal.profiles.models import FleetModels

_SHOWN = 64  # engines of an offer that are told of


_PREFILL = Phase.PREFILL  # a look-up in the class is slow


class NoEligibleEngine(Exception):
    """No engine may run the leg, free seats or not. Its text says how many there are and why none will do."""


class Offer:
    """What the engines would have cost one leg: kept as it is found, put into words when it is read."""

    __slots__ = ("_by_share", "_engines", "_ids", "_outside", "_prices")

    def __init__(
        self,
        ids: tuple[str, ...],
        engines: tuple[int, ...],
        prices: bytes,
        outside: bytes,
        *,
        by_share: bool,
    ) -> None:
        """See Board.take_prices and take_outside; `engines` are indices in that order, `ids` those of the
        whole fleet."""
        self._ids = ids
        self._engines = engines
        self._prices = prices
        self._outside = outside
        self._by_share = by_share

    def rows(self) -> dict[str, dict[str, float | bool]]:
        """The eligible engines by ID, the cheapest first and so many at the most. A price is marked as
        `extrapolated` if it is one of work outside what was measured, or seen."""
        unit = "share" if self._by_share else "price_s"
        outside = self._outside or bytes(len(self._engines))
        priced = zip(self._engines, array("d", self._prices), outside, strict=True)
        cheapest = nsmallest(_SHOWN, priced, key=lambda one: abs(one[1]))
        return {
            self._ids[engine]: {
                unit: round(abs(price), 6),
                "room": copysign(1, price) > 0,
                **({"extrapolated": True} if extrapolated else {}),
            }
            for engine, price, extrapolated in cheapest
            if not isinf(price)
        }


class Placement:
    """Places legs on one fleet."""

    def __init__(self, table: FleetTable, models: FleetModels) -> None:
        self.board = Board(table, models)
        # By phase: legs that went to an engine which meets their target no more than the others.
        self.unserved = [0, 0]
        self._table = table

    def place(self, request: Waiter, phase: Phase, now: float) -> int | None:
        """The engine for one more leg, by index; None if none has room.

        Also None if the request is refusable and would miss its target on each of those. Raises
        NoEligibleEngine if there is none to wait for.
        """
        board = self.board
        engine = board.pick_prefill(request, now) if phase is _PREFILL else board.pick_decode(request)
        if engine >= 0:
            if not board.met:
                self.unserved[phase] += 1
            return engine
        if not eligible(self._table, phase, request.avoid):
            raise NoEligibleEngine(_why_none(self._table, phase, request.avoid))
        return None

    def offer(self, phase: Phase) -> Offer:
        """What the last leg that was placed, of this phase, might have had."""
        table, board = self._table, self.board
        prices, outside = board.take_prices(), board.take_outside()
        return Offer(table.ids, table.serving[phase], prices, outside, by_share=board.by_share)


def _why_none(table: FleetTable, phase: Phase, avoid: frozenset[int]) -> str:
    engines = table.serving[phase]
    available = len(eligible(table, phase, frozenset()))
    text = f"no engine can run the {phase.name.lower()} leg: {available} of {len(engines)} are available"
    return f"{text}, and this request failed on those already" if available and avoid else text
