"""The counters: plain integers, added to by the loop and read by whoever asks.

Every request to a completion route is counted once when it arrives and once when it ends, so that at every
instant

    offered == served + failed + expired + cancelled + rejected + refused + invalid_requests + in flight

The figures on the left and on the right are counted apart: `law_holds` compares what was counted, it does not
derive the one from the other.
"""

from __future__ import annotations

from array import array
from typing import Self

from narwhal.accounting.histogram import RATIO, Histogram
from narwhal.fleet.table import Phase
from narwhal.outcomes import OUTCOMES, Counter


class Counters:
    """What became of requests."""

    __slots__ = (
        "continuations", "endings", "in_flight", "offered", "retries", "unsized_offered", "within_slo",
    )  # fmt: skip

    def __init__(self) -> None:
        self.offered = 0
        self.unsized_offered = 0  # of these, the ones that ended before their input length was known
        self.in_flight = 0
        self.endings = dict.fromkeys(OUTCOMES, 0)  # by name of the outcome
        self.retries = 0  # attempts beyond each request's first
        self.continuations = 0  # of these, the ones that went on with an answer
        self.within_slo = 0  # served, and both latency targets met

    def arrive(self) -> None:
        """Count a request that reached a completion route."""
        self.offered += 1
        self.in_flight += 1

    def end(self, outcome: str, *, sized: bool) -> None:
        """Count how one request ended; `sized` says whether its input length was known by then.

        Raises KeyError for what is no outcome and RuntimeError if no request is in flight: it was ended
        twice.
        """
        if self.in_flight <= 0:
            raise RuntimeError(f"no request is in flight that could end ({outcome})")
        self.endings[outcome] += 1
        self.in_flight -= 1
        if not sized:
            self.unsized_offered += 1

    def total(self, counter: Counter) -> int:
        """The requests that ended under one counter, whatever the reason."""
        return sum(count for name, count in self.endings.items() if OUTCOMES[name].counter is counter)

    @property
    def admitted(self) -> int:
        """Requests that were let in and have run to an end: served, failed or expired."""
        return sum(self.total(one) for one in (Counter.SERVED, Counter.FAILED, Counter.EXPIRED))

    def law_holds(self) -> bool:
        """Whether every request offered has ended once or is in flight."""
        return self.offered == sum(self.endings.values()) + self.in_flight

    def snapshot(self) -> dict[str, int]:
        """The figures of the law by name, and `unsized_offered`."""
        return {
            "offered": self.offered,
            "unsized_offered": self.unsized_offered,
            **{counter.value: self.total(counter) for counter in Counter},
            "in_flight": self.in_flight,
        }

    def copy(self) -> Self:
        """The figures of this instant."""
        other = type(self)()
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.endings = dict(self.endings)
        return other


class EngineCounters:
    """What happened on each engine, as flat columns; an engine is its index in the fleet's table.

    `tokens`, `usage_disagreements` and `output_after_done` are added to by whoever ends a leg.
    """

    __slots__ = ("failures", "legs", "output_after_done", "tokens", "ttft_ratio", "usage_disagreements")

    def __init__(self, engines: int) -> None:
        self.legs = tuple(_zeros(engines) for _ in Phase)  # legs started, by phase
        self.tokens = _zeros(engines)  # output tokens relayed
        self.usage_disagreements = _zeros(engines)  # its usage.completion_tokens was not what was counted
        self.output_after_done = _zeros(engines)  # events with output after [DONE]
        self.ttft_ratio = [Histogram(RATIO) for _ in range(engines)]  # seen TTFT of the projected one
        self.failures: dict[tuple[int, Phase, str], int] = {}  # by engine, phase, and name of the outcome

    def add(self) -> None:
        """The fleet has one more engine."""
        for column in (*self.legs, self.tokens, self.usage_disagreements, self.output_after_done):
            column.append(0)
        self.ttft_ratio.append(Histogram(RATIO))

    def leg_started(self, engine: int, phase: Phase) -> None:
        """Count a leg."""
        self.legs[phase][engine] += 1

    def projected(self, engine: int, ratio: float) -> None:
        """Count a first token by how long it took of what was projected, for the engine that prefilled."""
        self.ttft_ratio[engine].observe(ratio)

    def leg_failed(self, engine: int, phase: Phase, outcome: str) -> None:
        """Count a leg's failure by the outcome its request has, or would have had without another attempt.

        Raises KeyError for what is no outcome, since each name becomes a time series.
        """
        key = (engine, phase, OUTCOMES[outcome].name)
        self.failures[key] = self.failures.get(key, 0) + 1

    def copy(self) -> Self:
        """The figures of this instant."""
        other = type(self)(0)
        other.legs = tuple(column[:] for column in self.legs)
        other.tokens = self.tokens[:]
        other.usage_disagreements = self.usage_disagreements[:]
        other.output_after_done = self.output_after_done[:]
        other.ttft_ratio = [one.copy() for one in self.ttft_ratio]
        other.failures = dict(self.failures)
        return other


def _zeros(count: int) -> array[int]:
    return array("Q", bytes(8 * count))
