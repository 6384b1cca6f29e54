"""A run: every point's rounds, one after the other, and what they came to."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from narwhal import __version__
from narwhal.harness.endpoint import Endpoint
from narwhal.harness.generator import Asking, Draft, Generator
from narwhal.harness.load import Load, Point
from narwhal.harness.measures import Round, knee, point_summary
from narwhal.harness.sample import Outcome, Sample

# What the generator may be late by (the 99th percentile), or use of a core, before a run says that it was
# itself what limited the load.
LATE_S = 0.005
CPU_SHARE = 0.9
_HEAD_START_S = 0.01  # to get ready before the first request is due


@dataclass(slots=True)
class Measured:
    """One point of a sweep, as far as it was measured."""

    point: Point
    rounds: list[Round] = field(default_factory=list)


@dataclass(slots=True)
class Run:
    """Everything a run has to tell, at any time of it."""

    load: Load
    asking: Asking
    target: str
    points: list[Measured] = field(default_factory=list)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    epoch: float = field(default_factory=time.monotonic)
    interrupted: bool = False

    @property
    def rounds(self) -> list[Round]:
        """All, in order."""
        return [one for measured in self.points for one in measured.rounds]

    @property
    def samples(self) -> Iterator[Sample]:
        """All, warm-up included, in the order of their completion."""
        return (sample for one in self.rounds for sample in one.samples)

    def summary(self) -> dict[str, Any]:
        """The figures, as they are written to summary.json."""
        points = [
            {
                "label": str(measured.point),
                "rate": measured.point.rate,
                "concurrency": measured.point.concurrency,
                **point_summary(rounds),
            }
            for measured in self.points
            # A run may have been ended in the warm-up of a round.
            if (rounds := [one for one in measured.rounds if one.measured])
        ]
        summary: dict[str, Any] = {
            "narwhal": __version__,
            "target": self.target,
            "model": self.asking.model,
            "path": self.asking.path,
            "stream": self.asking.stream,
            "started_at": self.started_at.strftime("%Y-%m-%d %H:%M:%S UTC"),
            "load": self.load.as_summary(),
            "targets": {"ttft_s": self.asking.targets.ttft_s, "tpot_s": self.asking.targets.tpot_s},
            "interrupted": self.interrupted,
            "knee": knee(points),
            "points": points,
        }
        summary["warnings"] = list(warnings(summary))
        return summary


def warnings(summary: dict[str, Any]) -> Iterator[str]:
    """What a reader of the figures must know first."""
    points = summary["points"]
    if summary["interrupted"]:
        yield "The run was ended early; the figures are those of what was measured until then."
    strained = [point for point in points if _strained(point["generator"])]
    if strained:
        late = max(_latest(point["generator"]) for point in strained)
        cpu = max(point["generator"]["cpu_share"] for point in strained)
        yield (
            f"The load generator could not keep time{_at(strained, points)}: up to {late * 1000:.1f} ms late "
            f"(99th percentile), {cpu:.0%} of a core. The latencies include that. Lower the load, or use a "
            "faster or less busy machine."
        )
    for what, counts in (
        (
            "answers gave neither token IDs nor usage, so their output tokens are the number of events",
            [point["tokens"]["output_from"].get("events", 0) for point in points],
        ),
        ("requests failed", [point["requests"][Outcome.FAILED] for point in points]),
    ):
        counted = [point for point, count in zip(points, counts, strict=True) if count]
        if counted:
            yield f"{sum(counts):,} {what}{_at(counted, points)}."


def _latest(own: dict[str, Any]) -> float:
    return max(float((own[name] or {"p99": 0.0})["p99"]) for name in ("late_s", "loop_lag_s"))


def _strained(own: dict[str, Any]) -> bool:
    return _latest(own) > LATE_S or own["cpu_share"] > CPU_SHARE


def _at(some: list[dict[str, Any]], points: list[dict[str, Any]]) -> str:
    """Which of a sweep's points are meant."""
    return f" at {', '.join(point['label'] for point in some)}" if len(points) > 1 else ""


class Runner:
    """Carries a run out. `run` has what was measured, also while it is under way."""

    def __init__(
        self, endpoint: Endpoint, load: Load, asking: Asking, *, on_sample: Callable[[Sample], None]
    ) -> None:
        self.run = Run(load, asking, str(endpoint.access.url))
        self._on_sample = on_sample
        self._round: Round | None = None
        self.generator = Generator(endpoint, asking, epoch=self.run.epoch, on_sample=self._take)

    async def carry_out(self) -> Run:
        """Measure everything; returns early after `stop`."""
        load = self.run.load
        for index, point in enumerate(load.points):
            self.run.points.append(Measured(point))
            for number in range(load.rounds):
                if self.run.interrupted:
                    return self.run
                await self._one(index, point, number)
        return self.run

    def stop(self) -> None:
        """End the run now."""
        self.run.interrupted = True
        if self._round is not None:
            self._round.end_s = min(self._round.end_s, time.monotonic() - self.run.epoch)
        self.generator.stop()

    def _take(self, sample: Sample) -> None:
        assert self._round is not None
        self._round.samples.append(sample)
        self._on_sample(sample)

    async def _one(self, index: int, point: Point, number: int) -> None:
        load = self.run.load
        # A collection takes as long as there are samples, and would make reads late. Between rounds it may.
        gc.collect()
        gc.disable()
        begin = time.monotonic() + _HEAD_START_S
        start_s = begin - self.run.epoch + load.lead_s
        self._round = one = Round(start_s, float("inf"))
        self.run.points[-1].rounds.append(one)
        try:
            await self._carry_out(one, index, point, number, begin)
        finally:
            gc.enable()
        # A window without an end of its own, or whose requests were all due at once, ends with the last.
        last = max((sample.ended_s or 0.0 for sample in one.samples), default=start_s)
        if one.end_s == float("inf") or one.end_s <= one.start_s:
            one.end_s = max(last, one.start_s)

    async def _carry_out(self, one: Round, index: int, point: Point, number: int, begin: float) -> None:
        load, start_s = self.run.load, one.start_s
        if load.duration_s is not None:
            one.end_s = start_s + load.duration_s
        place = (index, number)
        if point.concurrency is None:
            due: list[float] = []
            drafts = load.open(point, number)
            one.own = await self.generator.open_loop(_noting(drafts, due), begin=begin, place=place)
            if load.duration_s is None or load.trace:
                one.end_s = min(one.end_s, _end_of(due, point, begin - self.run.epoch))
        else:
            one.own = await self.generator.closed_loop(
                load.closed(number),
                begin=begin,
                place=place,
                concurrency=point.concurrency,
                ramp_s=load.ramp_s,
                measure_from_s=load.lead_s,
                until_s=None if load.duration_s is None else load.lead_s + load.duration_s,
                count=load.requests,
            )


def _noting(drafts: Iterator[Draft], due: list[float]) -> Iterator[Draft]:
    for draft in drafts:
        due.append(draft.at_s)
        yield draft


def _end_of(due: list[float], point: Point, begin_s: float) -> float:
    """Where the window of an open loop with a number of requests ends: a mean gap after the last."""
    if point.rate is not None:
        gap = 1 / point.rate
    else:
        gap = (due[-1] - due[0]) / (len(due) - 1) if len(due) > 1 else 0.0
    return begin_s + due[-1] + gap if due else begin_s
