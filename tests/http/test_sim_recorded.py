"""A simulated engine's replies look like a recorded vLLM's: the same members, in order, of the same kinds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvloop

from narwhal.sim import SimEngine, SimOptions
from tests.http.sim_client import Answer, Client, ask
from tests.http.test_sim_engine import CHAT, COMPLETIONS, PREFILL

RECORDED = Path(__file__).parents[1] / "data" / "streams" / "vllm-0.32"
MESSAGES = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40}
PROMPT = {"prompt": "hi", "max_tokens": 6}
IDS, USAGE = {"return_token_ids": True}, {"stream_options": {"include_usage": True}}
USAGE_EACH = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
CHAT_LOGPROBS, LOGPROBS = {"logprobs": True, "top_logprobs": 2}, {"logprobs": 2}
SPLIT = {"max_tokens": 1, "kv_transfer_params": PREFILL}
TOOLS = {"sim": {"output_tokens": 14, "output": ["text", "tool_calls"]}}
# A character's bytes in three tokens: some of a real model's tokens, too, have no text of their own.
SILENT = {"sim": {"text": "x🐋y 🐋 🐋 🐋"}, "max_tokens": 5}

REQUESTS: dict[str, dict[str, Any]] = {
    "chat-stream": MESSAGES,
    "chat-ids-stream": MESSAGES | IDS | SILENT,
    "chat-logprobs-stream": MESSAGES | CHAT_LOGPROBS | SILENT,
    "chat-usage-stream": MESSAGES | USAGE,
    "chat-usage-ids-stream": MESSAGES | IDS | USAGE | SILENT,
    "chat-usage-each-stream": MESSAGES | IDS | USAGE_EACH | SILENT,
    "chat-empty-stream": MESSAGES | IDS | {"sim": {"output_tokens": 1}},
    "chat-tools-stream": MESSAGES | TOOLS,
    "chat-whole": MESSAGES,
    "chat-ids-whole": MESSAGES | IDS,
    "chat-logprobs-whole": MESSAGES | CHAT_LOGPROBS,
    "chat-tools-whole": MESSAGES | TOOLS,
    "chat-empty-whole": MESSAGES | IDS | {"sim": {"output_tokens": 1}},
    "chat-prefill": MESSAGES | SPLIT,
    "completions-stream": PROMPT,
    "completions-ids-stream": PROMPT | IDS,
    "completions-logprobs-ids-stream": PROMPT | IDS | LOGPROBS,
    "completions-usage-ids-stream": PROMPT | IDS | USAGE,
    "completions-usage-each-stream": PROMPT | IDS | USAGE_EACH,
    "completions-whole": PROMPT,
    "completions-ids-whole": PROMPT | IDS,
    "completions-logprobs-whole": PROMPT | LOGPROBS,
    "completions-prefill": PROMPT | SPLIT,
}


def outline(value: Any) -> Any:
    """Names and kinds; of a list the first entry, and of alternatives by token none."""
    if isinstance(value, dict):
        return {
            name: None if name == "top_logprobs" else outline(entry) for name, entry in value.items()
        }, tuple(value)
    if isinstance(value, list):
        return [outline(value[0])] if value else []
    return type(value).__name__


def outlines(events: list[dict[str, Any]]) -> list[Any]:
    """The different outlines of a stream's events, in the order of their first coming."""
    found: list[Any] = []
    for event in map(outline, events):
        if event not in found:
            found.append(event)
    return found


async def recorded(name: str) -> Answer:
    reader = asyncio.StreamReader()
    reader.feed_data((RECORDED / f"{name}.http").read_bytes())
    reader.feed_eof()
    return await Client.read_from(reader)


@pytest.mark.parametrize("name", REQUESTS)
def test_replies_are_outlined_like_recorded_ones(name: str) -> None:
    async def main() -> None:
        engine = SimEngine(SimOptions(model="tiny", prompt_tokens_details=True))
        await engine.start()
        body = REQUESTS[name] | {"stream": name.endswith("stream")}
        ours = await ask(engine.url, "POST", CHAT if name.startswith("chat") else COMPLETIONS, body)
        await engine.stop()
        theirs = await recorded(name)
        assert ours.headers["content-type"] == theirs.headers["content-type"]
        if body["stream"]:
            assert ours.blocks[-1] == theirs.blocks[-1] == b"[DONE]"
            assert sorted(map(repr, outlines(ours.events))) == sorted(map(repr, outlines(theirs.events)))
        else:
            assert outline(ours.json()) == outline(theirs.json())

    uvloop.run(main())
