"""With `serving.continue_streams`, a client can't tell that the engine of its answer was lost.

An answer is cut after each of its events and in the middle of it, goes on at another engine, and is compared
with the same answer uncut: byte for byte, but for how the body is cut into chunks, the ID and the date.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from typing import Any

import orjson
import pytest

from narwhal.sim import Fault, FaultName, SimOptions, expected_output
from tests.http.support import CHAT, COMPLETIONS, Answer, Routed, body_for, eventually, on_router
from tests.http.test_failures import output_of, terminal

Fields = dict[str, Any]

SERVING = {"continue_streams": True, "retry_backoff_s": 1e-6, "retry_share": 1, "retry_reserve": 1000}
KEYS: Fields = {"serving": SERVING, "recovery": {"eject_after": 1000}}
PAIRS: Fields = {"prefill": 2, "decode": 2, **KEYS}
TOKENS = 6
# Some of its characters lie in two tokens, one in three.
SPLIT = "aé 🐋鯨b €x"
USAGE = {"stream_options": {"include_usage": True}}
ALL_ALONG = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
SHOWN: dict[str, Fields] = {
    "plain": {},
    "ids": {"return_token_ids": True},
    "usage": {**USAGE},
    "usage all along, ids": {**ALL_ALONG, "return_token_ids": True},
    "logprobs": {"logprobs": {CHAT: True, COMPLETIONS: 0}},
    "alternatives, ids": {
        "logprobs": {CHAT: True, COMPLETIONS: 3},
        "top_logprobs": {CHAT: 3, COMPLETIONS: None},
        "return_token_ids": True,
    },
}


def asked(path: str, **more: Any) -> Fields:
    """A request at temperature 0; values may depend on the route."""
    chosen = {
        key: value[path] if isinstance(value, dict) and path in value else value
        for key, value in more.items()
    }
    return body_for(path, **{"max_tokens": TOKENS, "temperature": 0} | chosen)


def same_but_for_names(answer: Answer) -> bytes:
    """The body without the answer's ID and date, of which there must be one each."""
    assert (answer.status, answer.ended) == (200, "whole")
    body = answer.body
    for name in (rb'"id":"[^"]+"', rb'"created":\d+'):
        assert len(set(re.findall(name, body))) == 1
        body = re.sub(name, b"", body)
    return body


def without_fingerprint(body: bytes) -> bytes:
    """Less what only the event after the last token tells."""
    return re.sub(rb',"system_fingerprint":(null|"[^"]*")', b"", body)


def lose(where: Routed, after: int, how: str = "reset", *engines: str) -> None:
    """Have these decode engines die once, after so many events of an answer."""
    for engine in where.fleet.engines:
        engine.faults.set()
    for name in engines or ("d0",):
        where.fleet[name].faults.set(Fault(FaultName.DIE_AFTER, after=after, how=how, count=1))


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.parametrize("answer", [None, SPLIT], ids=["words", "characters in pieces"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_answer_cut_anywhere_is_the_same_to_its_client(
    path: str, stream: bool, answer: str | None, shown: str
) -> None:
    async def test(where: Routed) -> None:
        more = SHOWN[shown] if stream else {k: v for k, v in SHOWN[shown].items() if k != "stream_options"}
        body = asked(path, stream=stream, **{**more, "max_tokens": 40 if answer else TOKENS})
        uncut = same_but_for_names(await where.ask(path, body))
        tokens = len(expected_output(body | {"sim": {"text": answer}} if answer else body)[0])
        ways = itertools.cycle(("reset", "truncate", "close"))
        cuts = list(zip(range(1, tokens + 1), ways, strict=False))
        for after, how in cuts:
            lose(where, after, how)
            joined = same_but_for_names(await where.ask(path, body))
            if after == tokens:
                assert without_fingerprint(joined) == without_fingerprint(uncut), (after, how)
            else:
                assert joined == uncut, (after, how)
        rows = await where.rows(1 + len(cuts))
        assert {row["outcome"] for row in rows} == {"served"}
        assert [len(row["attempts"]) for row in rows] == [1] + [1 + (after < tokens) for after, _ in cuts]
        assert {row["output_tokens"] for row in rows} == {tokens}
        assert len({row["prompt_tokens"] for row in rows}) == 1

    on_router(test, **PAIRS, options=SimOptions(answer=answer))


def test_the_second_attempt_starts_where_the_first_was_cut_and_both_are_told_of() -> None:
    async def test(where: Routed) -> None:
        body = asked(CHAT, stream=True, return_token_ids=True)
        lose(where, 4)
        answer = await where.ask(CHAT, body)
        assert answer.token_ids == expected_output(body)[0]
        row = await where.row()
        first, second = row["attempts"]
        assert (first["decode"], first["failure"], first["continues_at"]) == ("d0", "broken_stream", None)
        assert (second["decode"], second["failure"], second["continues_at"]) == ("d1", None, 4)
        assert (
            row["seat_s"]
            <= row["prefill_s"]
            <= row["handoff_s"]
            <= row["first_token_s"]
            <= row["last_token_s"]
        )
        sent = [seen for seen in where.fleet["d1"].requests if seen.path == COMPLETIONS]
        assert [seen.json()["max_tokens"] for seen in sent] == [TOKENS - 4]
        figures = where.router.accounts
        assert (figures.counters.retries, figures.counters.continuations) == (1, 1)
        assert list(figures.engines.tokens) == [0, 0, 4, TOKENS - 4]
        assert where.router.lifecycle.lives[2].health.counts
        assert where.fleet["p0"].stats.handoffs_taken + where.fleet["p1"].stats.handoffs_taken == 2

    on_router(test, **PAIRS)


def test_an_answer_goes_on_as_often_as_attempts_allow() -> None:
    async def test(where: Routed) -> None:
        body = asked(COMPLETIONS, stream=True, max_tokens=9, return_token_ids=True, logprobs=1, **ALL_ALONG)
        uncut = same_but_for_names(await where.ask(COMPLETIONS, body))
        lose(where, 3, "reset", "d0", "d1")
        assert same_but_for_names(await where.ask(COMPLETIONS, body)) == uncut
        lose(where, 2, "reset", "d0", "d1", "d2")
        cut = await where.ask(COMPLETIONS, body)
        terminal(cut)
        assert output_of(cut) == expected_output(body)[0][:6]
        rows = await where.rows(3)
        assert [[attempt["continues_at"] for attempt in row["attempts"]] for row in rows] == [
            [None],
            [None, 3, 6],
            [None, 2, 4],
        ]
        assert (rows[2]["outcome"], rows[2]["output_tokens"]) == ("failed", 6)

    on_router(test, prefill=1, decode=3, **KEYS | {"serving": SERVING | {"max_attempts": 3}})


def test_engines_that_take_whole_requests_go_on_with_each_others_answers() -> None:
    async def test(where: Routed) -> None:
        for path in (CHAT, COMPLETIONS):
            body = asked(path, stream=True, return_token_ids=True)
            uncut = same_but_for_names(await where.ask(path, body))
            lose(where, 3, "close", "b0")
            assert same_but_for_names(await where.ask(path, body)) == uncut

    on_router(test, prefill=0, decode=0, both=2, **KEYS)


def test_a_chat_without_a_limit_of_its_own_goes_on_to_the_models() -> None:
    async def test(where: Routed) -> None:
        body = asked(CHAT, stream=True, return_token_ids=True)
        del body["max_tokens"]
        uncut = same_but_for_names(await where.ask(CHAT, body))
        lose(where, 5)
        assert same_but_for_names(await where.ask(CHAT, body)) == uncut
        prompt, delivered = (await where.rows(2))[1]["prompt_tokens"], 5
        rest = where.fleet["d1"].requests[-1].json()
        assert rest["max_tokens"] == where.fleet["d1"].options.max_model_len - prompt - delivered

    on_router(test, **PAIRS)


def test_the_models_limit_is_not_asked_of_the_engine_that_was_lost() -> None:
    async def test(where: Routed) -> None:
        body = asked(CHAT, stream=True, return_token_ids=True)
        del body["max_tokens"]
        b0 = where.fleet["b0"]
        b0.faults.set(Fault(FaultName.STALL, after=3))
        asking = asyncio.ensure_future(where.ask(CHAT, body))
        await eventually(lambda: b0.stats.events == 3)
        b0.faults.set(Fault(FaultName.REFUSE))
        assert (await asking).token_ids == expected_output(body)[0]
        b0.faults.set()

    serving = SERVING | {"stream_idle_timeout_s": 0.3}
    on_router(test, prefill=0, decode=0, both=2, **KEYS | {"serving": serving})


def test_what_stalls_or_says_nonsense_in_the_middle_is_gone_on_with_too() -> None:
    faults = [
        Fault(FaultName.STALL, after=3, count=1),
        Fault(FaultName.BROKEN_JSON, after=3, count=1),
        Fault(FaultName.BROKEN_CHUNKING, after=3, count=1),
        Fault(FaultName.IDS_NULL, after=3, count=1),
        Fault(FaultName.ERROR_IN_STREAM, after=3, count=1),
        Fault(FaultName.NO_DONE, count=1),
    ]

    async def test(where: Routed) -> None:
        body = asked(CHAT, stream=True, return_token_ids=True)
        uncut = without_fingerprint(same_but_for_names(await where.ask(CHAT, body)))
        for fault in faults:
            where.fleet["d0"].faults.set(fault)
            joined = same_but_for_names(await where.ask(CHAT, body))
            assert without_fingerprint(joined) == uncut, fault

    on_router(test, **PAIRS | {"serving": SERVING | {"stream_idle_timeout_s": 0.1}})


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_where_only_done_is_missing_only_done_is_added(path: str) -> None:
    async def test(where: Routed) -> None:
        for more in ({}, USAGE, ALL_ALONG):
            body = asked(path, stream=True, **more)
            where.fleet["d0"].faults.set()
            uncut = same_but_for_names(await where.ask(path, body))
            where.fleet["d0"].faults.set(Fault(FaultName.NO_DONE))
            assert same_but_for_names(await where.ask(path, body)) == uncut, more
        assert where.endings == {"served": 6}

    on_router(test, **KEYS)


def test_the_prompts_cached_tokens_are_those_of_the_first_prefill() -> None:
    async def test(where: Routed) -> None:
        body = asked(COMPLETIONS, stream=True, **USAGE)
        uncut = same_but_for_names(await where.ask(COMPLETIONS, body))
        assert b'"cached_tokens":0' in uncut
        lose(where, 2)
        assert same_but_for_names(await where.ask(COMPLETIONS, body)) == uncut

    on_router(test, **PAIRS, options=SimOptions(prompt_tokens_details=True))


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_where_it_would_not_be_exact_a_stream_ends_and_a_whole_answer_is_made_anew(stream: bool) -> None:
    async def test(where: Routed) -> None:
        body = asked(CHAT, stream=stream, return_token_ids=True, temperature=1, seed=5)
        lose(where, 3)
        answer = await where.ask(CHAT, body)
        row = await where.row()
        if stream:
            terminal(answer)
            assert output_of(answer) == expected_output(body)[0][:3]
            assert len(row["attempts"]) == 1
        else:
            assert answer.json()["choices"][0]["token_ids"] == expected_output(body)[0]
            assert [attempt["continues_at"] for attempt in row["attempts"]] == [None, None]

    on_router(test, **PAIRS)


def test_a_sampled_answer_goes_on_unless_a_character_is_cut_in_two() -> None:
    async def test(where: Routed) -> None:
        body = asked(CHAT, stream=True, return_token_ids=True, max_tokens=40)
        del body["temperature"]
        events = (await where.ask(CHAT, body)).events[1:]
        for after in range(1, len(events)):
            lose(where, after)
            answer = await where.ask(CHAT, body)
            if events[after - 1]["choices"][0]["delta"]:
                assert [event["choices"][0]["delta"] for event in answer.events[1:]] == [
                    event["choices"][0]["delta"] for event in events
                ]
            else:
                terminal(answer)

    on_router(test, **PAIRS, options=SimOptions(answer=SPLIT))


def test_a_rest_that_does_not_fit_ends_the_stream_and_is_not_held_against_the_engine() -> None:
    async def test(where: Routed) -> None:
        # The other engine has another answer to the same prompt; here that shows, since tokens come again.
        body = asked(CHAT, stream=True, return_token_ids=True, max_tokens=40)
        lose(where, 1)
        answer = await where.ask(CHAT, body)
        error = terminal(answer)
        assert "other tokens came this time" in error["message"]
        assert len(output_of(answer)) == 1
        assert not any(where.router.lifecycle.lives[3].health.counts.values())

    options = SimOptions(answer=SPLIT)

    async def other(where: Routed) -> None:
        engine = where.fleet["d1"]
        engine.options = SimOptions(role="decode", answer="ax" + SPLIT)
        await test(where)

    on_router(other, **PAIRS, options=options)


def test_a_stream_that_nobody_can_go_on_with_has_failed_by_what_cut_it() -> None:
    async def test(where: Routed) -> None:
        p0, d0 = where.fleet["p0"], where.fleet["d0"]
        d0.faults.set(Fault(FaultName.STALL, after=3))
        asking = asyncio.ensure_future(where.ask(CHAT, asked(CHAT, stream=True)))
        await eventually(lambda: d0.stats.events == 3)
        await p0.stop()
        await eventually(lambda: not where.router.table.available[0])
        await d0.stop()
        error = terminal(await asking)
        assert error["message"].startswith("engine d0 (decode leg): the engine closed the connection")
        assert "no engine can run" in error["message"]
        assert where.endings == {"broken_stream": 1}
        assert where.counts["failed"] == 1
        row = await where.row()
        assert [attempt["failure"] for attempt in row["attempts"]] == ["broken_stream", None]

    on_router(test, serving=SERVING, recovery={"liveness_interval_s": 0.75, "liveness_misses": 2})


def test_when_the_last_decode_engine_dies_its_answers_go_on_where_prompts_are_prefilled() -> None:
    async def test(where: Routed) -> None:
        p0, d0 = where.fleet["p0"], where.fleet["d0"]
        body = asked(CHAT, stream=True, return_token_ids=True)
        uncut = same_but_for_names(await where.ask(CHAT, body))
        d0.faults.set(Fault(FaultName.STALL, after=3))
        before = d0.stats.events
        asking = [asyncio.ensure_future(where.ask(CHAT, body)) for _ in range(2)]
        await eventually(lambda: d0.stats.events == before + 6)
        await d0.stop()
        for answer in await asyncio.gather(*asking):
            assert same_but_for_names(answer) == uncut
        for row in (await where.rows(3))[1:]:
            assert [(attempt["decode"], attempt["failure"]) for attempt in row["attempts"]] == [
                ("d0", "broken_stream"),
                ("p0", None),
            ]
        assert p0.stats["whole"].started == 2

    on_router(test, serving=SERVING)


def test_an_engine_that_dies_between_the_legs_is_stood_in_for_within_the_attempt() -> None:
    async def test(where: Routed) -> None:
        p0, d0 = where.fleet["p0"], where.fleet["d0"]
        p0.faults.set(Fault(FaultName.SLOW_FIRST_TOKEN, leg="prefill", seconds=1.5))
        body = asked(CHAT, stream=True, return_token_ids=True)
        asking = asyncio.ensure_future(where.ask(CHAT, body))
        await eventually(lambda: p0.stats["prefill"].started == 1)
        await d0.stop()
        await eventually(lambda: not where.router.table.available[1])
        p0.faults.set()
        assert (await asking).token_ids == expected_output(body)[0]
        (attempt,) = (await where.row())["attempts"]
        assert (attempt["prefill"], attempt["decode"]) == ("p0", "p0")

    serving = {"max_attempts": 1}
    on_router(test, serving=serving, recovery={"liveness_interval_s": 0.2, "liveness_misses": 2})


def test_going_on_is_paid_for_like_any_other_attempt() -> None:
    async def test(where: Routed) -> None:
        lose(where, 3)
        error = terminal(await where.ask(CHAT, asked(CHAT, stream=True)))
        assert "serving.retry_share" in error["message"]

    on_router(test, **PAIRS | {"serving": SERVING | {"retry_reserve": 0, "retry_share": 0.01}})


def test_a_client_that_leaves_while_its_answer_waits_to_go_on_ends_it() -> None:
    async def test(where: Routed) -> None:
        where.router.random.random = lambda: 1.0  # type: ignore[method-assign]
        lose(where, 3)
        client = await where.connect()
        client.writer.write(
            b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
            % (CHAT.encode(), len(raw := orjson.dumps(asked(CHAT, stream=True))), raw)
        )
        await eventually(lambda: where.fleet["d0"].stats["decode"].failed == 1)
        await client.close()
        await eventually(lambda: where.endings == {"disconnected": 1})
        assert where.fleet["d1"].stats["decode"].started == 0

    on_router(test, **PAIRS | {"serving": SERVING | {"retry_backoff_s": 60}})
