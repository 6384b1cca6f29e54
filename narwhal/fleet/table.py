"""The fleet's table: one row of numbers per engine, held as flat columns.

An engine is its index, which is its position in the fleet file. Everything that changes with each request
(seats taken, work and KV tokens resident) and everything a decision reads (limits, role, availability) is a
column of 64-bit integers, so that pricing is a loop over arrays, and so that the columns can move to shared
memory or to Cython without a change to who reads them. The table keeps the balance of seats and nothing else:
the columns of work are kept by `work`, and who waits for a seat is the door's business.

What waits in the router can still go to any engine or be turned away; what waits in an engine can't. So an
engine that has `depth_us` of prefill work or more is given no more of it, free seats or not: enough that it
need not wait for the router between short prompts, little enough that nobody gets stuck behind a long one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Protocol

from narwhal._fast.columns import add_to, whole


class Phase(IntEnum):
    """The two halves of a request; each has its own seats on an engine."""

    PREFILL = 0
    DECODE = 1


class RoleCode(IntEnum):
    """What an engine is placed for, as the number in the `role` column."""

    PREFILL = 0
    DECODE = 1
    BOTH = 2


# Whose engines stand in for, and check, each other's.
OTHER_ROLE = {RoleCode.PREFILL: RoleCode.DECODE, RoleCode.DECODE: RoleCode.PREFILL}
# By role.
_NEEDS = ((Phase.PREFILL,), (Phase.DECODE,), (Phase.PREFILL, Phase.DECODE))


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

    @property
    def kv_capacity_tokens(self) -> int | None:
        """How many tokens its KV cache holds; None: more than matters."""


# An engine is given prefill work for about this share of the TTFT target.
DEPTH_SHARE = 0.025
UNLIMITED = 2**62  # in a column: more than there can be of anything


class FleetTable:
    """Seats, limits, roles and availability of every engine.

    Columns may be read freely. They change through the methods only; after those that begin with `set_` tell
    the door with `Door.look_again`.
    """

    __slots__ = (
        "available", "coming_kv", "decode_limit", "decode_seats", "depth_us", "head_due_us", "head_us",
        "ids", "index", "kv_capacity", "kv_reserved", "kv_tokens", "limit", "prefill_limit", "prefill_seats",
        "queued_us", "role", "seats", "serving", "squares_us2",
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
        # Prefill work on each engine, as predicted: its first leg's duration and when that ends (on the
        # clock of whoever says what time it is), the durations of the legs behind it, the sum of the squares
        # of all, and the KV tokens that these requests will want of a decode engine.
        self.head_us, self.head_due_us = array("q", [0]) * count, array("q", [0]) * count
        self.queued_us, self.squares_us2 = array("q", [0]) * count, array("q", [0]) * count
        self.coming_kv = array("q", [0]) * count
        # KV tokens held for decode legs: on average over their lives, and by their ends.
        self.kv_tokens, self.kv_reserved = array("q", [0]) * count, array("q", [0]) * count
        self.kv_capacity = array("q", (engine.kv_capacity_tokens or UNLIMITED for engine in engines))
        # One figure for all engines, in an array so that all who read it see it change.
        self.depth_us = array("q", [UNLIMITED])
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
            (self.head_us, 0),
            (self.head_due_us, 0),
            (self.queued_us, 0),
            (self.squares_us2, 0),
            (self.coming_kv, 0),
            (self.kv_tokens, 0),
            (self.kv_reserved, 0),
            (self.kv_capacity, engine.kv_capacity_tokens or UNLIMITED),
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
        return _NEEDS[whole(self.role, engine)][0]

    def needs(self, engine: int) -> tuple[Phase, ...]:
        """The phases in which one leg on this engine takes a seat."""
        return _NEEDS[whole(self.role, engine)]

    def has_room(self, engine: int) -> bool:
        """Whether one more leg fits: the engine is available, a seat free in each phase it needs, and its
        prefill work below the depth."""
        return (
            self.available[engine] == 1
            and all(self.seats[phase][engine] < self.limit[phase][engine] for phase in self.needs(engine))
            and (
                self.role[engine] == RoleCode.DECODE
                or self.head_us[engine] + self.queued_us[engine] < self.depth_us[0]
            )
        )

    def take(self, engine: int, phase: Phase) -> None:
        """Take one seat. Raises RuntimeError if none is free: whoever asked had not looked."""
        seats = self.seats[phase]
        if whole(seats, engine) >= whole(self.limit[phase], engine):
            raise RuntimeError(
                f"engine {self.ids[engine]} has no free {Phase(phase).name.lower()} seat to take"
            )
        add_to(seats, engine, 1)

    def give(self, engine: int, phase: Phase) -> None:
        """Give one seat back. Raises RuntimeError if none is taken: it was given back twice."""
        seats = self.seats[phase]
        if whole(seats, engine) <= 0:
            raise RuntimeError(
                f"engine {self.ids[engine]} has no taken {Phase(phase).name.lower()} seat to give back"
            )
        add_to(seats, engine, -1)

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

    def set_kv_capacity(self, engine: int, tokens: int | None) -> None:
        """Change how many tokens the engine's KV cache holds; None: more than matters."""
        self.kv_capacity[engine] = tokens or UNLIMITED

    def set_depth(self, depth_s: float) -> None:
        """Say from how many seconds of prefill work on an engine it is given no more."""
        self.depth_us[0] = max(1, round(depth_s * 1e6))

    def set_roles(self, engines: Iterable[int], role: RoleCode) -> None:
        """Change what these engines are placed for. Legs already on them keep their seats."""
        for engine in engines:
            self.role[engine] = role
        self._order()

    @property
    def idle(self) -> bool:
        """Whether no seat is taken anywhere, and no work counted."""
        return not any(
            any(column)
            for column in (
                self.prefill_seats, self.decode_seats, self.head_us, self.queued_us, self.squares_us2,
                self.coming_kv, self.kv_tokens, self.kv_reserved,
            )
        )  # fmt: skip
