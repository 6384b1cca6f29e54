"""The line of requests that wait for a seat of one phase, first come first served.

It is kept sorted by arrival, since a request that is tried again comes back to the place its arrival gives
it. Requests that avoid some engines stand in a list of their own: only those may be passed over for a given
engine, so only those are ever looked through. A sorted list is shifted by one `memmove`, which at the lengths
a queue has is cheaper than a tree.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from narwhal.admission.grant import Grant
from narwhal.fleet.table import Phase


class Stage(Enum):
    """Where a request for a seat stands. It goes forward only, so each is asked once."""

    NEW = 0
    WAITING = 1
    DECIDED = 2  # its grant or its end is settled, and it is about to be told
    DONE = 3


@dataclass(slots=True, eq=False)
class SeatRequest:
    """One ask for a seat. For another attempt make another one, with the same `arrived`.

    `arrived` is when the client's request came, in seconds of any one clock. `avoid` are engines, by index,
    not to be placed on. One of the two calls is made, once, if the request had to wait and did not leave;
    they must not raise, and may call the door.
    """

    phase: Phase
    arrived: float
    avoid: frozenset[int]
    on_grant: Callable[[Grant], None]
    on_unavailable: Callable[[], None]
    stage: Stage = field(default=Stage.NEW, init=False)
    order: int = field(default=0, init=False)  # of asking; settles equal arrivals
    grant: Grant | None = field(default=None, init=False)  # while DECIDED

    @property
    def started(self) -> bool:
        """Whether it had a leg already, so that it is no newcomer who could be turned away."""
        return self.phase is Phase.DECODE or bool(self.avoid)


_Entry = tuple[float, int, SeatRequest]


class Line:
    """Who waits for one phase."""

    __slots__ = ("_picky", "_plain")

    def __init__(self) -> None:
        self._plain: list[_Entry] = []
        self._picky: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._plain) + len(self._picky)

    @property
    def any_plain(self) -> bool:
        """Whether someone waits who would take any engine."""
        return bool(self._plain)

    def add(self, request: SeatRequest) -> None:
        """Let it stand where its arrival and its order put it."""
        insort(self._side(request), (request.arrived, request.order, request))

    def remove(self, request: SeatRequest) -> None:
        """Take it out, wherever it stands."""
        side = self._side(request)
        del side[bisect_left(side, (request.arrived, request.order, request))]

    def first_for(self, engine: int) -> SeatRequest | None:
        """The earliest who may run on `engine`."""
        head = self._plain[0] if self._plain else None
        for entry in self._picky:
            if head is not None and head < entry:
                break
            if engine not in entry[2].avoid:
                return entry[2]
        return head[2] if head is not None else None

    def in_order(self) -> list[SeatRequest]:
        """All, the earliest first."""
        return [entry[2] for entry in heapq.merge(self._plain, self._picky)]

    def picky(self) -> Iterable[SeatRequest]:
        """Those who avoid some engine, the earliest first."""
        return [entry[2] for entry in self._picky]

    def _side(self, request: SeatRequest) -> list[_Entry]:
        return self._picky if request.avoid else self._plain
