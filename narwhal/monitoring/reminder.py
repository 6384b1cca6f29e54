"""When to say again what has not changed: at once, then ever more rarely."""

from __future__ import annotations

FIRST_S, LONGEST_S = 60.0, 3600.0


class Reminder:
    """One thing that lasts. Times are readings of any one clock, in seconds."""

    __slots__ = ("_due", "_pause_s")

    def __init__(self) -> None:
        self._due: float | None = None
        self._pause_s = FIRST_S

    def is_due(self, now: float) -> bool:
        """Whether to say it now; the next time is a minute later, then two, up to an hour."""
        if self._due is not None and now < self._due:
            return False
        self._due = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_S)
        return True
