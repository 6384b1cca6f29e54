"""What an engine's own pages say of it. Nothing here is trusted to be well formed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Card:
    """A model on /v1/models."""

    name: str
    owner: str
    max_model_len: int | None  # tokens


def read_models(body: bytes) -> list[Card] | None:
    """The models on /v1/models; None if that is not what the page is."""
    data = _object(body).get("data")
    if not isinstance(data, list):
        return None
    cards = []
    for item in data:
        if isinstance(item, dict) and isinstance(item.get("id"), str):
            length = item.get("max_model_len")
            is_length = isinstance(length, int) and not isinstance(length, bool)
            cards.append(Card(item["id"], str(item.get("owned_by", "")), length if is_length else None))
    return cards


def read_version(body: bytes) -> str | None:
    """The version on vLLM's /version."""
    version = _object(body).get("version")
    return version if isinstance(version, str) and version.isprintable() else None


@dataclass(frozen=True, slots=True)
class Metrics:
    """What is looked for on /metrics."""

    of_vllm: bool  # there are figures by vLLM's names
    started_at: float | None  # seconds since 1970


_STARTED = re.compile(rb"^process_start_time_seconds(?:\{[^}\n]*\})? +([0-9.eE+]+)", re.MULTILINE)
_VLLM = re.compile(rb"^vllm:", re.MULTILINE)


def read_metrics(body: bytes) -> Metrics:
    """The page's figures."""
    found = _STARTED.search(body)
    try:
        started = float(found[1]) if found else None
    except ValueError:
        started = None
    return Metrics(_VLLM.search(body) is not None, started)


def _object(body: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
