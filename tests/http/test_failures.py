"""What becomes of a request when an engine fails it: another attempt, a status and its envelope, or, after
output, one last event."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest

from narwhal.fleet.table import Phase
from narwhal.sim import Fault, FaultName, SimOptions, expected_output
from tests.http.support import CHAT, COMPLETIONS, Answer, Routed, body_for, message, on_router, seat

Fields = dict[str, Any]
# Time limits that tests run into; everything else is far quicker.
SHORT = 0.15
LIMITS = {"prefill_timeout_s": SHORT, "first_token_timeout_s": SHORT, "stream_idle_timeout_s": SHORT}
PAIRS: Fields = {"prefill": 2, "decode": 2}
ONE_SEAT = {"prefill_concurrency": 1, "decode_concurrency": 1}
LARGE = 200_000
INPUT_TOO_LONG = ("invalid_request_error", "input_tokens", 400)
IDS = ("null", "negative", "float", "string", "nested", "too_large")


def fault(name: str, outcome: str, replied: int = 502, **more: Any) -> Any:
    """A case: the fault's fields, the outcome, the status it gets before output."""
    return pytest.param(
        {"name": name, **more}, outcome, replied, id="-".join(map(str, (name, *more.values())))
    )


def limits(outcome: str) -> Fields:
    """Time limits that a test of this outcome runs into; a busy machine shall not run into any others."""
    return LIMITS if outcome == "engine_timeout" else {}


PREFILL = [
    fault("reset", "broken_stream"),
    fault("hang", "engine_timeout", 504),
    fault("slow_first_token", "engine_timeout", 504, seconds=60),
    fault("stall", "engine_timeout", 504),
    fault("die_after", "broken_stream", how="reset"),
    fault("die_after", "broken_stream", how="close"),
    fault("bad_status", "engine_status", status=500),
    fault("bad_status", "engine_status", status=503),
    fault("bad_status", "engine_status", status=429),
    fault("bad_status", "engine_status", status=401),
    fault("broken_json", "broken_stream"),
    fault("broken_chunking", "broken_stream"),
    fault("content_length", "broken_stream"),
    fault("no_handoff", "handoff_failed"),
    fault("huge_event", "broken_stream", size=LARGE),
]  # fmt: skip
# These can strike before the first output and after some.
STREAM = [
    fault("stall", "engine_timeout", 504),
    fault("die_after", "broken_stream", how="reset"),
    fault("die_after", "broken_stream", how="close"),
    fault("die_after", "broken_stream", how="truncate"),
    fault("error_in_stream", "engine_error", 500, status=500),
    fault("broken_json", "broken_stream"),
    fault("broken_chunking", "broken_stream"),
    fault("ids_missing", "token_ids"),
    fault("ids_boolean", "token_ids"),
]
DECODE = [
    *STREAM,
    *(fault(f"ids_{kind}", "token_ids") for kind in IDS),
    fault("reset", "broken_stream"),
    fault("hang", "engine_timeout", 504),
    fault("slow_first_token", "engine_timeout", 504, seconds=60),
    fault("bad_status", "engine_status", status=500),
    fault("bad_status", "engine_status", status=404),
]


def terminal(answer: Answer) -> Fields:
    """The error in a stream's last event, which nothing follows."""
    assert (answer.status, answer.ended) == (200, "whole")
    assert b"[DONE]" not in answer.blocks
    last = orjson.loads(answer.blocks[-1])
    assert list(last) == ["error"]
    error: Fields = last["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("decode", None)
    return error


def output_of(answer: Answer) -> list[int]:
    """The token IDs of a stream that a terminal event ended."""
    events = [orjson.loads(block) for block in answer.blocks[:-1]]
    return [token for event in events for token in event["choices"][0].get("token_ids") or []]


def failed(answer: Answer, outcome: str, status: int, engine: str) -> None:
    """The reply is the outcome's envelope, and names the engine."""
    assert (answer.status, answer.ended) == (status, "whole")
    error = answer.json()["error"]
    assert error["code"] == outcome
    assert error["type"] == ("handoff" if outcome == "handoff_failed" else "engine")
    assert error["param"] is None
    assert f"engine {engine} " in error["message"]
    assert "x-request-id" in answer.headers


@pytest.mark.parametrize(("what", "outcome", "status"), PREFILL)
def test_a_failed_prefill_leg_is_tried_again_elsewhere_and_after_that_is_the_answer(
    what: Fields, outcome: str, status: int
) -> None:
    async def test(where: Routed) -> None:
        body = body_for(CHAT, stream=True, return_token_ids=True)
        where.fleet["p0"].faults.set(Fault(**what, leg="prefill"))
        check(await where.ask(CHAT, body), body)
        first, second = (await where.row())["attempts"]
        assert (first["prefill"], first["decode"], first["failure"]) == ("p0", None, outcome)
        assert (second["prefill"], second["decode"], second["failure"]) == ("p1", "d0", None)

        where.fleet["p1"].faults.set(Fault(**what, leg="prefill"))
        failed(await where.ask(CHAT, body), outcome, status, "p1")
        row = (await where.rows(2))[1]
        assert [attempt["prefill"] for attempt in row["attempts"]] == ["p0", "p1"]
        assert [attempt["failure"] for attempt in row["attempts"]] == [outcome] * 2
        assert (row["outcome"], row["reason"], row["status"]) == ("failed", outcome, status)
        assert where.endings == {"served": 1, outcome: 1}
        assert sum(engine.stats["decode"].started for engine in where.fleet.engines) == 1

    on_router(test, **PAIRS, serving={**limits(outcome), "max_response_bytes": LARGE - 1000})


def check(answer: Answer, body: Fields) -> None:
    """The whole answer is there, once."""
    assert (answer.status, answer.ended) == (200, "whole")
    ids = answer.token_ids if body["stream"] else answer.json()["choices"][0]["token_ids"]
    assert ids == expected_output(body)[0]


@pytest.mark.parametrize(("what", "outcome", "status"), DECODE)
def test_a_decode_leg_that_fails_before_output_is_tried_again_elsewhere_and_after_that_is_the_answer(
    what: Fields, outcome: str, status: int
) -> None:
    async def test(where: Routed) -> None:
        body = body_for(CHAT, stream=True, return_token_ids=True)
        where.fleet["d0"].faults.set(Fault(**what))
        check(await where.ask(CHAT, body), body)
        first, second = (await where.row())["attempts"]
        assert (first["prefill"], first["decode"], first["failure"]) == ("p0", "d0", outcome)
        assert second["decode"] == "d1"
        # A handoff is good for one use, so the prompt was prefilled again.
        assert sum(engine.stats["prefill"].finished for engine in where.fleet.of("prefill")) == 2
        assert sum(engine.stats.handoffs_spoiled for engine in where.fleet.of("prefill")) == 0

        whole = body | {"stream": False}
        check(await where.ask(CHAT, whole), whole)
        where.fleet["d1"].faults.set(Fault(**what))
        failed(await where.ask(CHAT, whole if outcome == "token_ids" else body), outcome, status, "d1")
        row = (await where.rows(3))[2]
        assert [attempt["decode"] for attempt in row["attempts"]] == ["d0", "d1"]
        assert where.endings == {"served": 2, outcome: 1}

    on_router(test, **PAIRS, serving=limits(outcome))


@pytest.mark.parametrize(("what", "outcome", "status"), [*STREAM, fault("no_done", "broken_stream")])
def test_a_failure_after_output_ends_a_stream_with_one_event_and_a_whole_answer_is_tried_again(
    what: Fields, outcome: str, status: int
) -> None:
    async def test(where: Routed) -> None:
        body = body_for(COMPLETIONS, stream=True, return_token_ids=True)
        where.fleet["d0"].faults.set(Fault(**what, after=3))
        client = await where.connect()
        answer = await client.ask("POST", COMPLETIONS, body)
        error = terminal(answer)
        assert error["code"] == "failed"
        assert "engine d0 " in error["message"]
        count = 8 if what["name"] == "no_done" else 3
        assert output_of(answer) == expected_output(body)[0][:count]
        row = await where.row()
        assert (row["outcome"], row["reason"], row["status"]) == ("failed", outcome, 200)
        assert [attempt["decode"] for attempt in row["attempts"]] == ["d0"]
        assert row["output_tokens"] == count

        # The client's connection goes on, and a whole answer shows nothing of the first attempt.
        whole = body | {"stream": False}
        check(await client.ask("POST", COMPLETIONS, whole), whole)
        first, second = (await where.rows(2))[1]["attempts"]
        assert (first["failure"], second["failure"], second["decode"]) == (outcome, None, "d1")
        where.fleet["d1"].faults.set(Fault(**what, after=3))
        failed(await client.ask("POST", COMPLETIONS, whole), outcome, status, "d1")

    on_router(test, **PAIRS, serving=limits(outcome))


def test_an_engine_that_can_not_be_reached_is_passed_over() -> None:
    async def test(where: Routed) -> None:
        body = body_for(CHAT, stream=True, return_token_ids=True)
        for name in ("p0", "d0", "p1"):
            check(await where.ask(CHAT, body), body)
            await where.fleet[name].stop()
        # Nobody is left that prefills, so d1 does it all.
        check(await where.ask(CHAT, body), body)
        rows = await where.rows(4)
        assert [row["attempts"][-1]["decode"] for row in rows] == ["d0", "d0", "d1", "d1"]
        assert rows[3]["attempts"][-1]["prefill"] is None
        assert len(rows[1]["attempts"]) == 2

    on_router(test, prefill=2, decode=2, serving={"max_attempts": 3})


def test_when_no_engine_can_be_reached_that_is_the_answer() -> None:
    async def test(where: Routed) -> None:
        for engine in where.fleet.engines:
            await engine.stop()
        failed(await where.ask(CHAT, body_for(CHAT)), "connect_failed", 502, "p0")

    on_router(test, serving={"max_attempts": 1})


def test_max_attempts_bounds_the_attempts() -> None:
    async def one(where: Routed) -> None:
        answer = await where.ask(CHAT, body_for(CHAT, sim={"fault": "reset"}))
        failed(answer, "broken_stream", 502, "p0")
        assert len((await where.row())["attempts"]) == 1

    async def three(where: Routed) -> None:
        answer = await where.ask(CHAT, body_for(CHAT, sim={"fault": "reset"}))
        failed(answer, "broken_stream", 502, "p2")
        row = await where.row()
        assert [attempt["prefill"] for attempt in row["attempts"]] == ["p0", "p1", "p2"]

    on_router(one, prefill=4, serving={"max_attempts": 1})
    on_router(three, prefill=4, serving={"max_attempts": 3})


def test_a_single_engine_gets_the_other_attempt_too_unless_it_was_too_slow() -> None:
    async def test(where: Routed) -> None:
        body = body_for(CHAT, stream=True, return_token_ids=True)
        where.fleet["d0"].faults.set(Fault(FaultName.IDS_MISSING, count=1))
        check(await where.ask(CHAT, body), body)
        where.fleet["p0"].faults.set(Fault(FaultName.BAD_STATUS, count=1))
        check(await where.ask(CHAT, body), body)
        where.fleet["p0"].faults.set()
        started = where.fleet["p0"].stats["prefill"].started
        where.fleet["d0"].faults.set(Fault(FaultName.HANG, count=1))
        failed(await where.ask(CHAT, body), "engine_timeout", 504, "d0")
        # With nowhere to decode, the prompt was not computed once more.
        assert where.fleet["p0"].stats["prefill"].started == started + 1
        assert [len(row["attempts"]) for row in await where.rows(3)] == [2, 2, 1]

    on_router(test, serving=LIMITS)


def test_whole_requests_are_tried_again_on_another_engine_that_does_all() -> None:
    async def test(where: Routed) -> None:
        for number, name in enumerate((FaultName.HANG, FaultName.RESET, FaultName.BAD_STATUS)):
            where.fleet["b0"].faults.set(Fault(name))
            body = body_for(CHAT, stream=True, return_token_ids=True)
            check(await where.ask(CHAT, body), body)
            row = (await where.rows(number + 1))[number]
            assert [attempt["decode"] for attempt in row["attempts"]] == ["b0", "b1"]

    on_router(test, prefill=0, decode=0, both=2, serving=LIMITS)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_what_an_engine_says_of_the_request_itself_reaches_the_client_at_once(stream: bool) -> None:
    async def test(where: Routed) -> None:
        # The prefill engine turns it down for its length, the decode engine in its stream, with status 200.
        long = await where.ask(CHAT, body_for(CHAT, "much too long " * 40, stream=stream))
        assert long.status == 400
        error = long.json()["error"]
        assert (error["param"], error["code"], error["type"]) == (
            "input_tokens",
            400,
            "invalid_request_error",
        )
        assert error["message"].startswith("This model's maximum context length is 100 tokens")
        assert long.headers["x-should-retry"] == "false"

        wish = {"fault": {"name": "error_in_stream", "status": 400, "leg": "decode"}}
        late = await where.ask(CHAT, body_for(CHAT, stream=stream, sim=wish))
        assert late.status == 400
        assert late.json()["error"]["message"] == "This simulated engine was told to fail."
        wish = {"fault": {"name": "bad_status", "status": 422, "leg": "decode"}}
        assert (await where.ask(CHAT, body_for(CHAT, stream=stream, sim=wish))).status == 422

        rows = await where.rows(3)
        assert [len(row["attempts"]) for row in rows] == [1, 1, 1]
        assert [row["status"] for row in rows] == [400, 400, 422]
        assert where.endings == {"engine_rejected": 3}
        assert where.counts["invalid_requests"] == 3

    on_router(test, prefill=2, decode=2, options=SimOptions(max_model_len=100))


def test_a_handoff_whose_producer_is_gone_is_no_answer_but_another_attempt() -> None:
    async def test(where: Routed) -> None:
        body = body_for(CHAT, stream=True, return_token_ids=True)
        where.fleet["p0"].faults.set(Fault(FaultName.GONE_HANDOFF, leg="prefill", count=1))
        check(await where.ask(CHAT, body), body)
        first, _ = (await where.row())["attempts"]
        assert (first["decode"], first["failure"]) == ("d0", "engine_error")

    on_router(test, **PAIRS, options=SimOptions(gone_handoff_s=0.02))


def replay(*blocks: str) -> Fields:
    """A body whose decode leg is answered with these blocks of an event stream."""
    return {"sim": {"events": list(blocks)}}


def event(**choice: Any) -> str:
    return (
        "data: "
        + orjson.dumps({"id": "x", "object": "chat.completion.chunk", "choices": [choice]}).decode()
        + "\n\n"
    )


SAID = event(index=0, delta={"role": "assistant", "content": "hi"}, token_ids=[7], finish_reason=None)
ENDED = event(index=0, delta={}, finish_reason="stop")
DONE = "data: [DONE]\n\n"


def test_done_without_output_is_an_empty_answer_if_there_was_a_finish_reason_and_a_failure_if_not() -> None:
    async def test(where: Routed) -> None:
        empty = await where.ask(CHAT, body_for(CHAT, stream=True, **replay(ENDED, DONE)))
        assert empty.body.decode() == ENDED + DONE
        whole = (await where.ask(CHAT, body_for(CHAT, **replay(ENDED, DONE)))).json()
        assert (whole["choices"][0]["finish_reason"], whole["usage"]["completion_tokens"]) == ("stop", 0)
        for stream in (True, False):
            failed(
                await where.ask(CHAT, body_for(CHAT, stream=stream, **replay(DONE))),
                "broken_stream",
                502,
                "d0",
            )
        assert where.endings == {"served": 2, "broken_stream": 2}

    on_router(test)


def test_output_after_done_is_dropped_and_counted() -> None:
    async def test(where: Routed) -> None:
        for stream in (True, False):
            body = body_for(CHAT, stream=stream, return_token_ids=True, sim={"fault": "output_after_done"})
            check(await where.ask(CHAT, body), body)
        state = (await where.ask("/narwhal/state", method="GET")).json()
        (engine,) = [engine for engine in state["engines"] if engine["id"] == "d0"]
        assert engine["output_after_done"] == 2
        assert where.endings == {"served": 2}

    on_router(test)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_an_event_larger_than_a_response_may_be_is_a_failure_and_a_smaller_one_is_not(stream: bool) -> None:
    async def test(where: Routed) -> None:
        async def ask(size: int) -> Answer:
            wish = {"fault": {"name": "huge_event", "size": size, "leg": "decode"}}
            return await where.ask(CHAT, body_for(CHAT, stream=stream, sim=wish))

        assert (await ask(LARGE // 2)).status == 200
        answer = await ask(LARGE * 2)
        assert answer.status == 502
        assert str(LARGE) in answer.json()["error"]["message"]

    on_router(test, serving={"max_response_bytes": LARGE})


def test_engines_that_write_byte_by_byte_are_understood() -> None:
    async def test(where: Routed) -> None:
        for stream in (True, False):
            body = body_for(CHAT, stream=stream, return_token_ids=True, sim={"fault": "byte_at_a_time"})
            check(await where.ask(CHAT, body), body)
        assert where.endings == {"served": 2}

    on_router(test)


# ---- time


@pytest.mark.parametrize("phase", Phase)
def test_the_wait_for_a_seat_has_a_limit(phase: Phase) -> None:
    async def test(where: Routed) -> None:
        grant = seat(where, phase)
        answer = await where.ask(CHAT, body_for(CHAT, stream=True))
        grant.release_all(time.monotonic())
        assert answer.status == 504
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("expired", "queue_expired")
        assert "serving.queue_timeout_s" in error["message"]
        assert answer.headers["x-should-retry"] == "false"
        assert where.endings == {"queue_expired": 1}
        assert where.counts["expired"] == 1

    on_router(test, serving={"queue_timeout_s": 0.1, **ONE_SEAT})


STAGES: dict[str, tuple[Phase | None, Fields]] = {
    "waiting for a prefill seat": (Phase.PREFILL, {}),
    "waiting for a decode seat": (Phase.DECODE, {}),
    "in its prefill leg": (None, {"name": "hang", "leg": "prefill"}),
    "in its decode leg": (None, {"name": "hang", "leg": "decode"}),
    "being streamed": (None, {"name": "stall", "after": 2, "leg": "decode"}),
}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("stage", STAGES)
def test_the_requests_deadline_ends_it_at_any_stage(stage: str, stream: bool) -> None:
    taken, what = STAGES[stage]

    async def test(where: Routed) -> None:
        wish = {"fault": what} if what else None
        grant = None if taken is None else seat(where, taken)
        answer = await where.ask(CHAT, body_for(CHAT, stream=stream, sim=wish))
        if grant is not None:
            grant.release_all(time.monotonic())
        if stage == "being streamed" and stream:
            error = terminal(answer)
            assert error["code"] == "expired"
        else:
            assert answer.status == 504
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("expired", "deadline_expired")
            assert answer.headers["x-should-retry"] == "false"
        assert f"it was {stage}" in error["message"]
        assert where.endings == {"deadline_expired": 1}

    on_router(test, serving={"request_timeout_s": SHORT, **ONE_SEAT})


def test_the_deadline_counts_from_the_arrival_of_the_head() -> None:
    async def test(where: Routed) -> None:
        client = await where.connect()
        client.writer.write(message("POST", CHAT, body_for(CHAT))[:-5])
        answer = await client.read()
        assert answer.status == 504
        assert answer.json()["error"]["code"] == "deadline_expired"
        assert where.counts["unsized_offered"] == 1

    on_router(test, serving={"request_timeout_s": 0.1})


def test_an_engine_slower_than_the_limits_of_its_legs_is_fine_as_long_as_something_comes() -> None:
    options = SimOptions()

    async def test(where: Routed) -> None:
        # Each pause stays below the limit, all of them together do not.
        wish = {"fault": [{"name": "stall", "after": 2, "seconds": SHORT * 0.7, "leg": "decode"},
                          {"name": "slow_first_token", "seconds": SHORT * 0.7}]}  # fmt: skip
        body = body_for(CHAT, stream=True, return_token_ids=True, sim=wish)
        check(await where.ask(CHAT, body), body)

    on_router(test, serving=LIMITS, options=options)
