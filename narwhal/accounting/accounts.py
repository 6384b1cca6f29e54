"""The one place where a request is entered and settled.

Arriving and settling move the counters, the histograms and the journal together, so that none of them can
know of a request that another does not, or of one twice.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

from narwhal.accounting.counters import Counters, EngineCounters
from narwhal.accounting.histogram import DURATION_S, LAG_S, SIZE_BYTES, TPOT_S, TTFT_S, WAIT_S, Histogram
from narwhal.accounting.rate import Rate
from narwhal.accounting.record import Record, row
from narwhal.config import FleetConfig
from narwhal.fleet.table import Phase
from narwhal.outcomes import OUTCOMES, Counter


class Accounts:
    """All figures of one router."""

    __slots__ = (
        "_journal", "_slo", "body_bytes", "counters", "duration", "engines", "good", "loop_lag", "tpot",
        "ttft", "waits",
    )  # fmt: skip

    def __init__(self, config: FleetConfig, journal: Callable[[dict[str, Any]], None] | None = None) -> None:
        """`journal` takes each settled request's row and must not block."""
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
        other = copy.copy(self)
        other._journal = None
        other.counters = self.counters.copy()
        other.engines = self.engines.copy()
        other.waits = tuple(one.copy() for one in self.waits)
        other.duration = {counter: one.copy() for counter, one in self.duration.items()}
        for name in ("ttft", "tpot", "body_bytes", "loop_lag", "good"):
            setattr(other, name, getattr(self, name).copy())
        return other

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
        self.counters.continuations += sum(one.continues_at is not None for one in record.attempts)
        if counter is Counter.SERVED and record.met_slo:
            self.counters.within_slo += 1
            self.good.count(now)
        self.duration[counter].observe(now - record.arrived)
        if record.request_bytes is not None:
            self.body_bytes.observe(record.request_bytes)
        if record.ttft_s is not None:
            self.ttft.observe(record.ttft_s)
        if record.tpot_s is not None:
            self.tpot.observe(record.tpot_s)
        for attempt in record.attempts:
            if attempt.prefill_waited_s is not None:
                self.waits[Phase.PREFILL].observe(attempt.prefill_waited_s)
            if attempt.decode_waited_s is not None:
                self.waits[Phase.DECODE].observe(attempt.decode_waited_s)
        if self._journal is not None:
            self._journal(row(record, outcome, counter.value, status, error, details))
