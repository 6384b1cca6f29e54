"""What reading and editing a request body costs, beside decoding, changing and encoding it with orjson."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from bench.against import measure
from narwhal._fast.body import Body
from narwhal.request import Route, read

HANDOFF = {"do_remote_decode": False, "do_remote_prefill": True, "remote_block_ids": list(range(32))}
DROP = frozenset({"min_tokens"})
PUT = {
    "stream": b"true",
    "return_token_ids": b"true",
    "stream_options": b'{"include_usage":true}',
    "kv_transfer_params": orjson.dumps(HANDOFF),
}
SENTENCE = 'She said: "Narwhals don\'t mind the cold."\nHe nodded, and went on with his tea.\n'


def chat(size: int) -> bytes:
    messages = [{"role": "system", "content": "You are a helpful assistant."}]
    messages += [{"role": "user", "content": (SENTENCE * (size // len(SENTENCE) + 1))[: max(0, size - 250)]}]
    settings = {"temperature": 0.7, "top_p": 0.95, "max_tokens": 256, "min_tokens": 1, "stream": True}
    return orjson.dumps({"model": "whale", "messages": messages, **settings})


SIZES = {"0.5 kB": 500, "256 KiB": 256 * 1024, "1 MiB": 1024 * 1024}
BODIES = {name: chat(size) for name, size in SIZES.items()}


def ours(raw: bytes) -> list[bytes | memoryview]:
    return read(Route.CHAT, raw, model="whale", headers={}).body.edit(DROP, PUT)


def with_orjson(raw: bytes) -> bytes:
    body = orjson.loads(raw)
    body.pop("min_tokens", None)
    body |= {"stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
    body["kv_transfer_params"] = HANDOFF
    return orjson.dumps(body)


@pytest.mark.parametrize("size", BODIES)
def test_read_and_edit(benchmark: Any, size: str) -> None:
    raw = BODIES[size]
    measure(benchmark, lambda: ours(raw), lambda: with_orjson(raw), items=1, size=len(raw))


@pytest.mark.parametrize("size", BODIES)
def test_find_members(benchmark: Any, size: str) -> None:
    raw = BODIES[size]
    measure(benchmark, lambda: Body(raw), lambda: orjson.loads(raw), items=1, size=len(raw))


def test_count_token_ids(benchmark: Any) -> None:
    """A prompt of 100,000 token IDs."""
    raw = orjson.dumps({"prompt": list(range(50_000, 150_000))})
    request = read(Route.COMPLETIONS, raw, model="whale", headers={})
    assert request.prompt_token_count == 100_000
    measure(
        benchmark,
        lambda: read(Route.COMPLETIONS, raw, model="whale", headers={}),
        lambda: len(orjson.loads(raw)["prompt"]),
        items=100_000,
        size=len(raw),
    )
