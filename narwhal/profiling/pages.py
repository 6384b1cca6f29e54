"""What an engine's own pages say of it: is it busy, which process is it, how much does it hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from narwhal.engines.pages import read_models

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


class PageError(Exception):
    """A page does not say what it must; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Condition:
    """An engine at one instant, by its /metrics."""

    running: int  # requests
    waiting: int
    process_start_time: float | None  # Unix seconds
    kv_tokens: int | None  # that its KV cache holds

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do."""
        return self.running == 0 and self.waiting == 0


def read_condition(text: str) -> Condition:
    """Read a /metrics page. Raises PageError if it doesn't tell whether the engine is busy."""
    gauges: dict[str, float] = {}
    kv_tokens = None
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in (RUNNING, WAITING):
                    gauges[sample.name] = gauges.get(sample.name, 0.0) + sample.value
                elif sample.name == "process_start_time_seconds":
                    gauges[sample.name] = sample.value
                elif sample.name == "vllm:cache_config_info":
                    kv_tokens = _kv_tokens(sample.labels)
    except (ValueError, KeyError) as error:
        raise PageError(f"its /metrics can't be read: {error}") from None
    for name in (RUNNING, WAITING):
        if name not in gauges:
            raise PageError(f"its /metrics has no {name}, so there is no telling whether it is busy")
    return Condition(
        running=int(gauges[RUNNING]),
        waiting=int(gauges[WAITING]),
        process_start_time=gauges.get("process_start_time_seconds"),
        kv_tokens=kv_tokens,
    )


def _kv_tokens(labels: Mapping[str, str]) -> int | None:
    blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    return int(blocks) * int(size) if blocks.isdecimal() and size.isdecimal() else None


def read_max_model_len(body: bytes, model: str) -> int | None:
    """How many tokens a request may have, prompt and output, by a /v1/models page; None if it doesn't say.

    Raises PageError if the page lists other models only.
    """
    cards = read_models(body)
    if cards is None:
        raise PageError("its /v1/models is no list of models")
    lengths = {card.name: card.max_model_len for card in cards}
    if model not in lengths:
        raise PageError(f"it serves {', '.join(lengths) or 'no model'}, not {model} (model)")
    return lengths[model]
