"""A grant: the seats one leg holds on one engine, and the way they go back."""

from __future__ import annotations

from collections.abc import Callable

from narwhal.fleet.table import FleetTable, Phase


class Grant:
    """Seats held on one engine: one, or on a `both` engine one in each phase, which go back one by one.

    A seat given back may be granted to a waiting request before the call returns.
    """

    __slots__ = ("_freed", "_table", "both", "engine", "held")

    def __init__(self, table: FleetTable, engine: int, freed: Callable[[int], None]) -> None:
        self.engine = engine
        self.held: tuple[Phase, ...] = table.needs(engine)
        self.both = len(self.held) == 2  # one leg does the whole request
        self._table = table
        self._freed = freed
        for phase in self.held:
            table.take(engine, phase)

    def release(self, phase: Phase) -> None:
        """Give the seat of one phase back. Raises RuntimeError if the grant does not hold it (any more)."""
        if phase not in self.held:
            name = self._table.ids[self.engine]
            raise RuntimeError(f"this grant on engine {name} holds no {phase.name.lower()} seat")
        self._give((phase,))

    def release_all(self) -> None:
        """Give back whatever is still held; nothing happens if that is nothing."""
        if self.held:
            self._give(self.held)

    def _give(self, phases: tuple[Phase, ...]) -> None:
        # All is settled before anyone is told: what is told may call back into this grant.
        self.held = tuple(phase for phase in self.held if phase not in phases)
        for phase in phases:
            self._table.give(self.engine, phase)
        self._freed(self.engine)
