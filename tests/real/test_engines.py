"""The engines alone, without the router: that the fleet is what the tests of the router take it for.

If a KV cache did not really cross from one engine to the other, or the answer did not hang on it, tests of
the router would prove nothing.
"""

from __future__ import annotations

import json
import time
import urllib.request
import uuid
from collections.abc import Callable
from typing import Any

from narwhal.config import Role, load
from tools.record_streams import PREFILL
from tools.vllm_cpu.fleet import BLOCK_TOKENS, Engine, Fleet

# Keys and values, 4 layers, 2 KV heads, 64 numbers of 4 bytes.
KV_BYTES_PER_TOKEN = 2 * 4 * 2 * 64 * 4
NIXL_BYTES = "vllm:nixl_bytes_transferred_sum"
TRANSFERRED_TOKENS = 'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}'


def complete(engine: Engine, prompt: str, max_tokens: int, **more: object) -> dict[str, Any]:
    """Ask an engine for a completion at temperature 0, with token IDs."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    request = urllib.request.Request(
        f"{engine.url}/v1/completions",
        json.dumps(body | {"return_token_ids": True} | more).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60.0) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def token_ids(answer: dict[str, Any]) -> list[int]:
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


def long_prompt(first_word: str) -> str:
    """A prompt of several blocks that no engine has seen before."""
    return f"{first_word} {uuid.uuid4()}: " + "The narwhal lives in the cold seas of the north. " * 20


def eventually(condition: Callable[[], bool], timeout_s: float = 15.0) -> bool:
    """Whether a condition comes true in time."""
    ends = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > ends:
            return False
        time.sleep(0.05)
    return True


def test_the_fleet_file_is_one_that_the_router_reads(fleet: Fleet) -> None:
    config = load(fleet.config)
    assert config.model == "tiny"
    assert [(engine.id, engine.role) for engine in config.engines] == [
        ("p0", Role.PREFILL),
        ("d0", Role.DECODE),
    ]
    assert [engine.url.port for engine in config.engines] == [engine.port for engine in fleet.engines]


def test_the_kv_cache_crosses_and_the_tokens_are_those_of_one_engine_alone(
    producer: Engine, consumer: Engine
) -> None:
    prompt = long_prompt("First")
    before = consumer.metrics()
    prefill = complete(producer, prompt, 1, kv_transfer_params=PREFILL)
    split = complete(consumer, prompt, 24, kv_transfer_params=prefill["kv_transfer_params"])

    def risen(name: str) -> float:
        return consumer.metrics().get(name, 0.0) - before.get(name, 0.0)

    blocks = prefill["usage"]["prompt_tokens"] // BLOCK_TOKENS
    assert blocks >= 2
    assert eventually(lambda: risen(TRANSFERRED_TOKENS) >= blocks * BLOCK_TOKENS)
    assert eventually(lambda: risen(NIXL_BYTES) >= blocks * BLOCK_TOKENS * KV_BYTES_PER_TOKEN)
    assert token_ids(split) == token_ids(complete(producer, prompt, 24))


def test_the_answer_hangs_on_the_start_of_the_prompt(consumer: Engine) -> None:
    # Else a KV cache that is lost, or is another prompt's, would go unseen.
    one, two = (complete(consumer, long_prompt(first_word), 24) for first_word in ("One", "Two"))
    assert token_ids(one) != token_ids(two)
