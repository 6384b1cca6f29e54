"""The recorded streams are what the tests that use them take them for."""

from __future__ import annotations

import pytest

from tests.recordings import FOLDER, Recording, pairs, recordings

ANSWERED = {name: pair for name, pair in pairs().items() if pair[1].status == 200}


def test_every_file_is_in_the_index() -> None:
    assert {path.name for path in FOLDER.glob("*.http")} == {f"{name}.http" for name in recordings()}


@pytest.mark.parametrize("recording", recordings().values(), ids=lambda recording: recording.name)
def test_nothing_tells_of_the_machine_it_was_made_on(recording: Recording) -> None:
    assert b"/home" not in recording.raw
    assert b"/root" not in recording.raw
    assert b"/tmp" not in recording.raw


@pytest.mark.parametrize("name", ANSWERED)
def test_a_stream_and_its_whole_reply_hold_the_same_tokens_and_end_the_same_way(name: str) -> None:
    stream, whole = ANSWERED[name]
    choice = whole.reply["choices"][0]
    parts = [part for event in stream.events for part in event["choices"] if part["index"] == 0]
    assert [token for part in parts for token in part.get("token_ids") or []] == (choice["token_ids"] or [])
    assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [choice["finish_reason"]]
