"""Any OpenAI-compatible server: whole requests in one leg, no token IDs."""

from __future__ import annotations

from narwhal._fast.body import Body
from narwhal.engines.dialects.base import HandoffError, Pieces, ask_for_usage, name_model
from narwhal.request import CompletionRequest, Route


class OpenAI:
    """The dialect of servers of which nothing more is known than that they speak OpenAI's API."""

    name = "openai"
    supplies_token_ids = False
    probe_route = Route.CHAT

    def prefill_body(self, request: CompletionRequest) -> Pieces:
        """There is no prefill leg; the config reader lets such engines be `both` only."""
        raise HandoffError("an engine of dialect openai has no prefill leg")

    def decode_body(self, request: CompletionRequest, handoff: bytes | None) -> Pieces:
        """The client's body, streaming, with usage asked for."""
        put = {"stream": b"true", **ask_for_usage(request), **name_model(request)}
        return request.body.edit(frozenset(), put)

    def read_handoff(self, reply: Body) -> bytes:
        """See prefill_body."""
        raise HandoffError("an engine of dialect openai hands nothing over")
