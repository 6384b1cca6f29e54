"""What engines' collected replies say, as far as the router wants to know."""

from __future__ import annotations

import orjson

from narwhal._fast.body import Body, Kind
from narwhal.engines.leg import Reply

_OBJECT = Kind.OBJECT  # a look-up in the class is slow


class Usage:
    """What a reply's `usage` says of its prompt; None where it says nothing."""

    __slots__ = ("cached_tokens", "prompt_tokens")

    def __init__(self, prompt_tokens: int | None, cached_tokens: int | None) -> None:
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = cached_tokens  # of the prompt, found in the engine's cache


def read_usage(reply: Body) -> Usage:
    """The usage of a completion's reply."""
    if reply.kind("usage") is not _OBJECT:
        return Usage(None, None)
    try:
        usage = Body(reply.raw_value("usage") or b"{}")
    except TypeError:  # with more members than a body may have
        return Usage(None, None)
    prompt = usage.natural("prompt_tokens")
    cached = usage.inner_natural("prompt_tokens_details", "cached_tokens")
    return Usage(prompt if prompt >= 0 else None, cached if cached >= 0 else None)


def read_token_count(reply: Reply) -> int | None:
    """The count in a reply of vLLM's /tokenize; None if it is not one."""
    if reply.status != 200:
        return None
    try:
        parsed = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        return None
    return _natural(parsed.get("count")) if isinstance(parsed, dict) else None


def read_context(reply: Reply, model: str) -> int | None:
    """How many tokens a model's prompt and answer may have together, as a reply of vLLM's /v1/models says."""
    try:
        parsed = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        return None
    cards = parsed.get("data") if isinstance(parsed, dict) and reply.status == 200 else None
    for card in cards if isinstance(cards, list) else []:
        if isinstance(card, dict) and card.get("id") == model:
            return _natural(card.get("max_model_len"))
    return None


def _natural(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
