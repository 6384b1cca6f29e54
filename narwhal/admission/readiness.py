"""Whether the router takes new requests, and if not, why.

Drains, monitoring, high availability and shutdown each raise a state under their own name and lower it under
the same name, so that two of them that want the same state don't undo each other. What is raised most
severely is what clients are told.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """What the router is, mildest first; all but READY are rows of the table of outcomes."""

    READY = "ready"
    MONITORING_DEGRADED = "monitoring_degraded"
    MAINTENANCE = "maintenance"
    STANDBY = "standby"
    FENCED = "fenced"
    STOPPING = "stopping"


_SEVEREST_FIRST = tuple(state for state in reversed(State) if state is not State.READY)


class Readiness:
    """The states raised at present, by source, each with a reason a person can act on."""

    __slots__ = ("_raised", "blocker")

    def __init__(self) -> None:
        self._raised: dict[State, dict[str, str]] = {state: {} for state in _SEVEREST_FIRST}
        self.blocker: tuple[State, str] | None = None  # the severest state raised, and the reasons for it

    def set(self, state: State, source: str, reason: str) -> None:
        """Raise a state, or change its reason. Raises ValueError for READY, the lack of any other."""
        if state is State.READY:
            raise ValueError("the state ready can't be set; clear the other states instead")
        self._raised[state][source] = reason
        self.blocker = self._severest()

    def clear(self, state: State, source: str) -> None:
        """Lower what `source` raised; nothing happens if it had not."""
        self._raised[state].pop(source, None)
        self.blocker = self._severest()

    def _severest(self) -> tuple[State, str] | None:
        for state in _SEVEREST_FIRST:
            if reasons := self._raised[state]:
                return state, "; ".join(reasons.values())
        return None

    @property
    def status(self) -> State:
        """The state in one word."""
        blocker = self.blocker
        return blocker[0] if blocker else State.READY
