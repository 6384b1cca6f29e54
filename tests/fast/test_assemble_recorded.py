"""A stream put together is what the same vLLM answers to the same request when it is asked not to stream."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from narwhal._fast.assemble import Assembler, AssemblyError
from tests.recordings import Recording, pairs, recordings

WHOLE = {name: pair for name, pair in pairs().items() if pair[1].status == 200}
# What the engine itself does not do alike both ways: a call cut short is a call in its stream and text in its
# whole reply, and a prompt's own logprobs are not streamed.
UNLIKE = {"chat-tools-cut-ids": {"message"}, "completions-echo-logprobs": {"prompt_logprobs"}}
SEVERAL_CHOICES = {"completions-two"}


def assembled(stream: Recording, counts: tuple[int, ...] = (0, 0)) -> Any:
    assembler = Assembler("chat" in stream.path, bool(stream.request.get("return_token_ids")), 1 << 24)
    for text in stream.payload.split(b"\n\n"):
        if text and text != b"data: [DONE]":
            assembler.add_event(text.removeprefix(b"data: "))
    return json.loads(assembler.finish(*counts))


def same_request(reply: Any) -> Any:
    """A reply without what differs between two replies to one request."""
    text = json.dumps({name: value for name, value in reply.items() if name not in ("id", "created")})
    return json.loads(re.sub(r"chatcmpl-tool-\w+", "chatcmpl-tool-", text))


def fields(value: Any) -> Any:
    """Names in order, down to the scalars."""
    if isinstance(value, dict):
        return [(name, fields(inner)) for name, inner in value.items()]
    return [fields(inner) for inner in value] if isinstance(value, list) else None


@pytest.mark.parametrize("name", sorted(WHOLE.keys() - SEVERAL_CHOICES))
def test_every_field_is_the_engines_own(name: str) -> None:
    stream, whole = WHOLE[name]
    expected = same_request(whole.reply)
    usage = expected["usage"]
    seen = same_request(assembled(stream, (usage["prompt_tokens"], usage["completion_tokens"])))
    if not any("usage" in event for event in stream.events):
        usage |= {"prompt_tokens_details": None, "completion_tokens_details": None}  # only the engine knows
    for field in UNLIKE.get(name, ()):
        assert seen["choices"][0].pop(field) != expected["choices"][0].pop(field)
    assert seen == expected
    assert fields(seen) == fields(expected)


@pytest.mark.parametrize("name", ["chat", "completions"])
@pytest.mark.parametrize("usage", ["usage", "usage-each"])
def test_the_usage_event_makes_the_usage_of_the_whole_reply(name: str, usage: str) -> None:
    expected = recordings()[f"{name}-whole"].reply["usage"]
    seen = assembled(recordings()[f"{name}-{usage}-stream"])["usage"]
    assert (seen, list(seen)) == (expected, list(expected))


@pytest.mark.parametrize("name", ["chat", "completions"])
def test_what_the_prefill_engine_found_cached_is_what_the_client_is_told(name: str) -> None:
    stream = recordings()[f"{name}-decode-again"]
    for cached in (0, 384):
        told, own = assembled(stream, (0, 0, cached)), assembled(stream)
        assert told["usage"]["prompt_tokens_details"].pop("cached_tokens") == cached
        own["usage"]["prompt_tokens_details"].pop("cached_tokens")
        assert told == own


def test_two_prompts_make_two_choices_which_are_refused() -> None:
    with pytest.raises(AssemblyError, match=r"choices\[0\]\.index is not 0"):
        assembled(recordings()["completions-two-stream"])


def as_the_client_sees_it(choice: Any) -> tuple[Any, ...]:
    """What its typed object says; content that is null is the same as none."""
    message = choice.message
    calls = [
        (call.id, call.type, call.function.name, call.function.arguments) for call in message.tool_calls or ()
    ]
    reasoning = getattr(message, "reasoning", None)
    return message.role, message.content or "", reasoning, calls, choice.logprobs, choice.finish_reason


@pytest.mark.parametrize("name", sorted(name for name, (stream, _) in WHOLE.items() if "chat" in stream.path))
def test_the_openai_client_makes_the_same_of_the_stream_and_of_the_whole(name: str) -> None:
    stream, _ = WHOLE[name]
    streamed = ChatCompletionStreamState()
    for event in stream.events:
        streamed.handle_chunk(ChatCompletionChunk.model_validate(event))
    whole = ChatCompletion.model_validate(assembled(stream))
    assert as_the_client_sees_it(whole.choices[0]) == as_the_client_sees_it(
        streamed.current_completion_snapshot.choices[0]
    )
