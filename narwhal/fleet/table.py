"""The fleet's table: one row of numbers per engine, held as flat columns.

An engine is its index, which is its position in the fleet file. Everything that changes with each request
(seats taken) and everything a decision reads (limits, role, availability) is a column of 64-bit integers, so
that pricing is a loop over arrays, and so that the columns can move to shared memory or to Cython without a
change to who reads them. The table keeps the balance of seats and nothing else: who waits for one is the
door's business.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Protocol


class Phase(IntEnum):
    """The two halves of a request; each has its own seats on an engine."""

    PREFILL = 0
    DECODE = 1


class RoleCode(IntEnum):
    """What an engine is placed for, as the number in the `role` column."""

    PREFILL = 0
    DECODE = 1
    BOTH = 2


class EngineSpec(Protocol):
    """What the table needs to know of one engine; the configuration's engines have it."""

    @property
    def id(self) -> str:
        """Unique in the fleet."""

    @property
    def role(self) -> str:
        """`prefill`, `decode` or `both`."""

    @property
    def prefill_concurrency(self) -> int:
        """Prefill seats, at least one."""

    @property
    def decode_concurrency(self) -> int:
        """Decode seats, at least one."""


class FleetTable:
    """Seats, limits, roles and availability of every engine.

    Columns may be read freely. They change through the methods only; after those that begin with `set_` tell
    the door with `Door.fleet_changed`.
    """

    __slots__ = (
        "available", "decode_limit", "decode_seats", "ids", "index", "limit", "prefill_limit",
        "prefill_seats", "role", "seats", "serving",
    )  # fmt: skip

    def __init__(self, engines: Sequence[EngineSpec]) -> None:
        count = len(engines)
        self.ids = tuple(engine.id for engine in engines)
        self.index = {name: engine for engine, name in enumerate(self.ids)}
        self.role = array("q", (RoleCode[engine.role.upper()] for engine in engines))
        self.available = array("q", [1]) * count
        self.prefill_limit = array("q", (engine.prefill_concurrency for engine in engines))
        self.decode_limit = array("q", (engine.decode_concurrency for engine in engines))
        self.prefill_seats = array("q", [0]) * count
        self.decode_seats = array("q", [0]) * count
        # The same columns, by phase.
        self.limit = (self.prefill_limit, self.decode_limit)
        self.seats = (self.prefill_seats, self.decode_seats)
        self._order()

    def add(self, engine: EngineSpec) -> int:
        """One more row; its index. Rows are never taken away: an engine that left is unavailable."""
        index = len(self.ids)
        self.ids = (*self.ids, engine.id)
        self.index[engine.id] = index
        for column, value in (
            (self.role, RoleCode[engine.role.upper()]),
            (self.available, 1),
            (self.prefill_limit, engine.prefill_concurrency),
            (self.decode_limit, engine.decode_concurrency),
            (self.prefill_seats, 0),
            (self.decode_seats, 0),
        ):
            column.append(value)
        self._order()
        return index

    def _order(self) -> None:
        # By phase: the engines whose role answers an ask for it, in order of ID, so that the first of equals
        # is the one that wins a tie.
        in_order = sorted(range(len(self.ids)), key=self.ids.__getitem__)
        self.serving = tuple(
            tuple(engine for engine in in_order if self.asked_for(engine) is phase) for phase in Phase
        )

    def __len__(self) -> int:
        return len(self.ids)

    def asked_for(self, engine: int) -> Phase:
        """The phase whose asks this engine answers: a `both` engine serves requests whole, from prefill."""
        return Phase.DECODE if self.role[engine] == RoleCode.DECODE else Phase.PREFILL

    def needs(self, engine: int) -> tuple[Phase, ...]:
        """The phases in which one leg on this engine takes a seat."""
        if self.role[engine] == RoleCode.BOTH:
            return (Phase.PREFILL, Phase.DECODE)
        return (self.asked_for(engine),)

    def has_room(self, engine: int) -> bool:
        """Whether one more leg fits: the engine is available, a seat free in each phase it needs."""
        return self.available[engine] == 1 and all(
            self.seats[phase][engine] < self.limit[phase][engine] for phase in self.needs(engine)
        )

    def take(self, engine: int, phase: Phase) -> None:
        """Take one seat. Raises RuntimeError if none is free: whoever asked had not looked."""
        seats = self.seats[phase]
        if seats[engine] >= self.limit[phase][engine]:
            raise RuntimeError(f"engine {self.ids[engine]} has no free {phase.name.lower()} seat to take")
        seats[engine] += 1

    def give(self, engine: int, phase: Phase) -> None:
        """Give one seat back. Raises RuntimeError if none is taken: it was given back twice."""
        seats = self.seats[phase]
        if seats[engine] <= 0:
            raise RuntimeError(
                f"engine {self.ids[engine]} has no taken {phase.name.lower()} seat to give back"
            )
        seats[engine] -= 1

    def set_available(self, engine: int, available: bool) -> None:
        """Say whether the engine may be placed on. Legs already on it keep their seats."""
        self.available[engine] = 1 if available else 0

    def set_limit(self, engine: int, phase: Phase, limit: int) -> None:
        """Change how many seats the engine has. Below what is taken, it takes no more until enough came back.

        Raises ValueError below one: an engine that is to take nothing is made unavailable instead.
        """
        if limit < 1:
            raise ValueError(f"engine {self.ids[engine]}: a limit of {limit} seats; at least 1 is allowed")
        self.limit[phase][engine] = limit

    def set_roles(self, engines: Iterable[int], role: RoleCode) -> None:
        """Change what these engines are placed for. Legs already on them keep their seats."""
        for engine in engines:
            self.role[engine] = role
        self._order()

    @property
    def idle(self) -> bool:
        """Whether no seat is taken anywhere."""
        return not any(self.prefill_seats) and not any(self.decode_seats)
