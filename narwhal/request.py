"""What the router reads from a completion body, and nothing else.

A request is judged by the few fields that decide how the router runs it: is it for this model, is it a
stream, how long is its prompt, how many tokens may come. Each of them is checked for type and range; null
counts as absent. Every other field is the engine's to judge and reaches it as sent.

The checks go in the order of the table of outcomes: JSON, types and ranges, sampling width, what only a
stream can carry, and last the model; the first that fails ends the request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import StrEnum

import orjson

from narwhal._fast.body import Body, Kind
from narwhal._fast.fields import (
    Fault,
    check_messages,
    check_modalities,
    check_tools,
    foreign_modality,
    foreign_tool,
    read_prompt,
)
from narwhal.outcomes import Ending

LARGEST = 2**31 - 1
SHOWN = 64  # characters of an offending value that a message quotes

_NUMBER = re.compile(rb"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_KINDS = {
    Kind.NULL: "null",
    Kind.FALSE: "a Boolean",
    Kind.TRUE: "a Boolean",
    Kind.INT: "an integer",
    Kind.FLOAT: "a number with a fraction or exponent",
    Kind.STRING: "a string",
    Kind.ARRAY: "a list",
    Kind.OBJECT: "an object",
}
_NULL, _TRUE = Kind.NULL, Kind.TRUE
_ABSENT = (None, Kind.NULL)
_BOOLEAN = (Kind.TRUE, Kind.FALSE)
_INTEGER, _STRING, _LIST, _OBJECT = (Kind.INT,), (Kind.STRING,), (Kind.ARRAY,), (Kind.OBJECT,)
_PROMPT = (Kind.STRING, Kind.ARRAY)
_SCALARS = (*_BOOLEAN, Kind.INT, Kind.FLOAT)
_AT_LEAST = ("an integer of at least 0", "an integer of at least 1")


class Route(StrEnum):
    """The two completion routes."""

    CHAT = "chat"
    COMPLETIONS = "completions"


_CHAT = Route.CHAT


class CompletionRequest:
    """A request that passed the checks."""

    __slots__ = (
        "body", "include_usage", "max_tokens", "model", "prompt_bytes", "prompt_token_count",
        "return_token_ids", "route", "slo_tpot_s", "slo_ttft_s", "stream", "uses_max_completion_tokens",
    )  # fmt: skip

    def __init__(
        self,
        route: Route,
        body: Body,
        model: str,
        stream: bool,
        include_usage: bool,
        return_token_ids: bool,
        max_tokens: int | None,
        uses_max_completion_tokens: bool,
        prompt_token_count: int | None,
        prompt_bytes: int,
        slo_ttft_s: float | None,
        slo_tpot_s: float | None,
    ) -> None:
        self.route = route
        self.body = body
        self.model = model  # the configured one, which the body names or means
        self.stream = stream
        self.include_usage = include_usage  # the client's own `stream_options.include_usage`
        self.return_token_ids = return_token_ids
        self.max_tokens = max_tokens  # the limit an engine would go by on this route
        self.uses_max_completion_tokens = uses_max_completion_tokens
        self.prompt_token_count = prompt_token_count  # exact, if the prompt came as token IDs
        self.prompt_bytes = prompt_bytes  # of `prompt`, or of `messages` and `tools`, as sent
        self.slo_ttft_s = slo_ttft_s  # the request's own targets
        self.slo_tpot_s = slo_tpot_s

    def as_completion(self, body: Body, max_tokens: int, prompt_token_count: int) -> CompletionRequest:
        """A text completion of so many token IDs that is asked for in this request's place."""
        return CompletionRequest(
            Route.COMPLETIONS,
            body,
            self.model,
            self.stream,
            self.include_usage,
            self.return_token_ids,
            max_tokens,
            False,
            prompt_token_count,
            self.prompt_bytes,
            self.slo_ttft_s,
            self.slo_tpot_s,
        )


def read(route: Route, raw: bytes, *, model: str, headers: Mapping[bytes, bytes]) -> CompletionRequest:
    """Read a body sent to `route`, for the configured `model`.

    A body that names no model is taken to mean the configured one. `headers` have lower-case names; of them
    `x-slo-ttft-ms` and `x-slo-tpot-ms` are read. Raises Ending with one of the rows for what a client sent,
    its `param` being the field's path or the header's name.
    """
    body = _parse(raw)
    _expect(body, "model", _STRING, "a string")
    stream = _boolean(body, "stream")
    include_usage = _include_usage(body)
    return_token_ids = _boolean(body, "return_token_ids")
    _integer(body, "n", 1, False)  # too large a width has a row of its own
    _integer(body, "best_of", 1, False)
    max_tokens = _integer(body, "max_tokens", 1)
    max_completion_tokens = _integer(body, "max_completion_tokens", 1)
    _integer(body, "min_tokens", 0)
    if _expect(body, "modalities", _LIST, "a list of strings"):
        _check(check_modalities(body))
    if _expect(body, "tools", _LIST, "a list of objects"):
        _check(check_tools(body))
    prompt_token_count = None
    if route is _CHAT:
        _messages(body)
        prompt_bytes = body.value_size("messages") + body.value_size("tools")
        max_tokens = max_completion_tokens or max_tokens
    else:
        prompt_token_count = _prompt(body)
        prompt_bytes = body.value_size("prompt")
    slo_ttft_s = _target(headers, b"x-slo-ttft-ms")
    slo_tpot_s = _target(headers, b"x-slo-tpot-ms")
    _check_width(body, "n")
    _check_width(body, "best_of")
    if not stream:
        _check_values(body)
    _check_model(body, model)
    return CompletionRequest(
        route,
        body,
        model,
        stream,
        include_usage,
        return_token_ids,
        max_tokens,
        max_completion_tokens is not None,
        prompt_token_count,
        prompt_bytes,
        slo_ttft_s,
        slo_tpot_s,
    )


def _parse(raw: bytes) -> Body:
    try:
        return Body(raw)
    except ValueError as error:
        raise Ending("invalid_json", f"the body is not valid JSON: {error}") from None
    except TypeError as error:
        raise Ending("invalid_body", f"the body must be a JSON object; got {error}") from None


def _invalid(path: str, allowed: str, seen: str) -> Ending:
    return Ending("invalid_field", f"`{path}` must be {allowed}; {seen}", param=path)


def _abbreviated(raw: bytes) -> str:
    text = raw[: 4 * SHOWN].decode("utf-8", "replace")
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _seen(kind: Kind | None, raw: bytes, *, quote_text: bool = False) -> str:
    # What a client wrote as text stays out of messages unless the field is no place for prompts: messages
    # go to logs and the journal.
    if kind is None:
        return "it is missing"
    if kind in _SCALARS or (kind is Kind.STRING and quote_text):
        return f"got {_KINDS[kind]} ({_abbreviated(raw)})"
    return "got an empty list" if raw == b"[]" else f"got {_KINDS[kind]}"


def _check(fault: Fault | None) -> None:
    if fault is not None:
        raise _invalid(fault.path, fault.allowed, _seen(fault.kind, fault.seen))


def _expect(
    body: Body, key: str, kinds: tuple[Kind, ...], allowed: str, quote_text: bool = True
) -> Kind | None:
    """The kind of the value of `key`, which is one of `kinds`; None if it is absent or null."""
    kind = body.kind(key)
    if kind is None or kind is _NULL:
        return None
    if kind not in kinds:
        raise _invalid(key, allowed, _seen(kind, body.raw_value(key) or b"", quote_text=quote_text))
    return kind


def _boolean(body: Body, key: str) -> bool:
    return _expect(body, key, _BOOLEAN, "a Boolean") is _TRUE


def _integer(body: Body, key: str, lowest: int, bounded: bool = True) -> int | None:
    allowed = _AT_LEAST[lowest]
    if _expect(body, key, _INTEGER, allowed) is None:
        return None
    number = body.natural(key)
    if number < lowest or (bounded and number > LARGEST):
        if number > LARGEST:
            allowed = f"an integer from {lowest} to {LARGEST}"
        raise _invalid(key, allowed, f"got {_abbreviated(body.raw_value(key) or b'')}")
    return number


def _include_usage(body: Body) -> bool:
    if not _expect(body, "stream_options", _OBJECT, "an object"):
        return False
    try:
        Body(body.raw_value("stream_options") or b"{}")
    except TypeError as error:
        raise _invalid("stream_options", "an object of reasonable size", f"got {error}") from None
    kind, raw = body.inner("stream_options", "include_usage") or (_NULL, b"")
    if kind is not _NULL and kind not in _BOOLEAN:
        raise _invalid("stream_options.include_usage", "a Boolean", _seen(kind, raw, quote_text=True))
    return kind is _TRUE


def _messages(body: Body) -> None:
    allowed = "a list of messages"
    if not _expect(body, "messages", _LIST, allowed, False):
        raise _invalid("messages", allowed, _missing(body, "messages"))
    _check(check_messages(body))


def _prompt(body: Body) -> int | None:
    """The number of token IDs, if they are what the prompt consists of."""
    allowed = "a string, a list of one string, or a list of token IDs"
    if not _expect(body, "prompt", _PROMPT, allowed, False):
        if body.kind("prompt_embeds") in _ABSENT:
            raise _invalid("prompt", allowed, _missing(body, "prompt"))
        return None
    found = read_prompt(body)
    if isinstance(found, Fault):
        raise _invalid(
            found.path,
            found.allowed,
            "several were sent; send a request for each"
            if found.kind is None
            else _seen(found.kind, found.seen),
        )
    return None if found < 0 else found


def _missing(body: Body, key: str) -> str:
    return "it is missing" if body.kind(key) is None else "got null"


def _check_width(body: Body, key: str) -> None:
    if body.natural(key) > 1:
        seen = _abbreviated(body.raw_value(key) or b"")
        raise Ending(
            "unsupported_sampling_width",
            f"`{key}` must be 1, since one request gets one choice; got {seen}; send a request for each",
            param=key,
        )


def _check_values(body: Body) -> None:
    if body.kind("audio") not in _ABSENT:
        raise _unsupported("audio", "can't be part of a whole response")
    fault = foreign_modality(body)
    if fault is not None:
        seen = _abbreviated(fault.seen)
        raise _unsupported(fault.path, f'can only hold "text" for a whole response; got {seen}')
    fault = foreign_tool(body)
    if fault is not None:
        seen = _abbreviated(fault.seen) if fault.kind in (*_SCALARS, Kind.STRING) else _seen(fault.kind, b"")
        raise _unsupported(fault.path, f"must be a function for a whole response; its `type` is {seen}")


def _unsupported(path: str, why: str) -> Ending:
    advice = "set `stream` to true to have the engine's own answer passed on"
    return Ending("unsupported_value", f"`{path}` {why}; {advice}", param=path)


def _check_model(body: Body, model: str) -> None:
    raw = body.raw_value("model")
    if raw is None or (raw[1:-1] == model.encode() and b"\\" not in raw):
        return  # written as it most often is, without escapes; else it takes a closer look
    asked = body.value("model")
    if asked is not None and asked != model:
        raise Ending(
            "model_not_found",
            f"the model {_abbreviated(body.raw_value('model') or b'')} is not served here; "
            f"this router serves {orjson.dumps(model).decode()}",
            param="model",
        )


def _target(headers: Mapping[bytes, bytes], name: bytes) -> float | None:
    """A latency target sent as a header in milliseconds, in seconds."""
    sent = headers.get(name)
    if sent is None:
        return None
    text = sent.strip(b" \t")
    seconds = float(text) / 1000 if _NUMBER.fullmatch(text) else 0.0
    if not 0.0 < seconds < math.inf:
        raise _invalid(
            name.decode(), "a positive number of milliseconds", f"got {_abbreviated(sent) or 'nothing'}"
        )
    return seconds
