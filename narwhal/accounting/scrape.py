"""Everything there is to tell of a router at one instant, copied off the live figures.

Copying is quick and is done on the loop, so that the figures fit each other and the sum law holds in what is
read. Putting them into words is slow, and can then be done on another thread.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from narwhal.accounting.accounts import Accounts
from narwhal.accounting.journal import Journal
from narwhal.accounting.pace import FleetPace, pace_of
from narwhal.accounting.recovery import RecoveryFigures
from narwhal.admission.readiness import Readiness, State
from narwhal.config import FleetConfig
from narwhal.fleet.table import FleetTable, Phase
from narwhal.placement.place import Placement
from narwhal.profiles.input_length import InputLengths, Learned
from narwhal.profiles.models import FleetModels


class Occupancy(Protocol):
    """What is asked of the door."""

    @property
    def held(self) -> int:
        """Requests held over HTTP."""

    def waiting(self, phase: Phase) -> int:
        """Requests that wait for a seat of `phase`."""


@dataclass(frozen=True, slots=True)
class JournalFigures:
    """What became of the journal's rows."""

    written: int
    dropped: int
    errors: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Scrape:
    """The figures of one instant. Engines are indices into the fleet's table."""

    config: FleetConfig
    accounts: Accounts
    held: int
    waiting: tuple[int, ...]  # by phase
    seats: tuple[array[int], ...]  # by phase, then engine; so are the limits
    limits: tuple[array[int], ...]
    available: array[int]
    phases: tuple[tuple[Phase, ...], ...]  # by engine: the phases it has seats for, or legs in
    state: State
    state_reason: str
    input_lengths: list[Learned]
    pace: FleetPace
    goodput: float  # requests a second, over the last minute
    recovery: RecoveryFigures
    now: float  # monotonic
    journal: JournalFigures | None


class Scraper:
    """Knows where the live figures are."""

    def __init__(
        self,
        config: FleetConfig,
        accounts: Accounts,
        table: FleetTable,
        door: Occupancy,
        readiness: Readiness,
        input_lengths: InputLengths,
        models: FleetModels,
        placement: Placement,
        recovery: Callable[[], RecoveryFigures],
        journal: Journal | None = None,
    ) -> None:
        self._config = config
        self._accounts = accounts
        self._table = table
        self._door = door
        self._readiness = readiness
        self._input_lengths = input_lengths
        self._models = models
        self._placement = placement
        self._recovery = recovery
        self._journal = journal

    def fleet_is(self, config: FleetConfig) -> None:
        """The fleet has other engines."""
        self._config = config

    def take(self) -> Scrape:
        """The figures of now. Call it on the loop."""
        table, journal, now = self._table, self._journal, time.monotonic()
        state, reason = self._readiness.blocker or (State.READY, "")
        return Scrape(
            config=self._config,
            accounts=self._accounts.copy(),
            held=self._door.held,
            waiting=tuple(self._door.waiting(phase) for phase in Phase),
            seats=tuple(column[:] for column in table.seats),
            limits=tuple(column[:] for column in table.limit),
            available=table.available[:],
            phases=tuple(_phases(table, engine) for engine in range(len(table))),
            state=state,
            state_reason=reason,
            input_lengths=self._input_lengths.report(),
            pace=pace_of(table, self._models, self._placement, now),
            goodput=self._accounts.good.per_second(now),
            recovery=self._recovery(),
            now=now,
            journal=None
            if journal is None
            else JournalFigures(journal.written, journal.dropped, journal.errors, journal.waiting),
        )


def _phases(table: FleetTable, engine: int) -> tuple[Phase, ...]:
    # Besides those of its role, one in which a leg still runs from when its role was another.
    needed = table.needs(engine)
    return tuple(phase for phase in Phase if phase in needed or table.seats[phase][engine])
