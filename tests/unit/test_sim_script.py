"""A simulated engine's answer follows from the request alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.sim import directives, expected_output, vocabulary
from narwhal.sim.directives import Output
from narwhal.sim.script import RequestError, plan


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi"}], **more}


@given(st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_a_lower_limit_cuts_the_answer_short_and_changes_nothing_before(one: int, other: int) -> None:
    ids, text = expected_output(chat(max_tokens=one))
    more_ids, more_text = expected_output(chat(max_tokens=one + other))
    assert more_ids[:one] == ids
    assert more_text.startswith(text)
    assert len(ids) == one


@given(
    st.lists(st.sampled_from(list(Output)), min_size=1, max_size=4, unique=True),
    st.integers(1, 30),
    st.integers(1, 3),
)
@settings(max_examples=100, deadline=None)
def test_an_answer_that_stops_by_itself_has_just_the_tokens_asked_for(
    output: list[Output], tokens: int, calls: int
) -> None:
    wishes = directives.read({"output": output, "output_tokens": tokens, "tool_calls": calls})
    script = plan(True, chat(), wishes)
    assert len(script.pieces) == tokens
    assert script.token_ids[-1] == vocabulary.END_TOKEN
    assert script.finish_reason != "length"
    assert plan(True, chat(max_tokens=tokens), wishes).finish_reason == script.finish_reason
    if tokens > 1:
        assert plan(True, chat(max_tokens=tokens - 1), wishes).finish_reason == "length"


def test_prompts_seeds_and_spoiled_caches_give_different_answers() -> None:
    ids = expected_output(chat(max_tokens=8))[0]
    other = {"messages": [{"role": "user", "content": "Ho"}], "max_tokens": 8}
    for body in (other, chat(max_tokens=8, seed=1), chat(max_tokens=8, tools=[{"type": "function"}])):
        assert expected_output(body)[0] != ids
    assert expected_output(chat(max_tokens=8, seed=0))[0] == ids
    assert expected_output(chat(max_tokens=8), default_seed=1) == expected_output(chat(max_tokens=8, seed=1))
    assert plan(True, chat(max_tokens=8), directives.DEFAULTS, spoiled=True).token_ids != ids


def test_text_in_parts_is_the_same_prompt_as_text_in_one() -> None:
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "max_tokens": 8}
    assert expected_output(parts) == expected_output(chat(max_tokens=8))


def test_a_tool_that_must_be_called_is_called() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    script = plan(True, chat(tools=tools, tool_choice="required"), directives.DEFAULTS)
    assert {piece.output for piece in script.pieces[:-1]} == {Output.TOOL_CALLS}
    assert script.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("sim", "named"),
    [
        (3, "sim is 3"), ({"x": 1}, "'x'"), ({"text": 1}, "text"), ({"output_tokens": 0}, "output_tokens"),
        ({"output_tokens": True}, "output_tokens"), ({"output": "song"}, "song"), ({"output": []}, "output"),
        ({"reasoning_field": "thoughts"}, "reasoning_field"), ({"events": [1]}, "events"),
        ({"fault": {"after": 1}}, "name"), ({"fault": {"name": "hang", "leg": "third"}}, "leg"),
        ({"fault": {"name": "hang", "probability": -1}}, "probability"),
        ({"fault": {"name": "hang", "seconds": True}}, "seconds"),
        ({"fault": {"name": "hang", "count": 1}}, "hang"), ({"fault": "unhealthy"}, "unhealthy"),
    ],
)  # fmt: skip
def test_a_wrong_directive_is_named(sim: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        directives.read(sim)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [3]}, "messages"), ({"messages": [{"content": "x"}]}, "messages"), ({}, "prompt"),
        ({"prompt": [-1]}, "prompt"), ({"prompt": [True]}, "prompt"), ({"prompt": ""}, "prompt"),
        (chat(max_tokens=True), "max_tokens"), (chat(max_completion_tokens=0), "max_completion_tokens"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_turned_down_with_the_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        expected_output(body)
    assert caught.value.param == param
