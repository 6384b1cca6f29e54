"""What a simulated engine counts, for tests to look at and for its /metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from narwhal.sim.faults import Leg


@dataclass(slots=True)
class LegCount:
    """The completion requests of one leg. Those begun and not over are `active`."""

    started: int = 0
    finished: int = 0  # answered to the end
    aborted: int = 0  # the client left
    failed: int = 0  # ended by a fault, or for want of a handoff
    active: int = 0
    peak: int = 0  # the most that were active at once

    def start(self) -> None:
        self.started += 1
        self.active += 1
        self.peak = max(self.peak, self.active)


@dataclass(slots=True)
class Stats:
    """Counters since the engine's start, and gauges."""

    legs: dict[Leg, LegCount] = field(default_factory=lambda: {leg: LegCount() for leg in Leg})
    connections_opened: int = 0
    connections: int = 0  # open now
    prompt_tokens: int = 0
    generated_tokens: int = 0
    events: int = 0  # output events written
    pauses: int = 0  # times a stream stood still because its client did not read
    handoffs_made: int = 0
    handoffs_taken: int = 0
    handoffs_spoiled: int = 0  # handoffs asked of this producer that it did not hold, or for another prompt
    handoffs_held: int = 0  # made and not taken yet

    @property
    def active(self) -> int:
        """Completion requests begun and not over."""
        return sum(count.active for count in self.legs.values())

    def __getitem__(self, leg: Leg | str) -> LegCount:
        return self.legs[Leg(leg)]

    def lines(
        self, model: str, started_at: float, running: int, waiting: int, external: int
    ) -> Iterator[str]:
        """The engine's metrics in Prometheus' text format, vLLM's names first."""
        of = f'{{engine="0",model_name="{model}"}}'
        yield from _metric("process_start_time_seconds", "gauge", {"": started_at})
        yield from _metric("vllm:num_requests_running", "gauge", {of: running})
        yield from _metric("vllm:num_requests_waiting", "gauge", {of: waiting})
        yield from _metric("vllm:prompt_tokens_total", "counter", {of: self.prompt_tokens})
        yield from _metric("vllm:generation_tokens_total", "counter", {of: self.generated_tokens})
        yield from _metric(
            "vllm:prompt_tokens_by_source_total",
            "counter",
            {f'{of[:-1]},source="external_kv_transfer"}}': external},
        )
        for name in ("started", "finished", "aborted", "failed"):
            values = {f'{{leg="{leg}"}}': getattr(count, name) for leg, count in self.legs.items()}
            yield from _metric(f"sim:requests_{name}_total", "counter", values)
        for name in ("made", "taken", "spoiled"):
            yield from _metric(
                f"sim:handoffs_{name}_total", "counter", {"": getattr(self, f"handoffs_{name}")}
            )
        yield from _metric("sim:handoffs_held", "gauge", {"": self.handoffs_held})
        yield from _metric("sim:stream_pauses_total", "counter", {"": self.pauses})


def _metric(name: str, kind: str, values: dict[str, float]) -> Iterator[str]:
    yield f"# HELP {name} As its name says."
    yield f"# TYPE {name} {kind}"
    for labels, value in values.items():
        yield f"{name}{labels} {float(value)!r}"
