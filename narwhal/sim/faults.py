"""What a simulated engine can be told to do wrong.

A fault is asked for by one request (the body's `sim.fault`) or set on an engine (`engine.faults`, or `POST
/sim/faults`), where it can be limited to one leg, to a number of requests, or to a share of them. The table
below names them all. The code that writes an answer asks, at each place where something can go wrong, whether
the request has the fault that belongs there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from random import Random
from typing import Any


class Leg(StrEnum):
    """What a completion request is to the engine that gets it."""

    PREFILL = "prefill"  # one token, and the KV cache kept for another engine
    DECODE = "decode"  # the prompt's KV cache comes from another engine
    WHOLE = "whole"  # no handoff on either side: this engine does everything


class FaultName(StrEnum):
    """The names; `DESCRIPTIONS` says what each does."""

    REFUSE = "refuse"
    RESET = "reset"
    HANG = "hang"
    SLOW_FIRST_TOKEN = "slow_first_token"
    STALL = "stall"
    DIE_AFTER = "die_after"
    BAD_STATUS = "bad_status"
    ERROR_IN_STREAM = "error_in_stream"
    IDS_MISSING = "ids_missing"
    IDS_NULL = "ids_null"
    IDS_BOOLEAN = "ids_boolean"
    IDS_NEGATIVE = "ids_negative"
    IDS_FLOAT = "ids_float"
    IDS_STRING = "ids_string"
    IDS_NESTED = "ids_nested"
    IDS_TOO_LARGE = "ids_too_large"
    BROKEN_JSON = "broken_json"
    BROKEN_CHUNKING = "broken_chunking"
    CONTENT_LENGTH = "content_length"
    NO_DONE = "no_done"
    OUTPUT_AFTER_DONE = "output_after_done"
    NO_HANDOFF = "no_handoff"
    GONE_HANDOFF = "gone_handoff"
    BYTE_AT_A_TIME = "byte_at_a_time"
    HUGE_EVENT = "huge_event"
    UNHEALTHY = "unhealthy"


DESCRIPTIONS: Mapping[FaultName, str] = {
    FaultName.REFUSE: "close the listening socket and idle connections; for `seconds`, if given",
    FaultName.RESET: "reset the connection when the request is in, or (`at`: accept) as soon as it is opened",
    FaultName.HANG: "read the request and never answer",
    FaultName.SLOW_FIRST_TOKEN: "take `seconds` more before the first token (prefill: before the reply)",
    FaultName.STALL: "fall silent after `after` output events, for `seconds` or, without them, for ever",
    FaultName.DIE_AFTER: (
        "end the connection after `after` output events (prefill: amid the reply), `how`: reset, close "
        "(between two events), or truncate (amid an event)"
    ),
    FaultName.BAD_STATUS: "answer with `status` and an error body",
    FaultName.ERROR_IN_STREAM: "after `after` output events send an error of code `status`, then [DONE]",
    FaultName.IDS_MISSING: "leave token_ids out, from output event `after` + 1 on",
    FaultName.IDS_NULL: "send null for token_ids, from output event `after` + 1 on",
    FaultName.IDS_BOOLEAN: "send [true] for token_ids, from output event `after` + 1 on",
    FaultName.IDS_NEGATIVE: "send [-1] for token_ids, from output event `after` + 1 on",
    FaultName.IDS_FLOAT: "send [7.0] for token_ids, from output event `after` + 1 on",
    FaultName.IDS_STRING: 'send ["7"] for token_ids, from output event `after` + 1 on',
    FaultName.IDS_NESTED: "send [[7]] for token_ids, from output event `after` + 1 on",
    FaultName.IDS_TOO_LARGE: "send [2147483648] for token_ids, from output event `after` + 1 on",
    FaultName.BROKEN_JSON: "cut the JSON of output event `after` + 1 short (prefill: that of the reply)",
    FaultName.BROKEN_CHUNKING: "give output event `after` + 1 (prefill: the reply) a malformed chunk size",
    FaultName.CONTENT_LENGTH: "declare `size` bytes more in a JSON reply than come, then close",
    FaultName.NO_DONE: "end the stream properly, but without [DONE]",
    FaultName.OUTPUT_AFTER_DONE: "send one more output event after [DONE]",
    FaultName.NO_HANDOFF: "answer a prefill leg without kv_transfer_params",
    FaultName.GONE_HANDOFF: "answer a prefill leg with the handoff of an engine that is gone",
    FaultName.BYTE_AT_A_TIME: "write the whole reply one byte at a time",
    FaultName.HUGE_EVENT: "put `size` bytes of text into output event `after` + 1 (prefill: into the reply)",
    FaultName.UNHEALTHY: "answer /health with `status`",
}

FALSE_IDS: Mapping[FaultName, bytes | None] = {
    FaultName.IDS_MISSING: None,
    FaultName.IDS_NULL: b"null",
    FaultName.IDS_BOOLEAN: b"[true]",
    FaultName.IDS_NEGATIVE: b"[-1]",
    FaultName.IDS_FLOAT: b"[7.0]",
    FaultName.IDS_STRING: b'["7"]',
    FaultName.IDS_NESTED: b"[[7]]",
    FaultName.IDS_TOO_LARGE: b"[2147483648]",
}

_LEGS = {
    "both": frozenset(Leg),
    "prefill": frozenset((Leg.PREFILL,)),
    "decode": frozenset((Leg.DECODE, Leg.WHOLE)),  # whoever generates
}
_ENGINE_ONLY = frozenset((FaultName.REFUSE, FaultName.UNHEALTHY))
_CHOICES = {"leg": tuple(_LEGS), "how": ("reset", "close", "truncate"), "at": ("request", "accept")}


@dataclass(slots=True)
class Fault:
    """One fault: which, for which requests, with what figures. Raises ValueError for a bad value."""

    name: FaultName
    leg: str = "both"  # both | prefill | decode (which includes requests that are not split)
    count: int | None = None  # strikes the next `count` requests it fits, then no more
    probability: float = 1.0
    after: int = 0  # output events that go well
    seconds: float | None = None
    status: int = 500
    size: int = 1 << 20  # bytes
    how: str = "reset"
    at: str = "request"

    def __post_init__(self) -> None:
        try:
            self.name = FaultName(self.name)
        except ValueError:
            raise ValueError(f"no fault is called {self.name!r}; there are {', '.join(FaultName)}") from None
        for field, choices in _CHOICES.items():
            if getattr(self, field) not in choices:
                raise ValueError(
                    f"{field} is {getattr(self, field)!r}; it must be one of {', '.join(choices)}"
                )
        for field in ("after", "size", "status", "count"):
            value = getattr(self, field)
            if field == "count" and value is None:
                continue
            if type(value) is not int or value < 0:
                raise ValueError(f"{field} is {value!r}; it must be an integer, 0 or more")
        for field in ("probability", "seconds"):
            value = getattr(self, field)
            if field == "seconds" and value is None:
                continue
            if type(value) not in (int, float) or value < 0:
                raise ValueError(f"{field} is {value!r}; it must be a number, 0 or more")

    @property
    def engine_only(self) -> bool:
        """It makes no sense for one request that has been read."""
        return (
            self.name in _ENGINE_ONLY
            or self.at == "accept"
            or self.count is not None
            or self.probability != 1
        )

    def fits(self, leg: Leg) -> bool:
        return leg in _LEGS[self.leg]


_FIELDS = frozenset(field.name for field in fields(Fault))


def read_fault(value: Any) -> Fault:
    """A fault from JSON: its name, or an object of `Fault`'s fields. Raises ValueError."""
    if isinstance(value, str):
        return Fault(FaultName(value) if value in DESCRIPTIONS else value)  # type: ignore[arg-type]
    if not isinstance(value, dict) or "name" not in value:
        raise ValueError(f"a fault is a name or an object with a name; this is {value!r}")
    if unknown := value.keys() - _FIELDS:
        raise ValueError(
            f"a fault has no field {', '.join(sorted(unknown))}; it has {', '.join(sorted(_FIELDS))}"
        )
    return Fault(**value)


def read_faults(value: Any) -> list[Fault]:
    """One fault or a list of them from JSON. Raises ValueError."""
    return [read_fault(entry) for entry in (value if isinstance(value, list) else [value])]


class EngineFaults:
    """The faults set on an engine. `changed` is called after each change, since some act at once."""

    def __init__(self, seed: int = 0) -> None:
        self._faults: list[Fault] = []
        self._random = Random(seed)
        self.changed: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._faults)

    def set(self, *faults: Fault | str) -> None:
        """Let these be the engine's faults, in place of those it had; none: it is well."""
        self._faults = [read_fault(fault) if isinstance(fault, str) else fault for fault in faults]
        self.changed()

    def lift(self, fault: Fault) -> None:
        """Take one fault away, if it is still set."""
        if any(entry is fault for entry in self._faults):
            self.set(*(entry for entry in self._faults if entry is not fault))

    def find(self, name: FaultName) -> Fault | None:
        """The fault of that name, if it is set, whichever requests it is for."""
        return next((fault for fault in self._faults if fault.name == name), None)

    def strike(self, leg: Leg) -> dict[FaultName, Fault]:
        """The faults that hit a request of this leg."""
        fitting = (fault for fault in self._faults if fault.fits(leg) and fault.at == "request")
        return {fault.name: fault for fault in fitting if self._hits(fault)}

    def strikes_connection(self) -> bool:
        """Whether a connection is to be reset as soon as it is opened."""
        return any(
            fault.name is FaultName.RESET and fault.at == "accept" and self._hits(fault)
            for fault in self._faults
        )

    def _hits(self, fault: Fault) -> bool:
        """Throw the dice, and count the fault down if it hits."""
        if fault.count == 0 or self._random.random() >= fault.probability:
            return False
        if fault.count is not None:
            fault.count -= 1
        return True
