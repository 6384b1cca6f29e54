"""The line of requests that wait for a seat of one phase, first come first served.

It is kept sorted by arrival, since a request that is tried again comes back to the place its arrival gives
it. A sorted list is shifted by one `memmove`, which at the lengths a queue has is cheaper than a tree.
Requests that avoid some engines stand in a second list as well: only for those there may be no engine left
while there is one for others.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable
from enum import Enum

from narwhal._fast.price import Waiter
from narwhal.admission.grant import Grant
from narwhal.fleet.table import Phase
from narwhal.outcomes import Ending


class Stage(Enum):
    """Where a request for a seat stands. It goes forward only, so each is asked once."""

    NEW = 0
    WAITING = 1
    DECIDED = 2  # its grant or its end is settled, and it is about to be told
    DONE = 3


_NEW, _DECODE = Stage.NEW, Phase.DECODE  # a look-up in the class is slow


class SeatRequest(Waiter):
    """One ask for a seat. For another attempt make another one, with the same `arrived`.

    `arrived` is when the client's request came, in seconds of any one clock. `avoid` are engines, by index,
    not to be placed on. One of the two calls is made, once, if the request had to wait and did not leave;
    they must not raise, and may call the door.

    `tokens` is the prompt's length and `output_tokens` the answer's, as expected. `target` is the moment at
    which the first token is due, `tpot_s` the token interval that is wanted; with `refusable`, the request is
    turned away when it would miss them, and not else. `producer` is the engine that prefilled the prompt.
    `again`: the request had a leg already.
    """

    def __init__(
        self,
        phase: Phase,
        arrived: float,
        avoid: frozenset[int],
        on_grant: Callable[[Grant], None],
        on_ending: Callable[[Ending], None],
        tokens: int = 0,
        output_tokens: int = 0,
        target: float = math.inf,
        tpot_s: float = math.inf,
        refusable: bool = False,
        producer: int = -1,
        again: bool = False,
    ) -> None:
        super().__init__()
        self.phase = phase
        self.arrived = arrived
        self.avoid = avoid
        self.on_grant = on_grant
        self.on_ending = on_ending
        self.tokens = tokens
        self.output_tokens = output_tokens
        self.kv = tokens + output_tokens
        self.target = target
        self.tpot_s = tpot_s
        self.refusable = refusable
        self.producer = producer
        self.again = again
        self.stage = _NEW
        self.order = 0  # of asking; settles equal arrivals
        self.decided: Grant | Ending | None = None  # while DECIDED
        self.asked_at = self.forecast_s = 0.0  # since when it waits, and how long by the bare forecast
        self.projected_ttft_s: float | None = None  # when it asked; None while nothing is known

    @property
    def started(self) -> bool:
        """Whether it had a leg already, so that it is no newcomer who could be turned away."""
        return self.phase is _DECODE or self.again or bool(self.avoid)


Entry = tuple[float, int, SeatRequest]


class Line:
    """Who waits for one phase."""

    __slots__ = ("_picky", "entries", "kv", "refusable")

    def __init__(self) -> None:
        # All in order, each the third member of its tuple; not to be changed from outside.
        self.entries: list[Entry] = []
        self._picky: list[Entry] = []
        self.kv = 0.0  # tokens that all of them will hold in the end
        self.refusable = 0  # how many of them are

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, request: SeatRequest) -> None:
        """Let it stand where its arrival and its order put it."""
        entry = (request.arrived, request.order, request)
        insort(self.entries, entry)
        if request.avoid:
            insort(self._picky, entry)
        self.kv += request.kv
        self.refusable += request.refusable

    def remove(self, request: SeatRequest) -> None:
        """Take it out, wherever it stands."""
        entry = (request.arrived, request.order, request)
        for side in (self.entries, self._picky) if request.avoid else (self.entries,):
            del side[bisect_left(side, entry)]
        self.kv -= request.kv
        self.refusable -= request.refusable

    def in_order(self) -> list[SeatRequest]:
        """All, the earliest first."""
        return [entry[2] for entry in self.entries]

    def picky(self) -> list[SeatRequest]:
        """Those who avoid some engine, the earliest first."""
        return [entry[2] for entry in self._picky]
