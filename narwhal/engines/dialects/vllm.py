"""vLLM: prefill/decode through KV-transfer parameters, token IDs on every event.

The prefill leg asks for one token and for the KV cache to be kept for a remote decode; its reply carries
`kv_transfer_params`, which go verbatim into the decode leg.
"""

from __future__ import annotations

from narwhal._fast.body import Body, Kind
from narwhal.engines.dialects.base import HandoffError, Pieces, ask_for_usage, name_model
from narwhal.request import CompletionRequest, Route

_PREFILL_ONLY = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
_OBJECT, _FALSE = Kind.OBJECT, Kind.FALSE  # a look-up in the class is slow
# What has no meaning for the one token that prefill makes, or would be refused along with it.
_NOT_FOR_PREFILL = frozenset(
    {
        "min_tokens",
        "stream_options",
        "stream_interval",
        "return_token_ids",
        "logprobs",
        "top_logprobs",
        "echo",
    }
)


class Vllm:
    """The dialect of vLLM's OpenAI server (as of 0.32)."""

    name = "vllm"
    supplies_token_ids = True
    probe_route = Route.COMPLETIONS

    def prefill_body(self, request: CompletionRequest) -> Pieces:
        """The client's body, not streaming, cut down to one token, KV cache kept for a remote decode."""
        put = {"stream": b"false", "max_tokens": b"1", "kv_transfer_params": _PREFILL_ONLY}
        put.update(name_model(request))
        if request.uses_max_completion_tokens:
            put["max_completion_tokens"] = b"1"
        return request.body.edit(_NOT_FOR_PREFILL, put)

    def decode_body(self, request: CompletionRequest, handoff: bytes | None) -> Pieces:
        """The client's body, streaming one event a token with its IDs, with the handoff if there is one."""
        put = {"stream": b"true", "return_token_ids": b"true", "stream_interval": b"1"}
        put.update(ask_for_usage(request))
        put.update(name_model(request))
        if handoff is None:
            return request.body.edit(frozenset({"kv_transfer_params"}), put)
        put["kv_transfer_params"] = handoff
        return request.body.edit(frozenset(), put)

    def read_handoff(self, reply: Body) -> bytes:
        """`kv_transfer_params` of the reply: an object that tells a decode engine where to pull from."""
        raw = reply.raw_value("kv_transfer_params")
        if raw is None:
            raise HandoffError("the reply has no kv_transfer_params")
        if reply.kind("kv_transfer_params") is not _OBJECT or not raw[1:-1].strip():
            raise HandoffError(
                f"its kv_transfer_params is {raw[:64].decode(errors='replace')}, not an object"
            )
        offered = reply.inner("kv_transfer_params", "do_remote_prefill")
        if offered is not None and offered[0] is _FALSE:
            raise HandoffError("its kv_transfer_params offers no remote prefill (do_remote_prefill is false)")
        return raw
