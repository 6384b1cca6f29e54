"""The checks of a body's lists against the same checks on decoded ones."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal._fast.body import Body
from narwhal._fast.fields import (
    Fault,
    check_messages,
    check_modalities,
    check_tools,
    foreign_modality,
    foreign_tool,
    read_prompt,
)
from tests.fast.oracles import fields as oracle

moderate = settings(max_examples=120, deadline=None)

# Texts that look like structure, and end in what could hide their end.
TEXTS = (
    st.sampled_from(("", "text", "function", '"', "\\", '\\"', 'a"]}', '{"role":"x"}', "[1,", "é🦄", "\n"))
    | st.text()
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
STYLES = st.sampled_from(
    ({"separators": (",", ":")}, {"indent": 1}, {"ensure_ascii": False}, {"separators": (" , ", " : ")})
)


def body(key: str, value: object, style: dict[str, Any]) -> Body:
    return Body(json.dumps({"before": ["x"], key: value, "after": '"]'}, **style).encode())


def path(fault: Fault | None) -> str | None:
    return None if fault is None else fault.path


messages = st.lists(
    st.one_of(
        st.fixed_dictionaries({"content": VALUES, "role": TEXTS, "name": VALUES}),
        st.fixed_dictionaries({"role": TEXTS, "content": VALUES}),
        st.fixed_dictionaries({}, optional={"role": VALUES, "content": VALUES}),
        VALUES,
    ),
    max_size=4,
)


@moderate
@given(messages, STYLES)
def test_the_first_message_that_is_not_an_object_with_a_string_role_is_named(
    items: list[Any], style: dict[str, Any]
) -> None:
    assert path(check_messages(body("messages", items, style))) == oracle.messages(items)


tools = st.lists(
    st.one_of(
        st.fixed_dictionaries({"type": st.just("function"), "function": VALUES}),
        st.fixed_dictionaries({"function": VALUES}, optional={"type": TEXTS | st.none() | VALUES}),
        VALUES,
    ),
    max_size=4,
)


@moderate
@given(tools, STYLES)
def test_the_first_tool_that_is_not_a_function_is_named(items: list[Any], style: dict[str, Any]) -> None:
    read = body("tools", items, style)
    expected = oracle.tools(items)
    assert path(check_tools(read)) == expected
    if expected is None:
        assert path(foreign_tool(read)) == oracle.foreign_tool(items)


@moderate
@given(st.lists(st.just("text") | TEXTS, max_size=3) | st.lists(VALUES, max_size=3), STYLES)
def test_the_first_modality_that_is_not_text_is_found(items: list[Any], style: dict[str, Any]) -> None:
    read = body("modalities", items, style)
    expected = oracle.modalities(items)
    assert path(check_modalities(read)) == expected
    if expected is None:
        fault = foreign_modality(read)
        assert (fault is not None) == any(item != "text" for item in items)
        if fault is not None:
            shown = json.dumps(next(item for item in items if item != "text"), **style).encode()
            assert fault.seen == shown[:80]


ids = st.lists(st.integers(0, 2**31 - 1), max_size=6)
nearly_ids = st.lists(
    st.integers(0, 2**31 - 1) | st.sampled_from((-1, 2**31, 10**12, 1.0, True, None, "1")), max_size=6
)
prompts = st.one_of(
    TEXTS, ids, nearly_ids, ids.map(lambda x: [x]), nearly_ids.map(lambda x: [x]), st.lists(TEXTS | ids)
)


def test_a_token_id_is_written_without_a_sign() -> None:
    found = read_prompt(Body(b'{"prompt":[1,-0]}'))
    assert isinstance(found, Fault)
    assert (found.path, found.seen) == ("prompt[1]", b"-0")


@moderate
@given(prompts, STYLES)
def test_a_prompt_is_text_or_counted_token_ids_or_its_fault_is_named(
    prompt: Any, style: dict[str, Any]
) -> None:
    found = read_prompt(body("prompt", prompt, style))
    assert (found.path if isinstance(found, Fault) else found) == oracle.prompt(prompt)
