"""When to say again what has not changed: at once, then ever more rarely."""

from __future__ import annotations


class Reminder:
    """One thing that lasts. Times are readings of any one clock, in seconds."""

    __slots__ = ("_due", "_longest_s", "_pause_s")

    def __init__(self, first_s: float, longest_s: float) -> None:
        """It is said again after `first_s`, then after twice that, up to `longest_s`."""
        self._due: float | None = None
        self._pause_s = first_s
        self._longest_s = longest_s

    def is_due(self, now: float) -> bool:
        """Whether to say it now; then the next time is counted from now."""
        if self._due is not None and now < self._due:
            return False
        self._due = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._longest_s)
        return True
