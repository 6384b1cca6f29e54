"""What the router needs to know of a kind of engine to send it a request's legs."""

from __future__ import annotations

from typing import Protocol

import orjson

from narwhal._fast.body import Body, Kind
from narwhal.request import CompletionRequest, Route

_STRING = Kind.STRING  # a look-up in the class is slow

Pieces = list[bytes | memoryview]


class HandoffError(ValueError):
    """A prefill leg's reply held no usable handoff; the message says what it held."""


class Dialect(Protocol):
    """How one kind of engine is spoken to."""

    name: str
    supplies_token_ids: bool
    probe_route: Route  # one that every such server has for a text of any kind

    def prefill_body(self, request: CompletionRequest) -> Pieces:
        """The prefill leg's body."""

    def decode_body(self, request: CompletionRequest, handoff: bytes | None) -> Pieces:
        """The decode leg's body; without a handoff, that of a leg that does all."""

    def read_handoff(self, reply: Body) -> bytes:
        """The handoff in a prefill leg's reply, as JSON text. Raises HandoffError."""


def name_model(request: CompletionRequest) -> dict[str, bytes]:
    """The `model` to put where the client left it out: an engine may serve several."""
    if request.body.kind("model") is _STRING:
        return {}
    return {"model": orjson.dumps(request.model)}


def ask_for_usage(request: CompletionRequest) -> dict[str, bytes]:
    """The `stream_options` to put so that the stream ends with a usage event.

    The client's other options stay. Without its own `include_usage`, usage on every event
    (`continuous_usage_stats`) had no effect, so it must not take effect now.
    """
    if request.include_usage:
        return {}
    own = request.body.raw_value("stream_options")
    if own is None or own == b"null":
        return {"stream_options": b'{"include_usage":true}'}
    pieces = Body(own).edit(frozenset({"continuous_usage_stats"}), {"include_usage": b"true"})
    return {"stream_options": b"".join(pieces)}
