"""The line that shows how a run is going.

It is drawn by the loop that also takes the time, so it is one line, twice a second, of figures that are kept
as they come: drawing it takes a fraction of a millisecond.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.text import Text

from narwhal.harness.figures import duration
from narwhal.harness.load import Load
from narwhal.harness.measures import percentile
from narwhal.harness.run import Runner
from narwhal.harness.sample import Outcome, Sample

if TYPE_CHECKING:
    from rich.console import Console

_EVERY_S = 0.5
_LAST = 500  # TTFTs that the line's percentiles are of
_BAR = 20


class Live:
    """The line; a context manager. On anything but a terminal it shows nothing."""

    def __init__(self, console: Console, load: Load) -> None:
        self._console = console
        self._load = load
        self._shown = console.is_terminal and not console.is_dumb_terminal
        self._handle: asyncio.TimerHandle | None = None
        self._runner: Runner | None = None
        self._ttfts: deque[float] = deque(maxlen=_LAST)
        self._recent: deque[tuple[float, bool]] = deque()  # when requests ended lately, and whether good
        self._refused = self._failed = self._ended = 0

    def show(self, runner: Runner) -> None:
        """Begin to show a run."""
        self._runner = runner
        if self._shown:
            self._handle = asyncio.get_running_loop().call_later(_EVERY_S, self._draw)

    def take(self, sample: Sample) -> None:
        """One more request is over."""
        if not self._shown:
            return
        self._ended += 1
        self._refused += sample.outcome is Outcome.REFUSED
        self._failed += sample.outcome is Outcome.FAILED
        if sample.outcome is Outcome.SERVED:
            self._recent.append((time.monotonic(), sample.good is not False))
            if sample.ttft_s is not None:
                self._ttfts.append(sample.ttft_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._console.file.write("\r\x1b[2K")
            self._console.file.flush()

    def _draw(self) -> None:
        assert self._runner is not None
        line = Text(self.line(self._runner, time.monotonic()), no_wrap=True, overflow="ellipsis")
        line.truncate(max(1, self._console.width - 1))
        self._console.file.write("\r\x1b[2K" + line.plain)
        self._console.file.flush()
        self._handle = asyncio.get_running_loop().call_later(_EVERY_S, self._draw)

    def line(self, runner: Runner, now: float) -> str:
        """What the line says."""
        run, load = runner.run, self._load
        while self._recent and self._recent[0][0] < now - 5:
            self._recent.popleft()
        rounds = sum(len(measured.rounds) for measured in run.points)
        of_all = len(load.points) * load.rounds
        current = run.points[-1] if run.points else None
        done, left = self._progress(runner, now, rounds, of_all)
        parts = ["━" * round(done * _BAR) + "╌" * (_BAR - round(done * _BAR))]
        if current is not None:
            parts.append(f"{current.point}, round {len(current.rounds)} of {load.rounds}")
        span = min(5.0, max(now - run.epoch, 0.1))
        parts.append(f"{runner.generator.in_flight} in flight, {len(self._recent) / span:.1f}/s served")
        if self._ttfts:
            ordered = sorted(self._ttfts)
            halves = (duration(percentile(ordered, percent)) for percent in (50, 99))
            parts.append("TTFT p50 {} p99 {}".format(*halves))
        if run.asking.targets.given:
            parts.append(f"goodput {sum(good for _, good in self._recent) / span:.1f}/s")
        if self._refused or self._failed:
            parts.append(f"{self._refused} refused, {self._failed} failed")
        if left is not None:
            parts.append(f"{left:.0f} s left")
        return "  ".join(parts)

    def _progress(self, runner: Runner, now: float, rounds: int, of_all: int) -> tuple[float, float | None]:
        """How much is done, from 0 to 1, and the seconds that are left, if they can be told."""
        load, run = self._load, runner.run
        current = run.rounds[-1] if run.rounds else None
        if current is None:
            return 0.0, None
        begin = current.start_s - load.lead_s
        passed = now - run.epoch - begin
        if load.duration_s is not None and not load.trace:
            each = load.lead_s + load.duration_s
            inside = min(1.0, passed / each)
            left = (of_all - rounds + 1 - inside) * each
        elif load.trace:
            each = load.trace[-1].at_s or 1.0
            inside = min(1.0, passed / each)
            left = (of_all - rounds + 1 - inside) * each
        else:
            count = sum(sample.measured for sample in current.samples)
            inside = min(1.0, count / (load.requests or 1))
            left = None
        return (rounds - 1 + inside) / of_all, left
