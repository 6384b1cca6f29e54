"""A timer that may be moved often at no cost.

Deadlines move with every stage of every request, and almost none of them passes. So the event loop's timer is
left where it is when the deadline moves back; when it fires too early it is set anew.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from time import monotonic


def _silent(now: float) -> None:
    """Rings nobody."""


class Alarm:
    """Calls `ring(now)` once the monotonic clock has reached what was set last."""

    __slots__ = ("_armed_for", "_handle", "_loop", "_ring", "_when")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[float], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._when = math.inf
        self._armed_for = math.inf
        self._handle: asyncio.TimerHandle | None = None

    def set(self, when: float) -> None:
        """Ring at `when` (monotonic seconds; infinity: never)."""
        self._when = when
        if when < self._armed_for:
            if self._handle is not None:
                self._handle.cancel()
            self._arm(when)

    def close(self) -> None:
        """Never ring again, whatever is set from now on."""
        self._when = math.inf
        self._armed_for = -math.inf
        self._ring = _silent  # its owner need not wait for the collector
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, when: float) -> None:
        self._armed_for = when
        self._handle = self._loop.call_later(max(0.0, when - monotonic()), self._fire)

    def _fire(self) -> None:
        self._handle = None
        self._armed_for = math.inf
        now = monotonic()
        if now < self._when:
            if self._when < math.inf:
                self._arm(self._when)
            return
        self._when = math.inf
        self._ring(now)
