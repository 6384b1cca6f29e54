"""What speaks against one engine, by class of evidence, and what is to be done about it.

Each class has a count of its own, of failures in a row. A success of a class says nothing of the others: an
engine that takes connections may still send broken streams. Once a class has counted to `eject_after` its
remedy is due: an engine that can't be connected to is out; one that is late or overloaded is asked how it is;
any other doubt is settled by letting it compute something. An engine that says it is well and is late again
has said it once too often: the next remedy is to let it compute, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, StrEnum


class Evidence(StrEnum):
    """Classes of failure."""

    CONNECTION = "connection"  # not reached, or reset before it answered
    TIMEOUT = "timeout"
    OVERLOAD = "overload"  # it said so: 429 or 503
    STATUS = "status"  # any other error status, or an error in its stream
    HANDOFF = "handoff"  # a prefill without a usable handoff
    STREAM = "stream"  # cut short, or not what the protocol allows
    TOKEN_IDS = "token_ids"  # output without valid token IDs


class Remedy(Enum):
    """What evidence leads to."""

    EJECT = "eject"
    PROBE_HEALTH = "health probe"
    PROBE_INFERENCE = "inference probe"


_REMEDIES = {
    Evidence.CONNECTION: Remedy.EJECT,
    Evidence.TIMEOUT: Remedy.PROBE_HEALTH,
    Evidence.OVERLOAD: Remedy.PROBE_HEALTH,
}


class Health:
    """The evidence against one engine."""

    __slots__ = ("_asked", "counts")

    def __init__(self) -> None:
        self.counts: dict[Evidence, int] = {}  # failures in a row; a class without any is left out
        self._asked: set[Evidence] = set()  # classes since whose last success a health probe went well

    def failed(self, evidence: Evidence, limit: int) -> Remedy | None:
        """Count one more failure; the remedy, once there are `limit` of its class in a row."""
        count = self.counts[evidence] = self.counts.get(evidence, 0) + 1
        if count < limit:
            return None
        remedy = _REMEDIES.get(evidence, Remedy.PROBE_INFERENCE)
        if remedy is Remedy.PROBE_HEALTH and evidence in self._asked:
            return Remedy.PROBE_INFERENCE
        return remedy

    def succeeded(self, classes: Iterable[Evidence]) -> None:
        """Something went well that clears these classes, and no others."""
        for evidence in classes:
            self.counts.pop(evidence, None)
            self._asked.discard(evidence)

    def said_well(self, evidence: Evidence) -> None:
        """A health probe for this class went well: its count begins anew."""
        self.counts.pop(evidence, None)
        self._asked.add(evidence)

    def clear(self) -> None:
        """Nothing speaks against the engine any more."""
        self.counts.clear()
        self._asked.clear()
