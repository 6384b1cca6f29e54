"""How late the event loop runs what is due: the first thing to look at when latencies rise.

A timer that comes back at a fixed interval is late by what kept the loop busy. Timers have a resolution of a
millisecond, so that a lag below it means nothing.
"""

from __future__ import annotations

import asyncio

from narwhal.accounting.histogram import Histogram


class LoopLag:
    """Measures the lag of the loop it is started on."""

    def __init__(self, histogram: Histogram, interval_s: float = 0.25) -> None:
        self._histogram = histogram
        self._interval_s = interval_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; `stop` ends it."""
        due = loop.time() + self._interval_s
        self._timer = loop.call_at(due, self._measure, loop, due)

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _measure(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._histogram.observe(loop.time() - due)
        self.start(loop)
