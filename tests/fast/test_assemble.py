"""Whole responses put together from streams: the rules of issue and documentation, and the obvious oracle."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal._fast.assemble import Assembler, AssemblyError
from tests.fast.engine_streams import Writer
from tests.fast.oracles import assemble as oracle

LIMIT = 1 << 24


def whole(
    events: Iterable[bytes | str | dict[str, Any]],
    chat: bool = True,
    keep_ids: bool = False,
    shape: str = "vllm",
    counts: tuple[int, ...] = (5, 7),
    limit: int = LIMIT,
) -> bytes:
    assembler = Assembler(chat, keep_ids, limit, shape)
    for event in events:
        if isinstance(event, dict):
            event = json.dumps(event)
        assembler.add_event(event.encode() if isinstance(event, str) else event)
    return assembler.finish(*counts)


def delta(value: Any, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": value, **choice}]}


def text(value: Any, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": value, **choice}]}


def choice_of(*events: Any, **kwargs: Any) -> Any:
    return json.loads(whole(events, **kwargs))["choices"][0]


def message_of(*events: Any, **kwargs: Any) -> Any:
    return choice_of(*events, **kwargs)["message"]


def call(index: Any, **fields: Any) -> dict[str, Any]:
    return delta({"tool_calls": [{"index": index, **fields}]})


def field_at_fault(*events: Any, **kwargs: Any) -> str:
    with pytest.raises(AssemblyError) as caught:
        whole(events, **kwargs)
    assert not caught.value.too_large
    assert caught.value.field in str(caught.value)
    return caught.value.field


# Strings


@pytest.mark.parametrize("name", ["content", "reasoning", "reasoning_content", "refusal"])
def test_fragments_of_a_string_concatenate_under_its_own_name(name: str) -> None:
    message = message_of(delta({name: "one "}), delta({name: None}), delta({name: ""}), delta({name: "two"}))
    assert message[name] == "one two"
    assert (message["content"] is None) == (name != "content")


def test_reasoning_and_content_do_not_mix() -> None:
    message = message_of(delta({"reasoning": "a", "content": "b"}), delta({"content": "c", "reasoning": "d"}))
    assert (message["reasoning"], message["content"]) == ("ad", "bc")


def test_content_is_an_empty_string_when_nothing_at_all_came() -> None:
    assert message_of(delta({"role": "assistant", "content": ""}), delta({}))["content"] == ""


def test_every_escape_survives_as_it_was_written() -> None:
    fragments = [r"a\u0000\"\\\/", "\\ud83d", r"\uDE00", "é\U0001f600", r"\n\ud800"]
    events = ['{"choices":[{"index":0,"delta":{"content":"' + part + '"}}]}' for part in fragments]
    assert b'"content":"' + "".join(fragments).encode() + b'"' in whole(events)
    assert message_of(*events)["content"] == 'a\0"\\/\U0001f600é\U0001f600\n\ud800'


def test_the_role_is_the_engines() -> None:
    assert (
        message_of(delta({"role": "critic"}), delta({"role": None}), delta({"role": ""}))["role"] == "critic"
    )
    assert message_of(delta({"content": "x"}))["role"] == "assistant"


def test_text_of_a_completion_concatenates() -> None:
    assert choice_of(text("a"), text(""), text(None), text("b"), chat=False)["text"] == "ab"


# Tool calls


def test_tool_calls_come_in_index_order_each_part_joined_on_its_own() -> None:
    message = message_of(
        call(2, id="c", type="function", function={"name": "look", "arguments": ""}),
        call(0, id="a-", type="function", function={"name": "f", "arguments": '{"x"'}),
        call(2, function={"arguments": "{}"}),
        call(0, id="1", function={"name": "g", "arguments": ":1}"}),
    )
    assert message["tool_calls"] == [
        {"id": "a-1", "type": "function", "function": {"name": "fg", "arguments": '{"x":1}'}},
        {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]
    assert message["content"] is None


def test_arguments_that_are_not_json_stay_the_string_they_are() -> None:
    message = message_of(call(0, id="a", function={"name": "f", "arguments": '{"x": '}))
    assert message["tool_calls"][0]["function"]["arguments"] == '{"x": '


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"function": {"name": "f"}}, "id"), ({"id": "a", "function": {"arguments": "{}"}}, "function.name")],
)
def test_a_tool_call_without_id_or_name_is_an_error(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(AssemblyError, match=f"index 1 has no {field}") as caught:
        whole([call(0, id="x", function={"name": "y"}), call(1, **fields)])
    assert caught.value.field == f"choices[0].message.tool_calls[1].{field}"


def test_a_function_call_concatenates() -> None:
    message = message_of(
        delta({"function_call": {"name": "lo", "arguments": ""}}),
        delta({"function_call": {"name": "ok", "arguments": "{"}}),
        delta({"function_call": {"arguments": "}"}}),
    )
    assert message["function_call"] == {"name": "look", "arguments": "{}"}
    assert message["content"] is None


# Logprobs, reasons, metadata


def test_chat_logprobs_concatenate_in_order() -> None:
    events = [
        delta({"content": "a"}, logprobs={"content": [{"token": "a"}], "refusal": None}),
        delta({"content": "b"}, logprobs=None),
        delta({"refusal": "c"}, logprobs={"content": [], "refusal": [{"token": "c"}, {"token": "d"}]}),
        delta({"content": "e"}, logprobs={"content": [{"token": "e"}]}),
    ]
    logprobs = choice_of(*events)["logprobs"]
    assert [item["token"] for item in logprobs["content"]] == ["a", "e"]
    assert [item["token"] for item in logprobs["refusal"]] == ["c", "d"]


def test_completion_logprobs_concatenate_in_order() -> None:
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    first = dict(zip(names, (["a"], [None], [None], [0]), strict=True))
    second = dict(zip(names, (["b"], [-1.5], [{"b": -1.5}], [1]), strict=True))
    choice = choice_of(text("a", logprobs=first), text("b", logprobs=second), chat=False)
    assert choice["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -1.5],
        "top_logprobs": [None, {"b": -1.5}],
        "text_offset": [0, 1],
    }


def test_reasons_outlive_later_events() -> None:
    choice = choice_of(
        delta({}, finish_reason="length"),
        delta({}, finish_reason="stop", stop_reason=128001),
        delta({}, finish_reason=None, stop_reason=None),
        {"choices": [], "usage": {"prompt_tokens": 1}},
    )
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", 128001)


def test_it_says_whether_a_finish_reason_came() -> None:
    assembler = Assembler(True, False, LIMIT)
    assembler.add_event(json.dumps(delta({"content": "x"}, finish_reason=None)).encode())
    assert not assembler.finished
    assembler.add_event(json.dumps(delta({}, finish_reason="stop")).encode())
    assert assembler.finished


def test_metadata_is_kept_byte_for_byte_and_null_does_not_erase_it() -> None:
    response = whole(
        [
            '{"id":"a\\u0062","created":1e3,"service_tier":null,"x-engine":{"b" : 1.0},"choices":[]}',
            '{"id":"","x-engine":{},"service_tier":"flex","choices":[{"index":0,"delta":{"content":"x"}}]}',
            '{"id":null,"service_tier":null,"system_fingerprint":"f","choices":[]}',
        ],
        shape="openai",
    )
    assert b'"id":"a\\u0062"' in response
    assert b'"created":1e3' in response
    assert b'"x-engine":{"b" : 1.0}' in response
    assert json.loads(response)["service_tier"] == "flex"
    assert json.loads(response)["system_fingerprint"] == "f"


@pytest.mark.parametrize(("chat", "name"), [(True, "chat.completion"), (False, "text_completion")])
def test_the_object_is_a_whole_responses(chat: bool, name: str) -> None:
    event = (delta if chat else text)("x") if not chat else delta({"content": "x"})
    assert json.loads(whole([event | {"object": "chat.completion.chunk"}], chat))["object"] == name


# Usage


def test_usage_is_the_engines_wherever_it_came() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "extra": {"x": 1}}
    events = [{"choices": [], "usage": usage}, delta({"content": "x"}) | {"usage": None}]
    assert json.loads(whole(events, shape="openai"))["usage"] == usage


def test_usage_is_computed_when_the_engine_gave_none() -> None:
    usage = json.loads(whole([delta({"content": "x"}) | {"usage": {}}], counts=(30, 4)))["usage"]
    assert {name: usage[name] for name in usage if usage[name] is not None} == {
        "prompt_tokens": 30, "completion_tokens": 4, "total_tokens": 34,
    }  # fmt: skip


def test_only_the_cached_figure_is_replaced() -> None:
    usage = '{ "prompt_tokens": 9,"prompt_tokens_details":{"audio_tokens":0 , "cached_tokens" : 9},"z":1.0}'
    event = '{"choices":[{"index":0,"delta":{"content":"x"}}],"usage":' + usage + "}"
    response = whole([event], shape="openai", counts=(9, 1, 4))
    assert usage.replace('"cached_tokens" : 9', '"cached_tokens" : 4').encode() in response
    assert usage.encode() in whole([event], shape="openai", counts=(9, 1))


def test_no_cached_figure_is_made_up() -> None:
    event = delta({"content": "x"}) | {"usage": {"prompt_tokens": 9, "prompt_tokens_details": None}}
    assert json.loads(whole([event], counts=(9, 1, 4)))["usage"]["prompt_tokens_details"] is None


# Token IDs


def test_token_ids_are_there_only_when_asked_for() -> None:
    events = [
        delta({"content": ""}) | {"prompt_token_ids": [7, 8], "prompt_text": "<s>"},
        delta({"content": "a"}, token_ids=[1]),
        delta({"content": "b"}, token_ids=[2, 3]),
        delta({}, token_ids=[]),
    ]
    response = json.loads(whole(events, keep_ids=True))
    assert (response["prompt_token_ids"], response["prompt_text"]) == ([7, 8], "<s>")
    assert response["choices"][0]["token_ids"] == [1, 2, 3]
    response = json.loads(whole(events))
    assert (response["prompt_token_ids"], response["prompt_text"]) == (None, None)
    assert response["choices"][0]["token_ids"] is None
    for name in (b"token_ids", b"prompt_token_ids", b"prompt_text"):
        assert name not in whole(events, shape="openai")


def test_a_completions_prompt_ids_lie_in_its_choice() -> None:
    choice = choice_of(
        text("a", token_ids=[1], prompt_token_ids=[5, 6]),
        text("b", token_ids=[2], prompt_token_ids=None),
        chat=False,
        keep_ids=True,
    )
    assert (choice["token_ids"], choice["prompt_token_ids"]) == ([1, 2], [5, 6])


# What can't be put together


@pytest.mark.parametrize("name", ["audio", "annotations", "custom", "speaker"])
@pytest.mark.parametrize("value", [{"x": None}, [None], "x", 0, False, 1.5])
def test_an_unknown_field_with_a_value_is_an_error(name: str, value: Any) -> None:
    assert field_at_fault(delta({name: value})) == f"choices[0].delta.{name}"
    assert field_at_fault(delta({}, **{name: value})) == f"choices[0].{name}"
    assert field_at_fault(text("a", **{name: value}), chat=False) == f"choices[0].{name}"
    assert field_at_fault(call(0, **{name: value})) == f"choices[0].delta.tool_calls[0].{name}"


def test_a_field_is_named_in_text_even_if_its_name_is_none() -> None:
    event = r'{"choices":[{"delta":{"a\ud83d":1,"x":2}}]}'
    assert field_at_fault(event) == r"choices[0].delta.a\ud83d"
    field_at_fault(delta({"é" * 1000: 1})).encode()


@pytest.mark.parametrize("value", [None, "", [], {}])
def test_a_field_without_a_value_is_no_error(value: Any) -> None:
    names = ("audio", "content", "role", "refusal", "tool_calls", "function_call", "token_ids")
    event = delta(dict.fromkeys(names, value), **dict.fromkeys(("logprobs", "finish_reason", "odd"), value))
    message = message_of(event, delta({"content": "x"}), {"choices": value, "usage": value}, delta(value), {})
    assert message["content"] == "x"
    assert "audio" not in message or message["audio"] is None


CALL = "choices[0].delta.tool_calls[0]"


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (delta({"content": 3}), "choices[0].delta.content"),
        (delta({"content": ["a"]}), "choices[0].delta.content"),
        (delta({"role": 1}), "choices[0].delta.role"),
        (delta("x"), "choices[0].delta"),
        (delta({"tool_calls": {"index": 0}}), "choices[0].delta.tool_calls"),
        (delta({"tool_calls": [7]}), CALL),
        (delta({"tool_calls": [{"id": "a"}]}), f"{CALL}.index"),
        (delta({"tool_calls": [{"index": 0}, {"id": "b"}]}), "choices[0].delta.tool_calls[1].index"),
        (call(None), f"{CALL}.index"),
        (call(True), f"{CALL}.index"),
        (call(-1), f"{CALL}.index"),
        (call(0.0), f"{CALL}.index"),
        (call("0"), f"{CALL}.index"),
        (call(1 << 63), f"{CALL}.index"),
        (call(0, type="custom"), f"{CALL}.type"),
        (call(0, id=4), f"{CALL}.id"),
        (call(0, function="f"), f"{CALL}.function"),
        (call(0, function={"name": 1}), f"{CALL}.function.name"),
        (call(0, function={"arguments": {"x": 1}}), f"{CALL}.function.arguments"),
        (call(0, function={"strict": True}), f"{CALL}.function.strict"),
        (delta({"function_call": "f"}), "choices[0].delta.function_call"),
        (delta({"function_call": {"arguments": 1}}), "choices[0].delta.function_call.arguments"),
        (delta({}, logprobs=[1]), "choices[0].logprobs"),
        (delta({}, logprobs={"content": {"a": 1}}), "choices[0].logprobs.content"),
        (delta({}, logprobs={"content": [{}, None]}), "choices[0].logprobs.content[1]"),
        (delta({}, logprobs={"tokens": ["a"]}), "choices[0].logprobs.tokens"),
        (delta({}, finish_reason=True), "choices[0].finish_reason"),
        (delta({}, stop_reason=[1]), "choices[0].stop_reason"),
        (delta({}, text="x"), "choices[0].text"),
        ({"choices": [{"index": 1, "delta": {}}]}, "choices[0].index"),
        ({"choices": [{"index": False, "delta": {}}]}, "choices[0].index"),
        ({"choices": [{"index": 0}, {"index": 1}]}, "choices[1]"),
        ({"choices": {"index": 0}}, "choices"),
        ({"choices": ["x"]}, "choices[0]"),
        ({"usage": 3}, "usage"),
    ],
)
def test_a_malformed_field_is_named_by_its_path(event: dict[str, Any], field: str) -> None:
    assert field_at_fault(event) == field


@pytest.mark.parametrize(
    ("logprobs", "field"),
    [
        ({"tokens": [1]}, "tokens[0]"),
        ({"token_logprobs": [-1, "x"]}, "token_logprobs[1]"),
        ({"top_logprobs": [[]]}, "top_logprobs[0]"),
        ({"text_offset": [0.5]}, "text_offset[0]"),
        ({"content": [{"token": "a"}]}, "content"),
    ],
)
def test_logprobs_of_a_completion_have_their_own_shape(logprobs: dict[str, Any], field: str) -> None:
    assert field_at_fault(text("a", logprobs=logprobs), chat=False) == f"choices[0].logprobs.{field}"


@pytest.mark.parametrize(
    ("event", "field"),
    [
        ('{"choices":[{"delta":{}}],"choices":[]}', "choices"),
        ('{"id":"a","id":"a"}', "id"),
        ('{"odd":1,"o\\u0064d":1}', "odd"),
        ('{"choices":[{"delta":{},"d\\u0065lta":{}}]}', "choices[0].delta"),
        ('{"choices":[{"delta":{"content":"a","content":""}}]}', "choices[0].delta.content"),
        ('{"choices":[{"delta":{"tool_calls":[{"index":0,"index":0}]}}]}', f"{CALL}.index"),
    ],
)
def test_a_repeated_key_is_an_error(event: str, field: str) -> None:
    assert field_at_fault(event) == field


@pytest.mark.parametrize(
    "event", ["[]", '"x"', "null", "", "{", '{"a":1}x', '{"choices":[{"delta":{"a":tru}}]}']
)
def test_what_is_no_object_is_an_error(event: str) -> None:
    assert field_at_fault(event) == ""


@pytest.mark.parametrize("events", [[], [{"choices": []}], [{"id": "a", "usage": {"prompt_tokens": 1}}]])
def test_a_stream_without_a_choice_is_an_error(events: list[Any]) -> None:
    assert field_at_fault(*events) == "choices"


def test_an_error_is_final() -> None:
    assembler = Assembler(True, False, LIMIT)
    for event in (delta({"content": 1}), delta({"content": "x"})):
        with pytest.raises(AssemblyError, match="is a number"):
            assembler.add_event(json.dumps(event).encode())
    with pytest.raises(AssemblyError, match="is a number"):
        assembler.finish(1, 1)


# Size


@pytest.mark.parametrize(
    "events",
    [
        [delta({"content": "x" * 100})] * 10,
        [call(index, id=f"call-{index}", function={"name": "f", "arguments": "{}"}) for index in range(20)],
        [delta({}, logprobs={"content": [{"token": "a"}]})] * 10,
        [delta({"content": "x"}) | {"id": "a" * 300, "usage": {"prompt_tokens": 1}}] * 3,
    ],
)
def test_a_response_may_be_as_large_as_the_limit_and_no_larger(events: list[dict[str, Any]]) -> None:
    response = whole(events)
    assert whole(events, limit=len(response)) == response
    with pytest.raises(AssemblyError, match=r"serving\.max_response_bytes") as caught:
        whole(events, limit=len(response) - 1)
    assert caught.value.too_large


def test_what_is_too_large_is_known_before_it_is_kept() -> None:
    assembler = Assembler(True, False, 10_000)
    event = json.dumps(delta({"content": "x" * 1000})).encode()
    for _ in range(10):
        assembler.add_event(event)
    with pytest.raises(AssemblyError, match="larger than 10000 bytes"):
        assembler.add_event(event)
    assert assembler.too_large


def test_what_later_events_replace_does_not_count() -> None:
    events = [delta({}, stop_reason=n) | {"usage": {"prompt_tokens": n}, "created": n} for n in range(100)]
    assert len(whole(events, limit=800)) > 500


def test_fields_at_the_top_level_are_bounded() -> None:
    assert field_at_fault({f"f{n}": n for n in range(oracle.MAX_MEMBERS + 1)}) == ""


def _peak(events: Iterable[bytes]) -> tuple[int, int]:
    assembler = Assembler(True, True, 1 << 30)
    tracemalloc.start()
    try:
        for event in events:
            assembler.add_event(event)
        return tracemalloc.get_traced_memory()[1], assembler.size
    finally:
        tracemalloc.stop()


def test_a_hundred_thousand_events_take_memory_in_proportion_to_the_text() -> None:
    event = (
        b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
        b'"delta":{"content":" word","reasoning":"hm"},"logprobs":{"content":[{"token":" word"}]},'
        b'"finish_reason":null,"token_ids":[5]}],"usage":{"prompt_tokens":1,"completion_tokens":1}}'
    )
    peak, size = _peak(event for _ in range(100_000))
    assert size < 100_000 * len(b'word hm,{"token":" word"},5') + 1000
    assert peak < 3 * size + 10_000


def test_many_tool_calls_in_turns_take_memory_in_proportion_to_the_text() -> None:
    events = [json.dumps(call(n % 5000, id="i", function={"name": "f"})).encode() for n in range(20_000)]
    peak, size = _peak(events)
    assert peak < 8 * size


# The oracle


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("chat", [True, False])
@given(
    picks=st.binary(min_size=300, max_size=800),
    keep_ids=st.booleans(),
    shape=st.sampled_from(["vllm", "openai"]),
    cached=st.sampled_from([-1, 0, 8]),
)
@settings(deadline=None, max_examples=150)
def test_any_stream_is_put_together_as_the_oracle_does(
    chat: bool, odd: bool, picks: bytes, keep_ids: bool, shape: str, cached: int
) -> None:
    events = Writer(picks, chat, odd).stream()
    counts = (11, 3, cached)
    try:
        expected = repr(oracle.assemble(events, chat, keep_ids, shape, counts))
    except oracle.Wrong as wrong:
        expected = f"wrong: {wrong}"
    try:
        seen = repr(oracle.plain(oracle.load(whole(events, chat, keep_ids, shape, counts))))
    except AssemblyError as error:
        seen = f"wrong: {error.field}"
    assert seen == expected
