"""Drift: an engine that has become slower than it was, while its peers have not.

Time is cut into windows, the same for all engines of a phase. An engine's ratio of seen to predicted
seconds in a window, against its own baseline (what that ratio usually is for it), says how it has changed;
less the median change of its peers in the same window, that is its score, in natural logarithms. So a surge
that slows the whole fleet moves no score, and an engine that was always slower than its profile is at zero.
An engine without peers has no score: there would be nowhere else to go.

Scores that stay high put an engine on probation, where its price is raised; scores that stay very high there
ask for it to be taken out of the fleet, which is for `fleet/` to do. Low scores bring it back.
"""

from __future__ import annotations

import math
from enum import IntEnum
from statistics import median

WINDOW_S = 5.0
# A window needs this many samples of an engine to judge it; until then it goes on. Of a peer, half will do.
_ENOUGH, _HEARD = 6, 3
# Scores: from here on drift, from here on a reason to take the engine out, and below this well again.
DRIFTED, FAR_OFF, WELL = math.log(1.3), math.log(2.0), math.log(1.15)
# How many windows in a row it takes for a change of state.
SUSTAINED = 3
# Windows that make a baseline, and those that it remembers after that.
_CALIBRATION, _BASELINE_MEMORY = 3, 360
# The share added to the price of an engine on probation.
SURCHARGE = 0.5
# Less than this share of what was predicted tells no more: its logarithm would swamp everything.
_LEAST_RATIO = 0.01


class State(IntEnum):
    """What is thought of an engine."""

    WELL = 0
    PROBATION = 1
    TAKE_OUT = 2  # asked for; it counts as on probation until then, and when it comes back


_WELL = State.WELL  # a look-up in the class is slow


class _Engine:
    __slots__ = ("baseline", "high", "low", "predicted_s", "samples", "score", "seen_s", "state", "windows")

    def __init__(self) -> None:
        self.state = _WELL
        self.start_over()

    def start_over(self) -> None:
        self.baseline, self.windows = 0.0, 0
        self.score: float | None = None
        self.high = self.low = 0  # windows in a row
        self.empty()

    def empty(self) -> None:
        self.seen_s = self.predicted_s = 0.0
        self.samples = 0

    def log_ratio(self) -> float:
        return math.log(max(self.seen_s / self.predicted_s, _LEAST_RATIO))

    def close_window(self) -> None:
        log_ratio = self.log_ratio()
        self.empty()
        # While it is not well, what it does is no baseline.
        if self.state is _WELL and self.high == 0:
            self.windows = min(self.windows + 1, _BASELINE_MEMORY)
            self.baseline += (log_ratio - self.baseline) / self.windows


class Drift:
    """The engines of a fleet in one phase, by index."""

    __slots__ = ("_closes_at", "_engines")

    def __init__(self, count: int = 0) -> None:
        self._engines = [_Engine() for _ in range(count)]
        self._closes_at = -math.inf

    def add(self) -> None:
        """One more engine, the last."""
        self._engines.append(_Engine())

    def observe(self, engine: int, predicted_s: float, seen_s: float) -> None:
        """Work that the engine's curve, not corrected, priced at `predicted_s` took `seen_s`."""
        if predicted_s > 0 and seen_s >= 0:
            row = self._engines[engine]
            row.predicted_s += predicted_s
            row.seen_s += seen_s
            row.samples += 1

    def tick(self, now: float) -> list[int]:
        """Close the window if it is over; call it every second or so. Returns engines whose state changed."""
        if now < self._closes_at:
            return []
        first, self._closes_at = self._closes_at == -math.inf, now + WINDOW_S
        return [] if first else self._close()

    def _close(self) -> list[int]:
        changes = {
            engine: row.log_ratio() - row.baseline
            for engine, row in enumerate(self._engines)
            if row.samples >= _HEARD and row.windows >= _CALIBRATION
        }
        altered = []
        for engine, row in enumerate(self._engines):
            if row.samples < _ENOUGH:
                continue
            if engine in changes and len(changes) > 1:
                usual = median(change for peer, change in changes.items() if peer != engine)
                row.score = changes[engine] - usual
                if _judge(row, row.score):
                    altered.append(engine)
            row.close_window()
        return altered

    def state(self, engine: int) -> State:
        """What is thought of the engine."""
        return self._engines[engine].state

    def score(self, engine: int) -> float | None:
        """The last window's: 0 is as ever, log(2) twice as slow. None: nothing to compare yet."""
        return self._engines[engine].score

    def surcharge(self, engine: int) -> float:
        """The share to be added to the engine's price."""
        return 0.0 if self._engines[engine].state is _WELL else SURCHARGE

    def returned(self, engine: int) -> None:
        """The engine was taken out and is back: on probation, until it has shown itself well."""
        row = self._engines[engine]
        row.state = State.PROBATION
        row.high = row.low = 0
        row.score = None
        row.empty()

    def start_over(self, engine: int) -> None:
        """The engine is a new process, or predictions for it now rest on another curve: a new baseline."""
        row = self._engines[engine]
        row.start_over()
        row.state = _WELL

    def calm(self, engine: int) -> bool:
        """Whether nothing speaks for the engine's having changed."""
        row = self._engines[engine]
        return row.state is _WELL and row.high == 0


def _judge(row: _Engine, score: float) -> bool:
    """Count a window's score; returns whether the state changed."""
    wanted = FAR_OFF if row.state is State.PROBATION else DRIFTED
    row.high = row.high + 1 if score >= wanted else 0
    row.low = row.low + 1 if score <= WELL else 0
    if row.high >= SUSTAINED and row.state is not State.TAKE_OUT:
        row.state = State(row.state + 1)
    elif row.low >= SUSTAINED and row.state is not _WELL:
        row.state = _WELL
    else:
        return False
    row.high = row.low = 0
    return True
