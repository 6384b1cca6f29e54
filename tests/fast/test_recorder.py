"""A recorder sees what a relay sees, notes when, and passes nothing on."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal._fast.recorder import Recorder

DONE = b"data: [DONE]\n\n"


class Owner:
    begun = ended = 0

    def on_output(self) -> None:
        self.begun += 1

    def on_end(self) -> None:
        self.ended += 1


def event(text: str | None = None, ids: list[int] | None = None, **more: object) -> bytes:
    choice: dict[str, object] = {"index": 0, "text": text or ""}
    if ids is not None:
        choice["token_ids"] = ids
    if "finish_reason" in more:
        choice["finish_reason"] = more.pop("finish_reason")
    return b"data: " + orjson.dumps({"choices": [choice], **more}) + b"\n\n"


def recorder() -> tuple[Recorder, Owner]:
    owner = Owner()
    made = Recorder(owner)
    made.expect()
    return made, owner


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(["output", "role", "comment"]), max_size=150), st.integers(1, 400))
def test_each_event_with_output_is_timed_and_no_other(kinds: list[str], cut: int) -> None:
    blocks = {"output": event("a", [1, 2]), "role": event(), "comment": b": keep-alive\n\n"}
    stream = b"".join(blocks[kind] for kind in kinds) + event("b", [3], finish_reason="stop") + DONE
    made, owner = recorder()
    for start in range(0, len(stream), cut):
        made.feed(stream[start : start + cut])
    outputs = kinds.count("output")
    gaps = made.gaps()
    assert owner.begun == 1
    assert owner.ended == 1
    assert made.done
    assert len(gaps) == outputs
    assert all(gap >= 0 for gap in gaps)
    assert sum(gaps) == pytest.approx(made.last_at - made.first_at, abs=1e-6)
    assert made.ids_counted == 2 * outputs + 1
    assert made.failure is None
    assert made.cut_short is None


def test_ids_are_not_counted_when_some_output_had_none() -> None:
    made, _ = recorder()
    made.feed(event("a", [1]) + event("b") + DONE)
    assert made.ids_counted is None
    assert made.output_events == 2


def test_a_stream_without_done_tells_why_it_ended_and_that_it_had_finished() -> None:
    made, owner = recorder()
    made.feed(event("a", [1], finish_reason="stop"))
    assert owner.ended == 0
    made.end_feed()
    assert owner.ended == 1
    assert made.finished
    assert made.cut_short == "the engine's stream ended without [DONE]"


@pytest.mark.parametrize(
    ("block", "failure"),
    [(b'data: {"choices": [\n\n', "broken_stream"), (b'data: {"error": {"code": "x"}}\n\n', "engine_error")],
)
def test_a_broken_event_ends_it_and_is_not_taken_for_a_cut(block: bytes, failure: str) -> None:
    made, owner = recorder()
    made.feed(event("a", [1]) + block + event("b", [2]))
    assert owner.ended == 1
    assert made.failure == failure
    assert made.cut_short is None
    made.end_feed()
    assert owner.ended == 1


def test_it_can_be_used_again() -> None:
    made, owner = recorder()
    made.feed(event("a", [1]) + event("b"))
    made.end_feed()
    made.expect()
    made.feed(event("a", [1, 2]) + DONE)
    assert owner.ended == 2
    assert made.ids_counted == 2
    assert len(made.gaps()) == 0
    assert made.cut_short is None


def test_whoever_wants_to_see_the_events_gets_each_ones_json() -> None:
    seen: list[bytes] = []
    made = Recorder(Owner(), on_data=seen.append)
    made.expect()
    made.feed(event("a", [1]) + b": comment\n\n" + event("b") + DONE)
    assert [orjson.loads(data)["choices"][0]["text"] for data in seen] == ["a", "b"]
