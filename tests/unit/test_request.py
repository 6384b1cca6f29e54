"""What a client may send in the fields that the router reads, and what it is told otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from narwhal.outcomes import Ending
from narwhal.request import CompletionRequest, Route, read

BOTH = (Route.CHAT, Route.COMPLETIONS)
MINIMAL: dict[Route, dict[str, Any]] = {
    Route.CHAT: {"messages": [{"role": "user", "content": "Hello"}]},
    Route.COMPLETIONS: {"prompt": "Hello"},
}


def send(route: Route, body: Any, headers: dict[bytes, bytes] | None = None) -> CompletionRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read(route, raw, model="whale", headers=headers or {})


def accepted(route: Route, **fields: Any) -> CompletionRequest:
    return send(route, {"model": "whale", **MINIMAL[route], **fields})


def refused(route: Route, body: Any, headers: dict[bytes, bytes] | None = None) -> Ending:
    with pytest.raises(Ending) as caught:
        send(route, body, headers)
    return caught.value


def refused_field(route: Route, **fields: Any) -> Ending:
    return refused(route, {"model": "whale", **MINIMAL[route], **fields})


AT_LEAST_1 = "an integer of at least 1"
WRONG: list[tuple[str, Any, str, str, str]] = [
    # field, value, param, what is allowed, what was seen
    ("model", 5, "model", "a string", "got an integer (5)"),
    ("stream", 1, "stream", "a Boolean", "got an integer (1)"),
    ("stream", "true", "stream", "a Boolean", 'got a string ("true")'),
    ("stream_options", True, "stream_options", "an object", "got a Boolean (true)"),
    ("stream_options", [], "stream_options", "an object", "got an empty list"),
    (
        "stream_options",
        {"include_usage": "yes"},
        "stream_options.include_usage",
        "a Boolean",
        'got a string ("yes")',
    ),
    ("return_token_ids", 0, "return_token_ids", "a Boolean", "got an integer (0)"),
    ("modalities", "text", "modalities", "a list of strings", 'got a string ("text")'),
    ("modalities", ["text", 7], "modalities[1]", "a string", "got an integer (7)"),
    ("tools", {}, "tools", "a list of objects", "got an object"),
    ("tools", [{"type": "function"}, None], "tools[1]", "an object", "got null"),
    *(
        (field, value, field, AT_LEAST_1, seen)
        for field in ("n", "best_of", "max_tokens", "max_completion_tokens")
        for value, seen in (
            (True, "got a Boolean (true)"),
            ("5", 'got a string ("5")'),
            (5.0, "got a number with a fraction or exponent (5.0)"),
            (0, "got 0"),
            (-1, "got -1"),
            ([1], "got a list"),
        )
    ),
    ("max_tokens", 2**31, "max_tokens", "an integer from 1 to 2147483647", "got 2147483648"),
    ("max_completion_tokens", 10**40, "max_completion_tokens", "from 1 to 2147483647", f"got {10**40}"),
    ("min_tokens", -1, "min_tokens", "an integer of at least 0", "got -1"),
    ("min_tokens", False, "min_tokens", "an integer of at least 0", "got a Boolean (false)"),
    ("min_tokens", 2**31, "min_tokens", "an integer from 0 to 2147483647", "got 2147483648"),
]
WRONG_MESSAGES: list[tuple[Any, str, str, str]] = [
    ("Hello", "messages", "a list of messages", "got a string"),
    (None, "messages", "a list of messages", "got null"),
    ([], "messages", "a list of at least one message", "got an empty list"),
    ([{"role": "user"}, "Hello"], "messages[1]", "an object with a string `role`", "got a string"),
    ([{"role": "user"}, {"role": "user"}, {"role": 5}], "messages[2].role", "a string", "got an integer (5)"),
    ([{"content": "Hello"}], "messages[0].role", "a string", "it is missing"),
    ([{"role": None}], "messages[0].role", "a string", "got null"),
]
ID = "a token ID, an integer from 0 to 2147483647"
WRONG_PROMPTS: list[tuple[Any, str, str, str]] = [
    (5, "prompt", "a string, a list of one string, or a list of token IDs", "got an integer (5)"),
    (None, "prompt", "a string, a list of one string, or a list of token IDs", "got null"),
    ({"text": "Hello"}, "prompt", "a string", "got an object"),
    ([], "prompt", "a list that is not empty", "got an empty list"),
    ([[]], "prompt[0]", "a list that is not empty", "got an empty list"),
    (["a", "b"], "prompt", "one prompt", "several were sent; send a request for each"),
    ([[1], [2]], "prompt", "one prompt", "several were sent; send a request for each"),
    ([1, True], "prompt[1]", ID, "got a Boolean (true)"),
    ([1, -1], "prompt[1]", ID, "got an integer (-1)"),
    ([2**31], "prompt[0]", ID, "got an integer (2147483648)"),
    ([1, 2.0], "prompt[1]", ID, "got a number with a fraction or exponent (2.0)"),
    ([1, "a"], "prompt[1]", ID, "got a string"),
    ([1, [2]], "prompt[1]", ID, "got a list"),
    ([[1, None]], "prompt[0][1]", ID, "got null"),
]


def assert_says(ending: Ending, param: str, allowed: str, seen: str) -> None:
    assert (ending.name, ending.http_status, ending.param) == ("invalid_field", 400, param)
    assert ending.message.startswith(f"`{param}` must be ")
    assert allowed in ending.message
    assert ending.message.endswith(seen)


@pytest.mark.parametrize("route", BOTH)
@pytest.mark.parametrize(("field", "value", "param", "allowed", "seen"), WRONG)
def test_a_wrong_type_or_range_is_named_with_what_was_seen_and_what_is_allowed(
    route: Route, field: str, value: Any, param: str, allowed: str, seen: str
) -> None:
    assert_says(refused_field(route, **{field: value}), param, allowed, seen)


@pytest.mark.parametrize(("value", "param", "allowed", "seen"), WRONG_MESSAGES)
def test_a_wrong_message_is_named_by_its_path(value: Any, param: str, allowed: str, seen: str) -> None:
    assert_says(refused_field(Route.CHAT, messages=value), param, allowed, seen)


@pytest.mark.parametrize(("value", "param", "allowed", "seen"), WRONG_PROMPTS)
def test_a_wrong_prompt_is_named_by_its_path(value: Any, param: str, allowed: str, seen: str) -> None:
    assert_says(refused_field(Route.COMPLETIONS, prompt=value), param, allowed, seen)


@pytest.mark.parametrize(("route", "field"), [(Route.CHAT, "messages"), (Route.COMPLETIONS, "prompt")])
def test_a_body_without_input_is_told_which_field_is_missing(route: Route, field: str) -> None:
    ending = refused(route, {"model": "whale"})
    assert (ending.name, ending.param) == ("invalid_field", field)
    assert ending.message.endswith("it is missing")


def test_an_embedded_prompt_needs_no_text() -> None:
    assert send(Route.COMPLETIONS, {"prompt_embeds": "AAAA"}).prompt_token_count is None


@pytest.mark.parametrize("route", BOTH)
def test_null_counts_as_absent(route: Route) -> None:
    fields = [
        *("model", "stream", "stream_options", "n", "best_of", "max_tokens", "max_completion_tokens"),
        *("min_tokens", "return_token_ids", "modalities", "tools", "audio"),
    ]
    request = accepted(route, **dict.fromkeys(fields))
    assert (request.stream, request.include_usage, request.return_token_ids) == (False, False, False)
    assert (request.max_tokens, request.uses_max_completion_tokens) == (None, False)
    assert not accepted(route, stream_options={"include_usage": None}).include_usage


@pytest.mark.parametrize("route", BOTH)
def test_a_field_the_router_does_not_read_is_not_judged(route: Route) -> None:
    other = Route.COMPLETIONS if route is Route.CHAT else Route.CHAT
    request = accepted(route, temperature="hot", unheard_of=[{}], **dict.fromkeys(MINIMAL[other], 5))
    assert request.body.value("temperature") == "hot"


def test_what_is_read_is_what_was_sent() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    request = accepted(
        Route.CHAT, stream=True, stream_options={"include_usage": True}, return_token_ids=True,
        n=1, best_of=1, max_tokens=7, max_completion_tokens=9, min_tokens=0, modalities=["text"], tools=tools,
    )  # fmt: skip
    assert request.route is Route.CHAT
    assert request.stream
    assert request.include_usage
    assert request.return_token_ids
    assert (request.max_tokens, request.uses_max_completion_tokens) == (9, True)
    assert request.prompt_token_count is None
    assert request.prompt_bytes == len(json.dumps(MINIMAL[Route.CHAT]["messages"])) + len(json.dumps(tools))
    assert (request.slo_ttft_s, request.slo_tpot_s) == (None, None)


def test_the_limit_of_a_text_completion_is_max_tokens_alone() -> None:
    request = accepted(Route.COMPLETIONS, max_tokens=7, max_completion_tokens=9)
    assert (request.max_tokens, request.uses_max_completion_tokens) == (7, True)


@pytest.mark.parametrize(
    ("prompt", "count"), [("Hi", None), (["Hi"], None), ([0, 5, 2**31 - 1], 3), ([[1, 2]], 2), ("", None)]
)
def test_token_ids_are_counted_and_text_is_measured(prompt: Any, count: int | None) -> None:
    request = accepted(Route.COMPLETIONS, prompt=prompt)
    assert (request.prompt_token_count, request.prompt_bytes) == (count, len(json.dumps(prompt)))


def test_a_key_spelt_with_escapes_is_the_same_key() -> None:
    assert send(Route.CHAT, rb'{"str\u0065am":true,"messages":[{"r\u006fle":"user"}]}').stream


def test_of_a_key_given_twice_the_last_counts() -> None:
    raw = b'{"stream":true,"n":5,"n":1,"messages":[{"role":5,"role":"user"}],"stream":false}'
    assert not send(Route.CHAT, raw).stream
    assert (
        refused(Route.CHAT, raw.replace(b'5,"role":"user"', b'"user","role":5')).param == "messages[0].role"
    )


@pytest.mark.parametrize("route", BOTH)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("field", ["n", "best_of"])
@pytest.mark.parametrize("value", [2, 128, 10**30])
def test_more_than_one_choice_is_refused(route: Route, stream: bool, field: str, value: int) -> None:
    ending = refused_field(route, stream=stream, **{field: value})
    assert (ending.name, ending.http_status, ending.param) == ("unsupported_sampling_width", 400, field)
    assert f"got {value};" in ending.message


UNSUPPORTED = [
    ({"audio": {"voice": "alloy"}}, "audio", "`audio`"),
    ({"modalities": ["text", "audio"]}, "modalities", 'got "audio"'),
    ({"tools": [{"type": "function"}, {"type": "custom"}]}, "tools[1]", '"custom"'),
    ({"tools": [{"type": {}}]}, "tools[0]", "an object"),
]


@pytest.mark.parametrize("route", BOTH)
@pytest.mark.parametrize(("fields", "param", "shown"), UNSUPPORTED)
def test_what_a_whole_response_cannot_hold_is_refused_and_streamed_if_asked_for(
    route: Route, fields: dict[str, Any], param: str, shown: str
) -> None:
    ending = refused_field(route, **fields)
    assert (ending.name, ending.http_status, ending.param) == ("unsupported_value", 400, param)
    assert shown in ending.message
    assert "set `stream` to true" in ending.message
    assert accepted(route, stream=True, **fields).stream


@pytest.mark.parametrize("tools", [[], [{"function": {}}], [{"type": None}], [{"type": "function"}]])
def test_a_tool_is_a_function_unless_it_says_otherwise(tools: list[Any]) -> None:
    accepted(Route.CHAT, tools=tools, modalities=[])


@pytest.mark.parametrize("route", BOTH)
@pytest.mark.parametrize("asked", ["whale-2", "", "Whale"])
def test_another_model_is_not_found_and_both_are_named(route: Route, asked: str) -> None:
    ending = refused_field(route, model=asked)
    assert (ending.name, ending.http_status, ending.param) == ("model_not_found", 404, "model")
    assert f'"{asked}"' in ending.message
    assert '"whale"' in ending.message


def test_a_model_spelt_with_escapes_is_found() -> None:
    send(Route.COMPLETIONS, rb'{"model":"wh\u0061le","prompt":"x"}')
    assert refused(Route.COMPLETIONS, rb'{"model":"\ud800","prompt":"x"}').name == "model_not_found"
    # What is written like the name, and means another one.
    with pytest.raises(Ending) as raised:
        read(Route.COMPLETIONS, rb'{"model":"a\nb","prompt":"x"}', model=r"a\nb", headers={})
    assert raised.value.name == "model_not_found"


@pytest.mark.parametrize("route", BOTH)
@pytest.mark.parametrize(
    ("raw", "name", "shown"),
    [
        (b"", "invalid_json", "nothing was sent"),
        (b"\xef\xbb\xbf{}", "invalid_json", "byte order mark"),
        (b'{"prompt":"\xff"}', "invalid_json", "byte 11: not UTF-8"),
        (b'{"prompt":"x",}', "invalid_json", "byte 14"),
        (b'{"prompt":"x"', "invalid_json", "an object is not closed"),
        (b"[1]", "invalid_body", "got a list"),
        (b"null", "invalid_body", "got null"),
        (b'"text"', "invalid_body", "got a string"),
    ],
)
def test_a_body_that_is_not_a_json_object_is_told_why(
    route: Route, raw: bytes, name: str, shown: str
) -> None:
    ending = refused(route, raw)
    assert (ending.name, ending.http_status, ending.param) == (name, 400, None)
    assert shown in ending.message


@pytest.mark.parametrize("name", ["x-slo-ttft-ms", "x-slo-tpot-ms"])
@pytest.mark.parametrize(
    "value",
    ["0", "-5", "abc", "", "nan", "inf", "1e999", "1_000", "0x10", "1,5", "1e-400", "\u0665", "9" * 999],
)
def test_a_latency_target_must_be_a_positive_number(name: str, value: str) -> None:
    ending = refused(Route.CHAT, MINIMAL[Route.CHAT], {name.encode(): value.encode()})
    assert_says(ending, name, "a positive number of milliseconds", "")


@pytest.mark.parametrize(
    ("sent", "seconds"), [(b"250", 0.25), (b" 2.5 ", 0.0025), (b"1e3", 1.0), (b".5", 0.0005)]
)
def test_latency_targets_are_milliseconds(sent: bytes, seconds: float) -> None:
    request = send(Route.CHAT, MINIMAL[Route.CHAT], {b"x-slo-ttft-ms": sent, b"x-slo-tpot-ms": sent})
    assert request.slo_ttft_s == pytest.approx(seconds)
    assert request.slo_tpot_s == pytest.approx(seconds)


def test_a_long_value_is_abbreviated_and_prompt_text_is_never_quoted() -> None:
    assert len(refused_field(Route.CHAT, stream="x" * 10_000).message) < 150
    secret = "the prompt of a user"
    for route, body in (
        (Route.CHAT, {"messages": secret}),
        (Route.CHAT, {"messages": [secret]}),
        (Route.CHAT, {"messages": [{"role": [secret]}]}),
        (Route.COMPLETIONS, {"prompt": {"text": secret}}),
        (Route.COMPLETIONS, {"prompt": [1, secret]}),
    ):
        assert secret not in refused(route, body).message
