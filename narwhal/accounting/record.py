"""What one request leaves behind: a record that is filled in along its way, and the journal row made of it.

Moments are readings of the loop's clock. The row gives them relative to the arrival, which alone has a date.
Neither ever holds what was asked or answered.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from narwhal.accounting.token_accounting import TokenAccounting
from narwhal.placement.place import Offer

_DETAIL_LENGTH = 1000  # characters of an error's detail: an engine may quote the whole request in one


class LengthSource(StrEnum):
    """How a length in tokens is known."""

    TOKEN_IDS = "token_ids"  # counted
    TOKENIZER = "tokenizer"  # an engine was asked
    USAGE = "usage"  # an engine's usage said so
    EVENTS = "events"  # one for each event with output
    ESTIMATE = "estimate"


class Attempt:
    """One attempt at a request: engines by ID, None for a leg that never was."""

    __slots__ = (
        "continues_at", "decode", "decode_offer", "decode_waited_s", "error", "failure", "prefill",
        "prefill_offer", "prefill_waited_s",
    )  # fmt: skip

    def __init__(
        self,
        prefill: str | None = None,
        decode: str | None = None,
        prefill_waited_s: float | None = None,
        decode_waited_s: float | None = None,
        failure: str | None = None,
        error: str | None = None,
    ) -> None:
        self.prefill = prefill
        self.decode = decode
        self.prefill_waited_s = prefill_waited_s  # for a seat; None: it never asked for one
        self.decode_waited_s = decode_waited_s
        self.failure = failure  # the outcome its failure would have been
        self.error = error
        self.prefill_offer: Offer | None = None  # what each engine would have cost the leg
        self.decode_offer: Offer | None = None
        self.continues_at: int | None = None  # it goes on with an answer after so many tokens

    def as_row(self) -> dict[str, Any]:
        """For the journal."""
        return {
            "prefill": self.prefill,
            "decode": self.decode,
            "prefill_waited_s": _rounded(self.prefill_waited_s),
            "decode_waited_s": _rounded(self.decode_waited_s),
            "prefill_prices": self.prefill_offer,
            "decode_prices": self.decode_offer,
            "continues_at": self.continues_at,
            "failure": self.failure,
            "error": _bounded(self.error),
        }


class Record:
    """One request, from its arrival to its one outcome."""

    __slots__ = (
        "arrived", "attempts", "body_read", "client_request_id", "ended", "first_token", "handoff",
        "input_tokens", "input_tokens_from", "last_token", "output_tokens", "output_tokens_from", "prefill",
        "projected_ttft_s", "prompt_tokens", "received_at", "request_bytes", "request_id", "route", "seat",
        "sized", "slo_tpot_s", "slo_ttft_s", "stream", "token_accounting", "usage_completion_tokens",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        route: str,
        arrived: float,
        received_at: float,
        slo_ttft_s: float,
        slo_tpot_s: float,
    ) -> None:
        """`received_at` is seconds since 1970."""
        self.request_id = request_id
        self.route = route
        self.arrived = arrived
        self.received_at = received_at
        self.slo_ttft_s = slo_ttft_s
        self.slo_tpot_s = slo_tpot_s
        self.client_request_id: str | None = None
        self.stream = False
        self.request_bytes: int | None = None

        # Moments, None for those it did not live to see.
        self.body_read: float | None = None
        self.sized: float | None = None  # its input length was known
        self.seat: float | None = None  # it had a seat for prefill, or for all of it
        self.prefill: float | None = None  # the prefill leg had answered
        self.handoff: float | None = None  # the decode leg was sent, with the handoff
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.ended: float | None = None

        self.projected_ttft_s: float | None = None  # when it asked for a seat; None: nothing was known
        self.input_tokens: int | None = None
        self.input_tokens_from: LengthSource | None = None
        self.output_tokens = 0
        self.output_tokens_from: LengthSource | None = None
        self.token_accounting: TokenAccounting | None = None
        self.usage_completion_tokens: int | None = None  # the engine's own figure
        self.prompt_tokens: int | None = None  # as an engine counted them
        self.attempts: list[Attempt] = []

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token."""
        return None if self.first_token is None else self.first_token - self.arrived

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None when there are not two."""
        if self.first_token is None or self.last_token is None or self.output_tokens < 2:
            return None
        return (self.last_token - self.first_token) / (self.output_tokens - 1)

    @property
    def met_slo(self) -> bool:
        """Whether what came, came in time. A single token has no TPOT to miss; no token has no TTFT
        either."""
        return (self.ttft_s or 0.0) <= self.slo_ttft_s and (self.tpot_s or 0.0) <= self.slo_tpot_s


class Settled:
    """A record and how it ended: the journal's row, not written out yet."""

    __slots__ = ("_counter", "_details", "_error", "_outcome", "_record", "_status")

    def __init__(
        self,
        record: Record,
        outcome: str,
        counter: str,
        status: int | None,
        error: str | None,
        details: dict[str, Any] | None,
    ) -> None:
        """See row. The record must not be changed any more."""
        self._record = record
        self._outcome = outcome
        self._counter = counter
        self._status = status
        self._error = error
        self._details = details

    def row(self) -> dict[str, Any]:
        """The row; it may be made on another thread."""
        return row(self._record, self._outcome, self._counter, self._status, self._error, self._details)


def row(
    record: Record,
    outcome: str,
    counter: str,
    status: int | None,
    error: str | None,
    details: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The journal's row. `status` is the HTTP status that was sent, None if none was.

    The engines' prices are in it as they were found; whoever writes it puts them into words.
    """
    last = record.attempts[-1] if record.attempts else Attempt()
    waits = [
        waited
        for attempt in record.attempts
        for waited in (attempt.prefill_waited_s, attempt.decode_waited_s)
        if waited is not None
    ]
    disagrees = record.usage_completion_tokens not in (None, record.output_tokens)
    return {
        "request_id": record.request_id,
        "client_request_id": record.client_request_id,
        "route": str(record.route),
        "stream": record.stream,
        "received_at": record.received_at,
        "request_bytes": record.request_bytes,
        **{
            f"{name}_s": None if moment is None else _rounded(moment - record.arrived)
            for name, moment in (
                ("body_read", record.body_read),
                ("sized", record.sized),
                ("seat", record.seat),
                ("prefill", record.prefill),
                ("handoff", record.handoff),
                ("first_token", record.first_token),
                ("last_token", record.last_token),
                ("ended", record.ended),
            )
        },
        "input_tokens": record.input_tokens,
        "input_tokens_from": record.input_tokens_from,
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "output_tokens_from": record.output_tokens_from,
        "token_accounting": record.token_accounting,
        "usage_completion_tokens": record.usage_completion_tokens if disagrees else None,
        "ttft_s": _rounded(record.ttft_s),
        "tpot_s": _rounded(record.tpot_s),
        "projected_ttft_s": _rounded(record.projected_ttft_s),
        "slo_ttft_s": record.slo_ttft_s,
        "slo_tpot_s": record.slo_tpot_s,
        "engines": {"prefill": last.prefill, "decode": last.decode},
        "waited_s": _rounded(sum(waits)),
        "attempts": [attempt.as_row() for attempt in record.attempts],
        "outcome": counter,
        "reason": outcome,
        "status": status,
        "error": _bounded(error),
        "details": details or None,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _bounded(text: str | None) -> str | None:
    return text if text is None or len(text) <= _DETAIL_LENGTH else text[: _DETAIL_LENGTH - 3] + "..."
