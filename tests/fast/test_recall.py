"""What is kept of an answer's events, against a slow reader of the same events."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal._fast.recall import Recall

VALUES: st.SearchStrategy[Any] = (
    st.none() | st.just("") | st.just([]) | st.just({}) | st.text('a"\\é🐋', max_size=3) | st.just([{"a": 1}])
)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=3)
OTHERS = ("reasoning", "reasoning_content", "refusal", "tool_calls", "function_call")


def choices(chat: bool) -> st.SearchStrategy[dict[str, Any]]:
    text = st.text('a"\\é🐋\n', max_size=3)
    rare = st.sampled_from([{}] * 12 + [{name: "x"} for name in OTHERS] + [{name: None} for name in OTHERS])
    answer = st.builds(lambda content, more: {"content": content} | more, text, rare) if chat else text
    return st.fixed_dictionaries(
        {"index": st.just(0), "delta" if chat else "text": answer},
        optional={
            "token_ids": st.none() | IDS,
            "finish_reason": st.sampled_from([None, None, None, "", "stop"]),
            "stop_reason": VALUES,
            "logprobs": st.none() | st.just({"tokens": ["a"], "text_offset": [3]}),
            "prompt_token_ids": st.none() | IDS,
            "routed_experts": st.sampled_from([None, None, None, "AA"]),
        },
    )


def events(chat: bool) -> st.SearchStrategy[list[dict[str, Any]]]:
    lists: st.SearchStrategy[Any] = (
        st.lists(choices(chat), min_size=1, max_size=1) | st.just([]) | st.lists(choices(chat), max_size=2)
    )
    return st.lists(
        st.fixed_dictionaries(
            {"id": st.sampled_from(["a", "b"]), "created": st.integers(0, 9)},
            optional={
                "choices": lists,
                "usage": st.none() | st.just({"prompt_tokens": 3}),
                "prompt_token_ids": IDS,
            },
        ),
        max_size=6,
    )


def prompt_of(value: Any) -> Any:
    """The prompt's token IDs in the first of an event's choices, if these are what `value` is."""
    return value[0].get("prompt_token_ids") if isinstance(value, list) and value else None


def obvious(chat: bool, given: list[dict[str, Any]]) -> dict[str, Any]:
    """The same by plain reading."""
    kept: dict[str, Any] = {
        "plain": True,
        "ids": [],
        "seam": 0,
        "text": "",
        "prompt": None,
        "finished": False,
    }
    kept |= {"logprobs": None, "id": None, "created": None}
    for event in given:
        if not kept["plain"]:
            break
        for name in ("id", "created"):
            kept[name] = event[name] if kept[name] is None else kept[name]
        places = [value if name == "prompt_token_ids" else prompt_of(value) for name, value in event.items()]
        kept["prompt"] = kept["prompt"] or next(filter(None, places), None)
        for number, choice in enumerate(event.get("choices", [])):
            if number:
                kept["plain"] = False
                break
            delta = choice.get("delta", {})
            text = delta.get("content") if chat else choice["text"]
            if any(delta.get(name) for name in OTHERS) or choice.get("routed_experts"):
                kept["plain"] = False
            if choice.get("finish_reason"):
                kept["finished"] = True
            ids = choice.get("token_ids") or []
            kept["ids"] += ids
            if text and len(ids) == 1:
                kept |= {"seam": len(kept["ids"]), "text": ""}
                kept["logprobs"] = choice.get("logprobs") or kept["logprobs"]
            elif text:
                kept["text"] += text
    return kept


@given(st.booleans().flatmap(lambda chat: st.tuples(st.just(chat), events(chat))), st.booleans())
@settings(max_examples=300, deadline=None)
def test_it_keeps_what_a_slow_reader_would(what: tuple[bool, list[dict[str, Any]]], spaced: bool) -> None:
    chat, given = what
    recall = Recall(chat)
    for event in given:
        recall.note_event(orjson.dumps(event, option=orjson.OPT_INDENT_2 if spaced else 0))
    kept = obvious(chat, given)
    assert recall.plain == kept["plain"]
    if not recall.plain:
        return
    assert recall.finished == kept["finished"]
    assert (recall.tokens, recall.seam) == (len(kept["ids"]), kept["seam"])
    before, since = (
        orjson.loads(b"[%b]" % part) for part in (recall.ids_before_the_seam, recall.ids_since_the_seam)
    )
    assert (before, since) == (kept["ids"][: kept["seam"]], kept["ids"][kept["seam"] :])
    assert orjson.loads(b'"%b"' % recall.text_since_the_seam) == kept["text"]
    for raw, value in (
        (recall.id, kept["id"]), (recall.created, kept["created"]), (recall.prompt_ids, kept["prompt"]),
        (recall.logprobs_at_the_seam, kept["logprobs"]),
    ):  # fmt: skip
        assert (None if raw is None else orjson.loads(raw)) == value
