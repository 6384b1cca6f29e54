"""The one place where a request is entered and settled.

Arriving and settling move the counters, the histograms and the journal together, so that none of them can
know of a request that another does not, or of one twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from narwhal.accounting.counters import Counters, EngineCounters
from narwhal.accounting.histogram import DURATION_S, LAG_S, SIZE_BYTES, TPOT_S, TTFT_S, WAIT_S, Histogram
from narwhal.accounting.rate import Rate
from narwhal.accounting.record import Record, Settled
from narwhal.config import FleetConfig
from narwhal.fleet.table import Phase
from narwhal.outcomes import OUTCOMES, Counter

_PREFILL, _DECODE = Phase.PREFILL, Phase.DECODE


_SERVED = Counter.SERVED  # a look-up in the class is slow


class Accounts:
    """All figures of one router."""

    __slots__ = (
        "_journal", "_slo", "body_bytes", "counters", "duration", "engines", "good", "loop_lag", "tpot",
        "ttft", "waits",
    )  # fmt: skip

    def __init__(self, config: FleetConfig, journal: Callable[[Settled], None] | None = None) -> None:
        """`journal` takes each settled request, for its row, and must not block."""
        self._journal = journal
        self._slo = config.slo
        self.counters = Counters()
        self.engines = EngineCounters(len(config.engines))
        # The targets are bounds too, so that the share of requests that met them can be read off.
        self.ttft = Histogram((*TTFT_S, config.slo.ttft_s))
        self.tpot = Histogram((*TPOT_S, config.slo.tpot_s))
        self.waits = tuple(Histogram(WAIT_S) for _ in Phase)
        self.duration = {counter: Histogram(DURATION_S) for counter in Counter}
        self.body_bytes = Histogram(SIZE_BYTES)
        self.loop_lag = Histogram(LAG_S)
        self.good = Rate()  # served within both targets

    def copy(self) -> Self:
        """The figures of this instant; the copy has no journal."""
        other: Self = type(self).__new__(type(self))
        other._copy(self)
        return other

    def _copy(self, other: Accounts) -> None:
        self._journal = None
        self._slo = other._slo
        self.counters = other.counters.copy()
        self.engines = other.engines.copy()
        self.ttft, self.tpot = other.ttft.copy(), other.tpot.copy()
        self.waits = tuple([one.copy() for one in other.waits])
        self.duration = {counter: one.copy() for counter, one in other.duration.items()}
        self.body_bytes, self.loop_lag = other.body_bytes.copy(), other.loop_lag.copy()
        self.good = other.good.copy()

    def arrive(self, request_id: str, route: str, *, now: float, received_at: float) -> Record:
        """Enter a request that reached a completion route.

        `now` is the loop's clock, `received_at` the same moment in seconds since 1970.
        """
        self.counters.arrive()
        return Record(request_id, route, now, received_at, self._slo.ttft_s, self._slo.tpot_s)

    def settle(
        self,
        record: Record,
        outcome: str,
        *,
        now: float,
        status: int | None = None,
        error: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        """Enter how it ended: `status` is the HTTP status that was sent (None: none was), `error` what was
        said of it and `details` its figures.

        Raises RuntimeError if it has ended before, KeyError for what is no outcome.
        """
        if record.ended is not None:
            raise RuntimeError(f"request {record.request_id} has ended before; now it would end {outcome}")
        counter = OUTCOMES[outcome].counter
        record.ended = now
        self.counters.end(outcome, sized=record.sized is not None)
        self.counters.retries += max(0, len(record.attempts) - 1)
        if counter is _SERVED and record.met_slo:
            self.counters.within_slo += 1
            self.good.count(now)
        self._measure(record, counter, now)
        if self._journal is not None:
            self._journal(Settled(record, outcome, counter.value, status, error, details))

    def _measure(self, record: Record, counter: Counter, now: float) -> None:
        histogram = self.duration[counter]
        histogram.observe(now - record.arrived)
        if record.request_bytes is not None:
            self.body_bytes.observe(record.request_bytes)
        if record.ttft_s is not None:
            self.ttft.observe(record.ttft_s)
        if record.tpot_s is not None:
            self.tpot.observe(record.tpot_s)
        for attempt in record.attempts:
            self.counters.continuations += attempt.continues_at is not None
            if attempt.prefill_waited_s is not None:
                histogram = self.waits[_PREFILL]
                histogram.observe(attempt.prefill_waited_s)
            if attempt.decode_waited_s is not None:
                histogram = self.waits[_DECODE]
                histogram.observe(attempt.decode_waited_s)
