"""The router in front of real engines: what a user of the `openai` client, or of curl, gets from it.

The router runs as the process that a user would start, on the fleet file that the tool wrote.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.real.test_engines import (
    KV_BYTES_PER_TOKEN,
    NIXL_BYTES,
    TRANSFERRED_TOKENS,
    complete,
    eventually,
    long_prompt,
    token_ids,
)
from tools.vllm_cpu.fleet import BLOCK_TOKENS, Engine, Fleet

RUNNING = "vllm:num_requests_running"


class Router:
    """A router process."""

    def __init__(self, url: str, journal: Path) -> None:
        self.url = url
        self.journal = journal
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=60.0)

    def state(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/narwhal/state", timeout=10.0) as reply:
            state: dict[str, Any] = json.load(reply)
        return state

    def idle(self) -> bool:
        """Whether nothing is held, no seat is taken, and the law of outcomes holds."""
        state = self.state()
        requests = state["requests"]
        ended = sum(
            requests[name]
            for name in (
                "served",
                "failed",
                "expired",
                "cancelled",
                "rejected",
                "refused",
                "invalid_requests",
            )
        )
        seats = [p["seats_in_use"] for engine in state["engines"] for p in engine["phases"].values()]
        return (
            requests["offered"] == ended + requests["in_flight"]
            and requests["in_flight"] == requests["held"] == 0
            and not any(seats)
        )

    def row(self, request_id: str) -> dict[str, Any]:
        """The journal's row of a request."""

        def rows() -> list[dict[str, Any]]:
            if not self.journal.exists():
                return []
            lines = self.journal.read_text().splitlines()
            return [row for row in map(json.loads, lines) if row["request_id"] == request_id]

        assert eventually(lambda: len(rows()) == 1)
        return rows()[0]


@pytest.fixture(scope="module")
def router(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    with serving(tmp_path_factory.mktemp("router"), Path(fleet.config).read_text()) as router:
        yield router


@contextmanager
def serving(folder: Path, text: str, **keys: object) -> Iterator[Router]:
    """A router on a fleet file's text and these keys for `serving`; at the end, it must be at rest."""
    assert "serving:" not in text
    config = folder / "fleet.yaml"
    section = json.dumps({"journal_path": str(folder / "journal.jsonl")} | keys)
    config.write_text(f"{text}\nserving: {section}\n")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "narwhal", "serve", "--fleet", str(config), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    try:
        announced = process.stdout.readline().decode()
        found = re.search(r"http://\S+", announced)
        assert found, f"{announced}{(folder / 'log').read_text()}"
        router = Router(found[0], folder / "journal.jsonl")
        yield router
        assert eventually(router.idle), router.state()
        router.client.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(15.0) == 0
        assert "Traceback" not in (folder / "log").read_text()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def chat_alone(engine: Engine, prompt: str, **more: object) -> dict[str, Any]:
    """The engine's own whole answer to a chat."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": prompt}], "temperature": 0, "seed": 7}
    request = urllib.request.Request(
        f"{engine.url}/v1/chat/completions",
        json.dumps(body | more).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60.0) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def chat(router: Router, prompt: str, **more: Any) -> dict[str, Any]:
    """The router's whole answer to the same chat, as it came."""
    raw = router.client.chat.completions.with_raw_response.create(
        model="tiny",
        messages=[{"role": "user", "content": prompt}],
        temperature=0,
        seed=7,
        **more,
    )
    answer: dict[str, Any] = json.loads(raw.text)
    return answer


def without_what_differs_each_time(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in ("id", "created")}


def test_tokens_are_those_of_one_engine_alone_and_the_kv_cache_really_crossed(
    router: Router, producer: Engine, consumer: Engine
) -> None:
    prompt = long_prompt("Crossing")
    before = consumer.metrics()
    stream = router.client.completions.create(
        model="tiny",
        prompt=prompt,
        max_tokens=24,
        temperature=0,
        stream=True,
        extra_body={"return_token_ids": True},
        stream_options={"include_usage": True},
    )
    ids: list[int] = []
    text = ""
    usage = None
    for event in stream:
        usage = event.usage or usage
        for choice in event.choices:
            text += choice.text
            ids += (choice.model_extra or {}).get("token_ids") or []
    assert usage is not None
    assert usage.completion_tokens == len(ids) == 24

    def risen(name: str) -> float:
        return consumer.metrics().get(name, 0.0) - before.get(name, 0.0)

    blocks = usage.prompt_tokens // BLOCK_TOKENS
    assert blocks >= 2
    assert eventually(lambda: risen(TRANSFERRED_TOKENS) >= blocks * BLOCK_TOKENS)
    assert eventually(lambda: risen(NIXL_BYTES) >= blocks * BLOCK_TOKENS * KV_BYTES_PER_TOKEN)
    alone = complete(producer, prompt, 24)
    assert ids == token_ids(alone)
    assert text == alone["choices"][0]["text"]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"logprobs": True, "top_logprobs": 2},
        {"return_token_ids": True},
        {"stop": ["e"]},
        {"logprobs": True, "return_token_ids": True, "max_completion_tokens": 5},
    ],
    ids=["plain", "logprobs", "ids", "stop", "logprobs and ids"],
)
def test_a_whole_chat_answer_is_what_the_engine_alone_would_have_given(
    router: Router, producer: Engine, more: dict[str, Any]
) -> None:
    # Key by key and in the same order. The prompt is new each time, so nothing comes from a cache.
    prompt = long_prompt("Whole")
    own = {"max_tokens": 12} | more
    extra = {key: own.pop(key) for key in ("return_token_ids",) if key in own}
    through = chat(router, prompt, extra_body=extra, **own)
    alone = chat_alone(producer, prompt, **own, **extra)
    assert_same_but_for_rounding(
        without_what_differs_each_time(through), without_what_differs_each_time(alone), ""
    )


def assert_same_but_for_rounding(one: Any, other: Any, path: str) -> None:
    """Equal, keys in the same order; logprobs may differ by what a KV cache from elsewhere rounds away."""
    if isinstance(one, dict) and isinstance(other, dict):
        assert list(one) == list(other), path
        for key in one:
            if key in ("cached_tokens", "system_fingerprint"):
                continue
            assert_same_but_for_rounding(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list):
        assert len(one) == len(other), path
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same_but_for_rounding(a, b, f"{path}[{index}]")
    elif isinstance(one, float) and isinstance(other, float):
        assert one == pytest.approx(other, abs=1e-3), path
    else:
        assert one == other, path


def test_a_whole_completion_is_what_the_engine_alone_would_have_given(
    router: Router, producer: Engine
) -> None:
    prompt = long_prompt("Completion")
    raw = router.client.completions.with_raw_response.create(
        model="tiny", prompt=prompt, max_tokens=12, temperature=0, logprobs=1,
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    through = json.loads(raw.text)
    alone = complete(producer, prompt, 12, logprobs=1)
    assert_same_but_for_rounding(
        without_what_differs_each_time(through), without_what_differs_each_time(alone), ""
    )


def test_streaming_and_whole_answers_say_the_same(router: Router) -> None:
    prompt = long_prompt("Both ways")
    whole = chat(router, prompt, max_tokens=16)
    stream = router.client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": prompt}],
        temperature=0,
        seed=7,
        max_tokens=16,
        stream=True,
    )
    events = list(stream)
    text = "".join(c.delta.content or "" for event in events for c in event.choices)
    assert text == whole["choices"][0]["message"]["content"]
    assert all(event.usage is None for event in events)
    assert "token_ids" not in "".join(event.model_dump_json() for event in events)


def test_the_asynchronous_client_streams_several_at_once(router: Router, producer: Engine) -> None:
    prompts = [long_prompt(f"Number {n}") for n in range(6)]

    async def one(client: openai.AsyncOpenAI, prompt: str) -> str:
        stream = await client.completions.create(
            model="tiny", prompt=prompt, max_tokens=10, temperature=0, stream=True
        )
        return "".join([choice.text async for event in stream for choice in event.choices])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="unused", max_retries=0) as client:
            return await asyncio.gather(*(one(client, prompt) for prompt in prompts))

    texts = asyncio.run(all_of_them())
    assert texts == [complete(producer, prompt, 10)["choices"][0]["text"] for prompt in prompts]


def test_an_error_of_the_requests_own_is_the_engines_own_words(router: Router, producer: Engine) -> None:
    with pytest.raises(openai.BadRequestError) as through:
        router.client.completions.create(model="tiny", prompt="word " * 5000, max_tokens=4)
    alone = openai.OpenAI(base_url=f"{producer.url}/v1", api_key="unused", max_retries=0)
    with alone, pytest.raises(openai.BadRequestError) as direct:
        alone.completions.create(model="tiny", prompt="word " * 5000, max_tokens=1)
    assert through.value.param == direct.value.param
    assert through.value.message == direct.value.message
    assert through.value.response.headers["x-should-retry"] == "false"
    with pytest.raises(openai.NotFoundError):
        router.client.completions.create(model="another", prompt="word", max_tokens=4)


def test_usage_tells_what_the_producer_found_cached(router: Router, producer: Engine) -> None:
    # The decode engine, which got the KV cache from outside, would call nearly all of the prompt cached.
    prompt = long_prompt("Cached")

    def cached() -> int:
        answer = chat(router, prompt, max_tokens=2)
        details = answer["usage"]["prompt_tokens_details"]
        return 0 if details is None else int(details["cached_tokens"] or 0)

    assert cached() == 0
    again = cached()
    assert again >= BLOCK_TOKENS
    assert again % BLOCK_TOKENS == 0


def test_a_client_that_leaves_ends_the_work_on_the_engine(router: Router, consumer: Engine) -> None:
    before = router.state()["requests"]["cancelled"]
    host, port = router.url.removeprefix("http://").split(":")
    body = json.dumps(
        {
            "model": "tiny",
            "prompt": long_prompt("Leaving"),
            "max_tokens": 1500,
            "stream": True,
            "ignore_eos": True,
        }
    ).encode()
    with socket.create_connection((host, int(port)), timeout=60.0) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: narwhal\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        assert b"data: " in client.recv(65536)
        assert consumer.metrics()[RUNNING] == 1
    assert eventually(lambda: consumer.metrics()[RUNNING] == 0)
    assert eventually(lambda: router.state()["requests"]["cancelled"] == before + 1)
    assert eventually(router.idle)


def test_curl_sees_the_events_as_they_come(router: Router) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 5,
        "stream": True,
    }
    run = subprocess.run(
        ["curl", "-sSN", f"{router.url}/v1/chat/completions", "-H", "content-type: application/json",
         "-d", json.dumps(body)],
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    blocks = run.stdout.decode().removesuffix("\n\n").split("\n\n")
    assert all(block.startswith("data: ") for block in blocks)
    assert blocks[-1] == "data: [DONE]"
    assert len(blocks) == 7  # the role, five tokens, the end


def test_the_journal_tells_of_each_leg(router: Router) -> None:
    sent = f"client-{uuid.uuid4()}"
    raw = router.client.completions.with_raw_response.create(
        model="tiny", prompt=long_prompt("Journal"), max_tokens=8, extra_headers={"x-request-id": sent}
    )
    usage = raw.parse().usage
    assert usage is not None
    row = router.row(raw.headers["x-request-id"])
    assert row["client_request_id"] == sent
    assert row["outcome"] == "served"
    assert row["engines"] == {"prefill": "p0", "decode": "d0"}
    assert row["output_tokens"] == usage.completion_tokens
    assert row["output_tokens_from"] == "token_ids"
    assert 0 < row["prefill_s"] <= row["first_token_s"] <= row["last_token_s"] <= row["ended_s"]
