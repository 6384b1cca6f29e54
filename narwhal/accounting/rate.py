"""How many a second of late: counted by the second over the last minute."""

from __future__ import annotations

from array import array
from typing import Self

WINDOW_S = 60


class Rate:
    """Counts things, and forgets them after a minute. Moments are those of a clock that only goes forward."""

    __slots__ = ("_counts", "_seconds")

    def __init__(self) -> None:
        self._counts = array("q", bytes(8 * WINDOW_S))
        self._seconds = array("q", [-1]) * WINDOW_S  # the second that each count is of

    def count(self, now: float) -> None:
        """One more."""
        second = int(now)
        slot = second % WINDOW_S
        if self._seconds[slot] != second:
            self._seconds[slot], self._counts[slot] = second, 0
        self._counts[slot] += 1

    def per_second(self, now: float) -> float:
        """The mean over the last minute."""
        since = int(now) - WINDOW_S
        counted = zip(self._counts, self._seconds, strict=True)
        return sum(count for count, second in counted if second > since) / WINDOW_S

    def copy(self) -> Self:
        """The figures of this instant."""
        other = type(self)()
        other._counts, other._seconds = self._counts[:], self._seconds[:]
        return other
