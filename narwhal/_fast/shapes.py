"""What whole responses look like, for each kind of engine: which fields, in which order, null or left out.

A stream leaves out what a whole response has, and every engine writes its own set of null fields. A shape is
the list of an object's fields as that engine writes them; `assemble` fills in what came.
"""

from __future__ import annotations

from typing import NamedTuple


class Field(NamedTuple):
    """One field of an object in a response."""

    name: bytes
    default: bytes | None = None  # what stands there when nothing came; None: the field is left out
    inner: tuple[Field, ...] = ()  # the fields of an object that stands there; () leaves it as it came


class Shape(NamedTuple):
    """The objects of a response. A field that came and is in none of them follows those that are."""

    response: tuple[Field, ...]
    choice: tuple[Field, ...]
    message: tuple[Field, ...]  # empty for text completions
    logprobs: tuple[Field, ...]


def _fields(text: str, **inner: tuple[Field, ...]) -> tuple[Field, ...]:
    # Names in order; one with a question mark is null when nothing came.
    names = (word.removesuffix("?") for word in text.split())
    return tuple(
        Field(name.encode(), b"null" if word.endswith("?") else None, inner.get(name, ()))
        for name, word in zip(names, text.split(), strict=True)
    )


# vLLM's whole responses have every field of its models, null or not, but for an empty list of tool calls. Its
# streams have those that were set, and its usage event those that aren't null.
_VLLM_INNER = {
    "usage": _fields(
        "prompt_tokens total_tokens completion_tokens prompt_tokens_details? completion_tokens_details?",
        prompt_tokens_details=_fields("cached_tokens? created_cache_tokens? multimodal_tokens?"),
    ),
    "metrics": _fields(
        "time_to_first_token_ms? generation_time_ms? queue_time_ms? mean_itl_ms? tokens_per_second?"
        " speculative_decoding?"
    ),
}
_VLLM_CHAT = Shape(
    _fields(
        "id object created model choices service_tier? system_fingerprint? usage prompt_logprobs?"
        " prompt_token_ids? prompt_text? kv_transfer_params? ec_transfer_params? metrics?",
        **_VLLM_INNER,
    ),
    _fields("index message logprobs? finish_reason? stop_reason? token_ids? routed_experts?"),
    _fields(
        "role content? refusal? annotations? audio? function_call? tool_calls reasoning? reasoning_content"
    ),
    _fields("content? refusal"),
)
_VLLM_TEXT = Shape(
    _fields(
        "id object created model choices service_tier? system_fingerprint? usage kv_transfer_params?"
        " ec_transfer_params? metrics?",
        **_VLLM_INNER,
    ),
    _fields(
        "index text logprobs? finish_reason? stop_reason? token_ids? prompt_logprobs? prompt_token_ids?"
        " routed_experts?"
    ),
    (),
    _fields("text_offset token_logprobs tokens top_logprobs"),
)
_OPENAI_RESPONSE = _fields("id object created model choices usage service_tier system_fingerprint")
_OPENAI_CHAT = Shape(
    _OPENAI_RESPONSE,
    _fields("index message logprobs? finish_reason?"),
    _fields("role content? refusal? reasoning reasoning_content tool_calls function_call"),
    _fields("content? refusal?"),
)
_OPENAI_TEXT = Shape(
    _OPENAI_RESPONSE,
    _fields("text index logprobs? finish_reason?"),
    (),
    _fields("tokens token_logprobs top_logprobs text_offset"),
)

# name of the shape -> (of a chat completion, of a text completion)
SHAPES = {"vllm": (_VLLM_CHAT, _VLLM_TEXT), "openai": (_OPENAI_CHAT, _OPENAI_TEXT)}
