"""What a test may ask of a simulated engine in a request: the body's field `sim`.

Routers pass a field they don't know to the engine as it is, so this reaches the engine wherever the request
goes. For example `"sim": {"output_tokens": 12, "output": ["reasoning", "tool_calls"], "fault": "no_done"}`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from narwhal.sim.faults import Fault, read_faults


class Output(StrEnum):
    """Kinds of output."""

    TEXT = "text"
    REASONING = "reasoning"
    REFUSAL = "refusal"
    TOOL_CALLS = "tool_calls"
    FUNCTION_CALL = "function_call"


@dataclass(frozen=True, slots=True)
class Directives:
    """The members of the body's `sim`, each of which may be left out."""

    output: tuple[Output, ...] = ()  # what comes, in this order, tokens shared out evenly; chat only
    output_tokens: int | None = None  # the model stops by itself with this token, which has no text
    text: str | None = None  # the text to answer with, instead of generated words
    tool_calls: int = 1  # how many calls the tool_calls part makes
    reasoning_field: str | None = None  # reasoning | reasoning_content; by default the engine's
    tokens_per_event: int = 1
    cached_tokens: int = 0  # how many of the prompt's tokens the engine had in its prefix cache
    finish_reason: str | None = None  # in place of stop or length
    stop_reason: str | int | None = None
    events: tuple[str, ...] | None = (
        None  # a stream to send as it stands: SSE blocks, one for each decode step
    )
    fault: tuple[Fault, ...] = field(default=())


DEFAULTS = Directives()
_TYPES: dict[str, tuple[type, ...]] = {
    "output_tokens": (int,),
    "text": (str,),
    "tool_calls": (int,),
    "tokens_per_event": (int,),
    "cached_tokens": (int,),
    "finish_reason": (str,),
    "stop_reason": (str, int),
}
_LEAST = {"output_tokens": 1, "tool_calls": 1, "tokens_per_event": 1, "cached_tokens": 0}
_NAMES = tuple(entry.name for entry in fields(Directives))


def read(value: Any) -> Directives:
    """The directives of a request. Raises ValueError, saying which member is wrong and what it may be."""
    if value is None:
        return DEFAULTS
    if not isinstance(value, dict):
        raise ValueError(f"sim is {value!r}; it must be an object")
    known: dict[str, Any] = {}
    for name, entry in value.items():
        if name not in _NAMES:
            raise ValueError(f"sim has no member {name!r}; it has {', '.join(_NAMES)}")
        known[name] = _member(name, entry)
    return Directives(**known)


def _member(name: str, entry: Any) -> Any:
    match name:
        case "fault":
            faults = tuple(read_faults(entry))
            for fault in faults:
                if fault.engine_only:
                    raise ValueError(f"sim.fault: {fault.name} like this can only be set on an engine")
            return faults
        case "output":
            parts = entry if isinstance(entry, list) else [entry]
            if not parts or not all(isinstance(part, str) and part in list(Output) for part in parts):
                raise ValueError(f"sim.output is {entry!r}; it must be one or several of {', '.join(Output)}")
            return tuple(map(Output, parts))
        case "reasoning_field":
            if entry not in ("reasoning", "reasoning_content"):
                raise ValueError(f"sim.{name} is {entry!r}; it must be reasoning or reasoning_content")
            return entry
        case "events":
            if not isinstance(entry, list) or not all(isinstance(block, str) for block in entry):
                raise ValueError("sim.events must be a list of strings")
            return tuple(entry)
    if type(entry) not in _TYPES[name]:
        raise ValueError(f"sim.{name} is {entry!r}; it must be of type {_TYPES[name][0].__name__}")
    if name in _LEAST and entry < _LEAST[name]:
        raise ValueError(f"sim.{name} is {entry}; it must be {_LEAST[name]} or more")
    return entry
