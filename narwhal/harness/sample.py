"""One request of a run: what its client saw, and the row it leaves.

Moments are seconds since the run began. Latencies count from when the request was due, not from when it was
sent: a client that would have asked then has waited since, even if the load generator, or a connection it
had to wait for, held the request back. (Counting from the sending hides exactly the requests that a stalled
server delays most, which is known as coordinated omission.)
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How a request ended."""

    SERVED = "served"
    REFUSED = "refused"  # 429 or 503
    FAILED = "failed"
    UNFINISHED = "unfinished"  # the run was ended before it was


class TokensFrom(StrEnum):
    """How a number of tokens is known, the best first."""

    TOKEN_IDS = "token_ids"
    USAGE = "usage"
    EVENTS = "events"  # one for each event with output
    ESTIMATE = "estimate"  # a router's, in its journal
    PLAN = "plan"  # as many as were asked for


@dataclass(frozen=True, slots=True)
class Targets:
    """What a request must meet to be good; None: any."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    @property
    def given(self) -> bool:
        """Whether there is anything to meet."""
        return self.ttft_s is not None or self.tpot_s is not None


NO_TARGETS = Targets()


@dataclass(slots=True)
class Sample:
    """One request."""

    number: int
    point: int = 0  # which load of a sweep
    round: int = 0
    measured: bool = True  # not of the warm-up
    due_s: float = 0.0
    handed_s: float = 0.0  # when the generator came to it
    sent_s: float | None = None  # when it went out on a connection
    first_s: float | None = None  # the first event with output
    last_s: float | None = None
    ended_s: float | None = None
    status: int | None = None
    outcome: Outcome = Outcome.UNFINISHED
    reason: str = ""  # of a refusal: the envelope's code; of a failure: its kind
    detail: str = ""
    retry_after_s: int | None = None  # what a refusal said last
    input_tokens: int = 0
    input_from: TokensFrom = TokensFrom.PLAN
    output_tokens: int = 0
    output_from: TokensFrom = TokensFrom.EVENTS
    gaps: array[float] = field(default_factory=lambda: array("d"))  # between events with output
    oddities: tuple[str, ...] = ()  # what was wrong with it although it was served
    refusals: Counter[str] = field(default_factory=Counter)  # by reason, retried ones included
    good: bool | None = None  # met the targets; None: there are none

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_s is None else self.first_s - self.due_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None with fewer than two."""
        if self.first_s is None or self.last_s is None or self.output_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        """Time to the end of the answer."""
        return None if self.ended_s is None else self.ended_s - self.due_s

    @property
    def queued_s(self) -> float | None:
        """Time at the client: until it was sent."""
        return None if self.sent_s is None else self.sent_s - self.due_s

    @property
    def late_s(self) -> float:
        """How late the generator came to it, which is nobody's fault but its own."""
        return self.handed_s - self.due_s

    def meets(self, targets: Targets) -> bool | None:
        """Whether it was served within the targets; None if there are none.

        Of an answer that came whole only the end is known, so that must lie where both targets together
        allow it.
        """
        if not targets.given:
            return None
        if self.outcome is not Outcome.SERVED:
            return False
        if self.first_s is None:
            if targets.ttft_s is None:
                return True
            most = targets.ttft_s + (targets.tpot_s or 0.0) * max(0, self.output_tokens - 1)
            return (self.e2e_s or 0.0) <= most
        return (targets.ttft_s is None or (self.ttft_s or 0.0) <= targets.ttft_s) and (
            targets.tpot_s is None or (self.tpot_s or 0.0) <= targets.tpot_s
        )

    def tokens_between(self, start: float, end: float) -> float:
        """Its output tokens that came in [start, end). Where an event's share of the tokens is not known,
        the events share them evenly."""
        if self.first_s is None or self.last_s is None:
            came = self.ended_s if self.outcome is Outcome.SERVED else None
            return float(self.output_tokens) if came is not None and start <= came < end else 0.0
        if start <= self.first_s and self.last_s < end:
            return float(self.output_tokens)
        if end <= self.first_s or self.last_s < start:
            return 0.0
        at = self.first_s
        inside = int(start <= at < end)
        for gap in self.gaps:
            at += gap
            inside += start <= at < end
        return self.output_tokens * inside / (len(self.gaps) + 1)

    def as_row(self) -> dict[str, Any]:
        """For the file of rows: everything, in seconds to the microsecond."""
        return {
            "number": self.number,
            "point": self.point,
            "round": self.round,
            "measured": self.measured,
            "due_s": _rounded(self.due_s),
            "handed_s": _rounded(self.handed_s),
            "sent_s": _rounded(self.sent_s),
            "first_s": _rounded(self.first_s),
            "last_s": _rounded(self.last_s),
            "ended_s": _rounded(self.ended_s),
            "status": self.status,
            "outcome": self.outcome,
            "reason": self.reason,
            "detail": self.detail,
            "retry_after_s": self.retry_after_s,
            "input_tokens": self.input_tokens,
            "input_tokens_from": self.input_from,
            "output_tokens": self.output_tokens,
            "output_tokens_from": self.output_from,
            "ttft_s": _rounded(self.ttft_s),
            "tpot_s": _rounded(self.tpot_s),
            "e2e_s": _rounded(self.e2e_s),
            "queued_s": _rounded(self.queued_s),
            "gaps_s": [round(gap, 6) for gap in self.gaps],
            "oddities": self.oddities,
            "refusals": self.refusals,
            "good": self.good,
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
