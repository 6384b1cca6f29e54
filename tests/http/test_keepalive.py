"""`serving.keepalive_s`: comments before the first output, at the price of a status of 200, come what may."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest

from narwhal.fleet.table import Phase
from narwhal.sim import Fault, FaultName, expected_output
from tests.http.sim_client import Answer
from tests.http.support import CHAT, Routed, body_for, eventually, message, on_router, seat

COMMENT = b": keep-alive"
BODY: dict[str, Any] = body_for(CHAT, stream=True, return_token_ids=True)
ALIVE: dict[str, Any] = {"keepalive_s": 0.02}


def spoken(answer: Answer) -> Answer:
    """The answer without its comments, of which there were some."""
    blocks = answer.body.split(b"\n\n")
    said = [block for block in blocks if block != COMMENT]
    assert len(said) < len(blocks)
    assert blocks[0] == COMMENT
    return Answer(answer.status, answer.headers, b"\n\n".join(said), answer.ended)


def slow(seconds: float = 0.1) -> dict[str, Any]:
    return {"name": "slow_first_token", "seconds": seconds, "leg": "decode"}


def test_comments_come_while_an_engine_is_silent_and_end_with_the_first_output() -> None:
    async def test(where: Routed) -> None:
        pause = {"name": "stall", "after": 2, "seconds": 0.1, "leg": "decode"}
        answer = await where.ask(CHAT, BODY | {"sim": {"fault": [slow(), pause]}})
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert spoken(answer).token_ids == expected_output(BODY)[0]
        first = answer.body.index(b"data: ")
        assert COMMENT not in answer.body[first:]

    on_router(test, serving=ALIVE)


@pytest.mark.parametrize("phase", Phase)
def test_comments_come_while_a_seat_is_waited_for(phase: Phase) -> None:
    async def test(where: Routed) -> None:
        grant = seat(where, phase)
        client = await where.connect()
        client.writer.write(message("POST", CHAT, BODY))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        await client.reader.readuntil(COMMENT)
        assert where.door.waiting(phase) == 1
        grant.release_all(time.monotonic())
        assert b"data: [DONE]" in await client.reader.readuntil(b"0\r\n\r\n")

    on_router(test, serving={**ALIVE, "prefill_concurrency": 1, "decode_concurrency": 1})


def test_nothing_is_sent_before_the_first_output_unless_asked_for() -> None:
    async def test(where: Routed) -> None:
        stalled = {"fault": {"name": "stall", "leg": "decode"}}
        client = await where.connect()
        client.writer.write(message("POST", CHAT, BODY | {"sim": stalled}))
        answer = await client.read()
        # The engine's role event came long before, and yet the status tells what became of it.
        assert (answer.status, where.endings) == (504, {"engine_timeout": 1})

    on_router(test, serving={"first_token_timeout_s": 0.15})


def test_whole_answers_get_no_comments() -> None:
    async def test(where: Routed) -> None:
        answer = await where.ask(CHAT, body_for(CHAT, sim={"fault": slow()}))
        assert answer.status == 200
        assert answer.json()["choices"][0]["message"]["content"] == expected_output(BODY)[1]

    on_router(test, serving=ALIVE)


def test_a_failure_after_a_comment_is_still_tried_again() -> None:
    async def test(where: Routed) -> None:
        where.fleet["d0"].faults.set(
            Fault(FaultName.SLOW_FIRST_TOKEN, seconds=0.1), Fault(FaultName.IDS_NULL)
        )
        answer = spoken(await where.ask(CHAT, BODY))
        assert answer.token_ids == expected_output(BODY)[0]
        # Nothing of the first attempt's stream is left in it, not even its role event.
        assert len({event["id"] for event in answer.events}) == 1
        assert [attempt["decode"] for attempt in (await where.row())["attempts"]] == ["d0", "d1"]

    on_router(test, decode=2, serving=ALIVE)


def test_output_that_came_with_what_spoilt_it_is_not_sent_twice() -> None:
    """Both in one read: the client gets the output and the end, as if they had come one after the other."""
    good = {"choices": [{"index": 0, "delta": {"content": "hi"}, "token_ids": [7]}]}
    bad = {"choices": [{"index": 0, "delta": {"content": "hi"}, "token_ids": None}]}
    both = "".join(f"data: {orjson.dumps(event).decode()}\n\n" for event in (good, bad))

    async def test(where: Routed) -> None:
        wish = {"events": [both], "fault": slow()}
        answer = spoken(await where.ask(CHAT, BODY | {"sim": wish}))
        assert len((await where.row())["attempts"]) == 1
        assert answer.body.count(b'"hi"') == 1
        assert orjson.loads(answer.blocks[-1])["error"]["code"] == "failed"

    on_router(test, serving=ALIVE)


@pytest.mark.parametrize(
    ("fault", "outcome", "code"),
    [
        ({"name": "bad_status", "status": 400, "leg": "decode"}, "engine_rejected", "failed"),
        ({"name": "ids_missing", "leg": "decode"}, "token_ids", "failed"),
        ({"name": "hang", "leg": "decode"}, "deadline_expired", "expired"),
    ],
)
def test_what_can_not_be_mended_after_a_comment_is_a_terminal_event(
    fault: dict[str, Any], outcome: str, code: str
) -> None:
    async def test(where: Routed) -> None:
        wish = {"fault": [{"name": "slow_first_token", "seconds": 0.1, "leg": "prefill"}, fault]}
        client = await where.connect()
        answer = spoken(await client.ask("POST", CHAT, BODY | {"sim": wish}))
        assert (answer.status, answer.ended) == (200, "whole")
        (block,) = answer.blocks
        error = orjson.loads(block)["error"]
        assert (error["type"], error["code"], error["param"]) == ("decode", code, None)
        row = await where.row()
        assert (row["reason"], row["status"]) == (outcome, 200)
        # The connection is as good as after any answer.
        assert (await client.ask("POST", CHAT, body_for(CHAT))).status == 200

    on_router(test, serving={**ALIVE, "request_timeout_s": 0.5})


def test_a_client_that_leaves_after_a_comment_is_cancelled() -> None:
    async def test(where: Routed) -> None:
        client = await where.connect()
        client.writer.write(message("POST", CHAT, BODY | {"sim": {"fault": "hang"}}))
        await client.reader.readuntil(COMMENT)
        await client.close()
        await eventually(lambda: where.endings == {"disconnected": 1})
        assert (await where.row())["status"] == 200

    on_router(test, serving=ALIVE)
