"""Which answers are gone on with, and that their events join on however tokens lie in them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.request import Route, read
from narwhal.serving.continuation import Continuation
from narwhal.sim import vocabulary

Event = dict[str, Any]
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"prompt": "hi"}
PROMPT = [5, 6, 7]
LIMIT = 1 << 20


def continuation(what: dict[str, Any], limit: int = LIMIT) -> Continuation | None:
    route = Route.CHAT if "messages" in what else Route.COMPLETIONS
    body = {"model": "m", "stream": True, "temperature": 0, "max_tokens": 100} | what
    return Continuation.of(read(route, orjson.dumps(body), model="m", headers={}), limit)


def event(text: str, ids: list[int], logprobs: Event | None = None, **choice: Any) -> bytes:
    """An event of a text completion."""
    choice = {
        "index": 0,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": None,
        "stop_reason": None,
    } | choice
    value = {
        "id": "a",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [choice | {"token_ids": ids}],
    }
    return orjson.dumps(value)


def begun(what: dict[str, Any], *events: bytes) -> Continuation:
    """The continuation of an answer that began with these events."""
    one = continuation(what)
    assert one is not None
    for data in events:
        one.recall.note_event(data)
    return one


FIRST = event("x", [9], prompt_token_ids=PROMPT)


@pytest.mark.parametrize("what", [CHAT, TEXT], ids=["chat", "text"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 0.0},
        {"temperature": None},
        {"temperature": 0.7, "top_p": 0.9},
        {"seed": 3},
        {"temperature": 1, "seed": None},
        {"stop": []},
        {"stop": None},
        {"stop_token_ids": [3], "min_tokens": 4},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.2},
        {"n": 1, "best_of": 1},
        {"response_format": {"type": "text"}},
        {"user": "u", "logit_bias": {"5": 1}},
        {"ignore_eos": True},
    ],
    ids=str,
)
def test_an_answer_that_hangs_on_its_tokens_alone_is_gone_on_with(what: Event, more: Event) -> None:
    assert continuation(what | more) is not None


@pytest.mark.parametrize("what", [CHAT, TEXT], ids=["chat", "text"])
@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 1, "seed": 3},
        {"temperature": None, "seed": 3},
        {"temperature": 0.7, "seed": 0},
        {"stop": "x"},
        {"stop": ["x"]},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -1},
        {"bad_words": ["x"]},
        {"use_beam_search": True},
        {"echo": True},
        {"prompt_logprobs": 1},
        {"structured_outputs": {"regex": "a"}},
        {"guided_json": {}},
        {"guided_regex": "a"},
        {"response_format": {"type": "json_object"}},
        {"vllm_xargs": {"a": 1}},
        {"kv_transfer_params": {"a": 1}},
        {"a_field_of_the_future": 1},
    ],
    ids=lambda more: str(more)[:40],
)
def test_an_answer_that_hangs_on_more_is_not(what: Event, more: Event) -> None:
    assert continuation(what | more) is None


def test_a_number_of_thousands_of_digits_is_no_value_that_is_known() -> None:
    raw = b'{"model":"m","prompt":"hi","presence_penalty":1%b}' % (b"0" * 5000)
    assert Continuation.of(read(Route.COMPLETIONS, raw, model="m", headers={}), LIMIT) is None


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tool_choice": "auto"},
        {"include_reasoning": False},
        {"reasoning_effort": "low"},
        {"modalities": ["audio"]},
        {"return_tokens_as_token_ids": True},
        {"temperature": 1, "logprobs": True, "top_logprobs": 2},
    ],
    ids=lambda more: str(more)[:40],
)
def test_nor_is_a_chat_of_which_a_text_completion_would_not_tell_enough(more: Event) -> None:
    assert continuation(CHAT | more) is None


def test_the_rest_is_asked_for_by_token_ids_and_with_limits_that_count_from_the_seam() -> None:
    what = TEXT | {"min_tokens": 4, "echo": False, "truncate_prompt_tokens": 3, "logprobs": 2, "top_k": 5}
    found = begun(what, FIRST, event("y", [10])).rest(None)
    assert found is not None
    assert orjson.loads(found[0].body.raw) == {
        "model": "m",
        "stream": True,
        "temperature": 0,
        "max_tokens": 98,
        "prompt": [*PROMPT, 9, 10],
        "min_tokens": 2,
        "logprobs": 2,
        "top_k": 5,
    }
    assert (found[0].max_tokens, found[0].prompt_token_count) == (98, 5)


def test_the_rest_of_a_chat_is_a_text_completion() -> None:
    what = CHAT | {
        "max_completion_tokens": 50,
        "logprobs": True,
        "top_logprobs": 2,
        "chat_template_kwargs": {"a": 1},
        "user": "u",
    }
    delta = {"index": 0, "delta": {"content": "x"}, "logprobs": None, "finish_reason": None, "token_ids": [9]}
    opening = orjson.dumps({"id": "a", "created": 1, "choices": [], "prompt_token_ids": PROMPT})
    found = begun(what, opening, orjson.dumps({"id": "a", "created": 1, "choices": [delta]})).rest(None)
    assert found is not None
    rest, join = found
    assert rest.route is Route.COMPLETIONS
    assert orjson.loads(rest.body.raw) == {
        "model": "m",
        "stream": True,
        "temperature": 0,
        "max_tokens": 49,
        "prompt": [*PROMPT, 9],
        "logprobs": 2,
        "user": "u",
    }
    logprobs = {
        "text_offset": [0],
        "token_logprobs": [-0.5],
        "tokens": ["é"],
        "top_logprobs": [{"é": -0.5, "y": -2.0}],
    }
    elsewhere = event("é", [10], logprobs, finish_reason="stop")
    joined = join.event(elsewhere.replace(b'"id":"a"', b'"id":"z"').replace(b'"created":1', b'"created":2'))
    assert joined is not None
    top = [
        {"token": "é", "logprob": -0.5, "bytes": [195, 169]},
        {"token": "y", "logprob": -2.0, "bytes": [121]},
    ]
    assert orjson.loads(joined)["choices"] == [
        {
            "index": 0,
            "delta": {"content": "é"},
            "logprobs": {"content": [top[0] | {"top_logprobs": top}]},
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": [10],
        }
    ]
    head = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    assert list(orjson.loads(joined).items())[:4] == list(head.items())


@pytest.mark.parametrize(
    "logprobs",
    [
        {"tokens": ["x"], "top_logprobs": [{"x": -0.5}]},  # of three alternatives two had one text
        {"tokens": ["x"], "top_logprobs": [{"x": -3.0, "y": -4.0}]},  # another one had the token's own text
        {"tokens": ["token_id:9"], "top_logprobs": [{"token_id:9": -0.5, "token_id:8": -2.0}]},
    ],
)
def test_alternatives_that_a_text_completion_does_not_tell_apart_end_a_chat(logprobs: Event) -> None:
    delta = {"index": 0, "delta": {"content": "x"}, "finish_reason": None, "token_ids": [9]}
    opening = orjson.dumps({"id": "a", "created": 1, "choices": [delta], "prompt_token_ids": PROMPT})
    found = begun(CHAT | {"logprobs": True, "top_logprobs": 2}, opening).rest(None)
    assert found is not None
    with pytest.raises(ValueError, match=r"same text|IDs for tokens"):
        found[1].event(event("x", [9], {"text_offset": [0], "token_logprobs": [-0.5], **logprobs}))


@pytest.mark.parametrize(
    "events",
    [
        [],
        [event("x", [9])],  # the prompt's IDs are unknown
        [FIRST, event("y", [10], finish_reason="stop")],
        [event("x", [9] * 100, prompt_token_ids=PROMPT)],  # all tokens there may be
        [event("x", [9], prompt_token_ids=PROMPT, index=0, something="else")],
        [event("x", [9], prompt_token_ids="no list")],
        [event("x", [9], prompt_token_ids=[1, -5])],
    ],
)
def test_nothing_is_asked_for_where_too_little_is_known_or_nothing_is_left(events: list[bytes]) -> None:
    one = begun(TEXT, *events)
    assert not one.possible or one.rest(None) is None


@pytest.mark.parametrize("part", [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "input_audio"}])
def test_a_chat_with_more_than_text_is_not_gone_on_with(part: Event) -> None:
    delta = {"index": 0, "delta": {"content": "x"}, "finish_reason": None, "token_ids": [9]}
    opening = orjson.dumps({"id": "a", "created": 1, "choices": [delta], "prompt_token_ids": PROMPT})
    text = {"type": "text", "text": "hi"}
    assert begun({"messages": [{"role": "user", "content": [text]}]}, opening).possible
    assert not begun({"messages": [{"role": "user", "content": [text, part]}]}, opening).possible


def grouped(pieces: list[tuple[int, str]], sizes: list[int]) -> list[bytes]:
    """The events of some tokens and their texts, so many to an event."""
    events: list[bytes] = []
    at = offset = 0
    for size in [*sizes, *[1] * len(pieces)]:
        part = pieces[at : at + size]
        if not part:
            break
        texts = [text for _, text in part]
        offsets = [offset + len("".join(texts[:i])) for i in range(len(texts))]
        logprobs = {"text_offset": offsets, "token_logprobs": [-1.0] * len(part), "tokens": texts}
        ended = "length" if at + size >= len(pieces) else None
        events.append(
            event(
                "".join(texts),
                [token for token, _ in part],
                logprobs | {"top_logprobs": [{}] * len(part)},
                finish_reason=ended,
                prompt_token_ids=None if events else PROMPT,
            )
        )
        at, offset = at + size, offset + len("".join(texts))
    return events


SIZES = st.lists(st.integers(1, 4), max_size=12)


@given(st.text("aé🐋 鯨", min_size=2, max_size=14), SIZES, SIZES, st.data())
@settings(max_examples=200, deadline=None)
def test_tokens_texts_and_offsets_join_on_however_many_tokens_are_in_an_event(
    text: str, sizes: list[int], later_sizes: list[int], data: st.DataObject
) -> None:
    ids = vocabulary.encode(text)
    pieces = list(zip(ids, vocabulary.pieces(ids), strict=True))
    events = grouped(pieces, sizes)
    cut = data.draw(st.integers(0, len(events) - 1))
    one = begun(TEXT, *events[:cut])
    found = one.rest(None)
    if not cut:
        assert found is None
        return
    assert found is not None
    seam = one.recall.seam
    again = vocabulary.pieces(ids[seam:])
    rest = grouped(list(zip(ids[seam:], again, strict=True)), later_sizes)
    joined = events[:cut] + [data for data in map(found[1].event, rest) if data is not None]
    choices = [orjson.loads(data)["choices"][0] for data in joined]
    assert [token for choice in choices for token in choice["token_ids"]] == ids
    assert "".join(choice["text"] for choice in choices) == text
    tokens = [token for choice in choices for token in choice["logprobs"]["tokens"]]
    assert tokens == [text for _, text in pieces]
    offsets = [offset for choice in choices for offset in choice["logprobs"]["text_offset"]]
    assert offsets == [len("".join(tokens[:i])) for i in range(len(tokens))]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert [choice["prompt_token_ids"] for choice in choices] == [PROMPT] + [None] * (len(choices) - 1)


def test_other_tokens_or_other_text_than_before_do_not_fit() -> None:
    def join() -> Any:
        found = begun(TEXT, FIRST, event("", [10]), event("", [11])).rest(None)
        assert found is not None
        return found[1].event

    for bad in (
        event("", [12]),
        event("y", [10]),
        event("", [10], finish_reason="stop"),
        event("", [10, 12, 13]),
    ):
        with pytest.raises(ValueError, match="this time"):
            join()(bad)
    assert join()(event("", [10, 11])) is None


def test_what_is_kept_of_an_answer_is_bounded() -> None:
    one = continuation(TEXT, 40)
    assert one is not None
    one.recall.note_event(FIRST)
    assert one.possible
    for _ in range(20):
        one.recall.note_event(event("x", [9]))
    assert not one.possible
    assert one.recall.ids_before_the_seam == b""
