"""The table of outcomes: every way a request can end, in one place.

A reply's status and envelope, the counter that moves, the metric's label, the journal's `outcome` and the
documentation's table are all read from here, so they can't disagree. Code that ends a request names a row and
fills in its message; it never writes a status or an error type of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson


class Counter(StrEnum):
    """The global counters; each request to a completion route ends in exactly one."""

    SERVED = "served"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    REFUSED = "refused"
    INVALID_REQUESTS = "invalid_requests"


class RetryAfter(StrEnum):
    """What the Retry-After header says."""

    NEVER = "never"  # no header, and `x-should-retry: false`: the same request would end the same way
    NONE = "none"  # no header and no advice
    ONE = "1"  # one second
    ONE_OR_NEVER = "1 or never"  # one second; where the ending is hopeless, as NEVER
    OVERRUN = "overrun"  # the projected overrun, rounded up, at least one second


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row of the table."""

    name: str  # the `reason` of the journal and of the metric's label
    counter: Counter  # their `outcome`
    status: int | None  # None: nothing is sent (served replies carry the engine's own, cancelled ones none)
    type: str | None
    code: str | None
    retry_after: RetryAfter
    when: str  # for people: the condition
    terminal_code: str | None = None  # `code` of the event that ends a stream already under way
    param: str = "null"  # for people: what the envelope's `param` says


_I, _N, _O = "invalid_request_error", RetryAfter.NEVER, RetryAfter.ONE
_INVALID, _REJECTED, _EXPIRED = Counter.INVALID_REQUESTS, Counter.REJECTED, Counter.EXPIRED
_FAILED, _CANCELLED, _REFUSED = Counter.FAILED, Counter.CANCELLED, Counter.REFUSED

_ROWS = (
    Outcome("served", Counter.SERVED, 200, None, None, RetryAfter.NONE, "the whole answer was relayed"),
    # What the client sent.
    Outcome("invalid_json", _INVALID, 400, _I, "invalid_json", _N, "the body is not valid JSON"),
    Outcome("invalid_body", _INVALID, 400, _I, "invalid_body", _N, "the body is not a JSON object"),
    Outcome(
        "invalid_field", _INVALID, 400, _I, None, _N,
        "a field or header that the router reads has the wrong type or range",
        param="the field, with its path: `messages[2].role`; or the header: `x-slo-ttft-ms`",
    ),
    Outcome(
        "unsupported_sampling_width", _INVALID, 400, _I, "unsupported_sampling_width", _N,
        "`n` > 1 or `best_of` > 1", param="`n`, `best_of`",
    ),
    Outcome(
        "unsupported_value", _INVALID, 400, _I, "unsupported_value", _N,
        "not streaming, and asks for audio, a modality other than text, or a tool that is not a function",
        param="`audio`, `modalities`, `tools[0]`",
    ),
    Outcome(
        "model_not_found", _INVALID, 404, _I, "model_not_found", _N,
        "the model differs from the configured one", param="`model`",
    ),
    Outcome(
        "request_too_large", _INVALID, 413, "request_too_large", "request_too_large", _N,
        "the body is larger than `serving.max_request_bytes`",
    ),
    Outcome(
        "malformed_http", _INVALID, 400, _I, "malformed_http", _N,
        "the body's transfer coding is broken",
    ),
    Outcome(
        "engine_rejected", _INVALID, None, _I, None, _N,
        "an engine answered 4xx: the request's own fault; its status and message are passed on",
        "failed", param="the engine's",
    ),
    # The door.
    Outcome(
        "retention_full", _REJECTED, 429, "overloaded", "retention_full", _O,
        "`serving.retention_limit` requests are held already",
    ),
    Outcome(
        "queue_full", _REJECTED, 429, "overloaded", "queue_full", _O,
        "`serving.queue_capacity` requests wait already",
    ),
    Outcome(
        "backend_unavailable", _REJECTED, 503, "backend_unavailable", "backend_unavailable", _O,
        "no engine is eligible for a leg", "failed",
    ),
    Outcome(
        "sockets_exhausted", _REJECTED, 503, "overloaded", "sockets_exhausted", _O,
        "the router has no file descriptor or local port left to connect to an engine", "failed",
    ),
    Outcome("standby", _REJECTED, 503, "not_ready", "standby", _O, "the router is standby"),
    Outcome("fenced", _REJECTED, 503, "not_ready", "fenced", _O, "the router is fenced"),
    Outcome(
        "maintenance", _REJECTED, 503, "not_ready", "maintenance", _O, "the whole fleet is in maintenance"
    ),
    Outcome(
        "monitoring_degraded", _REJECTED, 503, "not_ready", "monitoring_degraded", _O,
        "the router's monitoring is degraded",
    ),
    Outcome("stopping", _REJECTED, 503, "not_ready", "stopping", _O, "the router is shutting down"),
    Outcome(
        "ttft_projected", _REFUSED, 429, "refused", "ttft_projected", RetryAfter.OVERRUN,
        "the projected TTFT exceeds the budget although the prompt alone fits",
    ),
    Outcome(
        "prompt_exceeds_ttft", _REFUSED, 429, "refused", "prompt_exceeds_ttft", _N,
        "the prompt alone exceeds the TTFT budget on every eligible engine",
    ),
    Outcome(
        "tpot_projected", _REFUSED, 429, "refused", "tpot_projected", _O,
        "with the request, every decode engine is projected to exceed the TPOT target",
    ),
    Outcome(
        "kv_projected", _REFUSED, 429, "refused", "kv_projected", RetryAfter.ONE_OR_NEVER,
        "no decode engine is projected to have room for the request's KV cache",
    ),
    # Time.
    Outcome(
        "queue_expired", _EXPIRED, 504, "expired", "queue_expired", _N,
        "the wait for a seat reached `serving.queue_timeout_s`", "expired",
    ),
    Outcome(
        "deadline_expired", _EXPIRED, 504, "expired", "deadline_expired", _N,
        "`serving.request_timeout_s`, counted from arrival, passed", "expired",
    ),
    # The engines.
    Outcome(
        "connect_failed", _FAILED, 502, "engine", "connect_failed", RetryAfter.NONE,
        "an engine could not be reached", "failed",
    ),
    Outcome(
        "engine_timeout", _FAILED, 504, "engine", "engine_timeout", RetryAfter.NONE,
        "an engine did not answer, or stopped sending, within the leg's time limit", "failed",
    ),
    Outcome(
        "engine_status", _FAILED, 502, "engine", "engine_status", RetryAfter.NONE,
        "an engine answered with an error status", "failed",
    ),
    Outcome(
        "engine_error", _FAILED, 502, "engine", "engine_error", RetryAfter.NONE,
        "an engine sent an error object in its stream", "failed",
    ),
    Outcome(
        "handoff_failed", _FAILED, 502, "handoff", "handoff_failed", RetryAfter.NONE,
        "the prefill leg's reply held no usable handoff", "failed",
    ),
    Outcome(
        "broken_stream", _FAILED, 502, "engine", "broken_stream", RetryAfter.NONE,
        "an engine's reply was cut short or is not what the protocol allows", "failed",
    ),
    Outcome(
        "token_ids", _FAILED, 502, "engine", "token_ids", RetryAfter.NONE,
        "an event with output lacks a valid list of token IDs", "failed",
    ),
    Outcome(
        "assembly", _FAILED, 502, "assembly", "assembly", RetryAfter.NONE,
        "the engine's events can't be put together to one response", "failed",
    ),
    Outcome(
        "response_too_large", _FAILED, 502, "assembly", "response_too_large", RetryAfter.NONE,
        "the response exceeds `serving.max_response_bytes`", "failed",
    ),
    Outcome(
        "shutdown", _FAILED, 503, "not_ready", "shutdown", _O,
        "the router stopped before the answer was complete", "failed",
    ),
    Outcome(
        "internal_error", _FAILED, 500, "internal_error", "internal_error", RetryAfter.NONE,
        "a fault of the router's own; its log has the traceback", "failed",
    ),
    # The client.
    Outcome(
        "disconnected", _CANCELLED, None, None, None, RetryAfter.NONE, "the client closed its connection"
    ),
    Outcome(
        "body_timeout", _CANCELLED, 408, "request_timeout", "body_timeout", RetryAfter.NONE,
        "the client stopped sending its body for `serving.body_timeout_s`",
    ),
)  # fmt: skip

OUTCOMES: dict[str, Outcome] = {row.name: row for row in _ROWS}


@dataclass(slots=True)
class Ending(Exception):
    """How one request ended: a row of the table with what is particular to this request.

    Raised to leave the way of a request early; never shown to the client as anything but its envelope.
    """

    name: str
    message: str = ""
    param: str | None = None
    status: int | None = None  # an engine's own status, where the row passes it on
    overrun_s: float = 0.0  # for RetryAfter.OVERRUN
    details: dict[str, Any] = field(default_factory=dict)
    code: str | int | None = None  # an engine's own code, where the row passes it on
    error_type: str | None = None  # likewise
    hopeless: bool = False  # for RetryAfter.ONE_OR_NEVER: the same request would end the same way
    logged: str = ""  # what logs and the journal say instead of a message that quotes an engine

    @property
    def outcome(self) -> Outcome:
        """The row."""
        return OUTCOMES[self.name]

    @property
    def http_status(self) -> int:
        """The status to answer with, if nothing has been sent yet."""
        return self.status or self.outcome.status or 500

    @property
    def for_the_log(self) -> str:
        """The message without an engine's own words, which may quote the prompt or the output."""
        return self.logged or self.message

    def headers(self) -> list[tuple[str, str]]:
        """Retry advice for the client."""
        rule = self.outcome.retry_after
        if rule is RetryAfter.NEVER or self.hopeless:
            return [("x-should-retry", "false")]
        if rule in (RetryAfter.ONE, RetryAfter.ONE_OR_NEVER):
            return [("retry-after", "1")]
        if rule is RetryAfter.OVERRUN:
            return [("retry-after", str(max(1, math.ceil(self.overrun_s))))]
        return []

    def envelope(self) -> bytes:
        """The OpenAI error envelope as JSON."""
        row = self.outcome
        error: dict[str, Any] = {
            "message": self.message or row.when,
            "type": self.error_type or row.type,
            "param": self.param,
            "code": self.code if self.code is not None else row.code,
        }
        if self.details:
            error["details"] = self.details
        return orjson.dumps({"error": error})

    def terminal_event(self) -> bytes:
        """The event that ends a stream already under way; no `[DONE]` follows it."""
        error = {
            "message": self.message or self.outcome.when,
            "type": "decode",
            "param": None,
            "code": self.outcome.terminal_code or "failed",
        }
        return b"data: " + orjson.dumps({"error": error}) + b"\n\n"
