"""When a request is tried again, with what handoff, after what pause, and for how long that goes on."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from narwhal.fleet.table import Phase
from narwhal.sim import Fault, FaultName, expected_output
from tests.http.support import CHAT, Routed, body_for, eventually, message, on_router, seat

if TYPE_CHECKING:
    import pytest

PAIRS: dict[str, Any] = {"prefill": 2, "decode": 2}
ONE_SEAT = {"prefill_concurrency": 2, "decode_concurrency": 1}
STREAM: dict[str, Any] = {"stream": True, "return_token_ids": True}


def test_an_old_handoff_is_never_sent_but_replaced_by_a_new_prefill() -> None:
    async def test(where: Routed) -> None:
        body = body_for(CHAT, **STREAM)
        grant = seat(where, Phase.DECODE)
        client = await where.connect()
        client.writer.write(message("POST", CHAT, body))
        await eventually(lambda: where.fleet["p0"].stats["prefill"].finished >= 2)
        grant.release_all(time.monotonic())
        answer = await client.read()
        assert answer.token_ids == expected_output(body)[0]
        attempts = (await where.row())["attempts"]
        assert len(attempts) >= 2
        for attempt in attempts[:-1]:
            assert (attempt["failure"], attempt["decode"]) == ("handoff_failed", None)
            assert "serving.handoff_timeout_s" in attempt["error"]
        assert attempts[-1]["decode"] == "d0"
        assert where.fleet["p0"].stats.handoffs_taken == 1

    on_router(test, serving={"handoff_timeout_s": 0.1, "max_attempts": 16, **ONE_SEAT})


def test_with_no_attempt_left_an_old_handoff_is_a_failure_that_names_its_setting() -> None:
    async def test(where: Routed) -> None:
        grant = seat(where, Phase.DECODE)
        answer = await where.ask(CHAT, body_for(CHAT))
        grant.release_all(time.monotonic())
        assert answer.status == 502
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("handoff", "handoff_failed")
        assert "0.05 s old (serving.handoff_timeout_s)" in error["message"]

    on_router(test, serving={"handoff_timeout_s": 0.05, "max_attempts": 1, **ONE_SEAT})


def test_a_handoff_whose_producer_was_lost_meanwhile_is_not_sent() -> None:
    async def test(where: Routed) -> None:
        body = body_for(CHAT, **STREAM)
        grant = seat(where, Phase.DECODE)
        client = await where.connect()
        client.writer.write(message("POST", CHAT, body))
        await eventually(lambda: where.door.waiting(Phase.DECODE) == 1)
        p0 = where.router.lifecycle.lives[0]
        assert p0.handoffs == 1
        where.router.lifecycle.started(0, 1.0)
        where.router.lifecycle.started(0, 2.0)
        grant.release_all(time.monotonic())
        answer = await client.read()
        assert answer.token_ids == expected_output(body)[0]
        first, second = (await where.row())["attempts"]
        assert (first["failure"], second["failure"]) == ("handoff_failed", None)
        assert "engine p0 was lost" in first["error"]
        assert where.fleet["d0"].stats["decode"].started == 1
        assert p0.handoffs == 0

    on_router(test, serving=ONE_SEAT)


def test_a_decode_leg_that_waits_in_vain_avoids_its_producer_too() -> None:
    async def test(where: Routed) -> None:
        body = body_for(CHAT, **STREAM)
        where.fleet["p0"].faults.set(Fault(FaultName.GONE_HANDOFF, leg="prefill"))
        answer = await where.ask(CHAT, body)
        assert answer.token_ids == expected_output(body)[0]
        first, second = (await where.row())["attempts"]
        assert (first["prefill"], first["failure"]) == ("p0", "engine_timeout")
        assert (second["prefill"], second["failure"]) == ("p1", None)

    on_router(test, **PAIRS, serving={"first_token_timeout_s": 0.1})


def test_retries_end_with_the_budget_and_the_answer_says_so() -> None:
    async def test(where: Routed) -> None:
        for engine in where.fleet.of("prefill"):
            engine.faults.set(Fault(FaultName.BAD_STATUS))
        answers = [await where.ask(CHAT, body_for(CHAT)) for _ in range(4)]
        assert [answer.status for answer in answers] == [502] * 4
        rows = await where.rows(4)
        assert [len(row["attempts"]) for row in rows] == [2, 2, 1, 1]
        messages = [answer.json()["error"]["message"] for answer in answers]
        assert ["serving.retry_share" in one for one in messages] == [False, False, True, True]
        state = (await where.ask("/narwhal/state", method="GET")).json()
        assert state["retry_budget"] == {"left": 0.0, "denied": 2}
        for engine in where.fleet.of("prefill"):
            engine.faults.set()
        # Two requests that are served pay for one more.
        for _ in range(2):
            assert (await where.ask(CHAT, body_for(CHAT))).status == 200
        assert where.router.retries.left == 1.0

    on_router(test, **PAIRS, serving={"retry_share": 0.5, "retry_reserve": 2})


def test_the_pause_before_another_attempt_ends_with_the_client_or_the_deadline() -> None:
    async def test(where: Routed) -> None:
        where.router.random.random = lambda: 1.0  # type: ignore[method-assign]
        where.fleet["p0"].faults.set(Fault(FaultName.BAD_STATUS))
        began = time.monotonic()
        answer = await where.ask(CHAT, body_for(CHAT))
        assert answer.status == 504
        assert "it was waiting to be tried again" in answer.json()["error"]["message"]
        assert time.monotonic() - began < 5
        client = await where.connect()
        client.writer.write(message("POST", CHAT, body_for(CHAT)))
        await eventually(lambda: where.fleet["p0"].stats["prefill"].failed == 2)
        await client.close()
        await eventually(lambda: where.endings == {"deadline_expired": 1, "disconnected": 1})
        assert where.fleet["p0"].stats["prefill"].started == 2

    on_router(test, serving={"retry_backoff_s": 60, "request_timeout_s": 0.5})


def test_a_failed_leg_is_logged_with_its_request_and_attempt_but_not_each_of_many(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def lines() -> list[str]:
        failed = re.compile(r"request \S+, attempt \d of 2: engine d0 \(decode leg\) answered 503")
        return [line for line in caplog.messages if failed.match(line)]

    def told() -> int:
        more = (re.search(r"\((\d+) more like this\)", line) for line in lines())
        return len(lines()) + sum(int(found[1]) for found in more if found)

    async def test(where: Routed) -> None:
        where.fleet["d0"].faults.set(Fault(FaultName.BAD_STATUS, status=503))
        for _ in range(30):
            assert (await where.ask(CHAT, body_for(CHAT))).status == 502
        rows = await where.rows(30)
        assert lines()[0].startswith(f"request {rows[0]['request_id']}, attempt 1 of 2: ")
        failed = sum(len(row["attempts"]) for row in rows)
        await eventually(lambda: told() == failed, "all failures told of")
        assert len(lines()) < failed / 2

    on_router(test, serving={"max_attempts": 2, "retry_backoff_s": 0.001})
