"""What engines' collected replies say, as far as the router wants to know."""

from __future__ import annotations

from typing import NamedTuple

import orjson

from narwhal._fast.body import Body
from narwhal.engines.leg import Reply


class Usage(NamedTuple):
    """What a reply's `usage` says of its prompt; None where it says nothing."""

    prompt_tokens: int | None
    cached_tokens: int | None  # of the prompt, found in the engine's cache


def read_usage(reply: Body) -> Usage:
    """The usage of a completion's reply."""
    try:
        usage = reply.value("usage")
    except ValueError:  # a number that Python does not read
        return Usage(None, None)
    if not isinstance(usage, dict):
        return Usage(None, None)
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(_natural(usage.get("prompt_tokens")), _natural(cached))


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
