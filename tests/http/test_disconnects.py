"""A client that leaves ends its request wherever it is: both legs are aborted, and all it held goes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from narwhal.fleet.table import Phase
from narwhal.serving import routes
from narwhal.serving.exchange import Exchange
from narwhal.sim import expected_output
from tests.http.support import CHAT, Client, Routed, body_for, eventually, message, on_router, seat

Fields = dict[str, Any]
ONE_SEAT = {"prefill_concurrency": 1, "decode_concurrency": 1}
LEAVING: dict[str, Callable[[Client], None]] = {
    "closes": lambda client: client.writer.close(),
    "resets": lambda client: client.writer.transport.abort(),
    "closes its half": lambda client: client.writer.write_eof(),
}


def hang(leg: str) -> Fields:
    return {"sim": {"fault": {"name": "hang", "leg": leg}}}


STALL: Fields = {"sim": {"fault": {"name": "stall", "after": 3, "leg": "decode"}}}


def aborted(where: Routed) -> list[tuple[int, int]]:
    """Of each engine's legs: those that began, and those aborted."""
    counts = [
        count for engine in where.fleet.engines for count in engine.stats.legs.values() if count.started
    ]
    return [(count.started, count.aborted) for count in counts]


@pytest.mark.parametrize("how", LEAVING)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("body", "legs"),
    [
        (hang("prefill"), [(1, 1)]),
        (hang("decode"), [(1, 0), (1, 1)]),
        (STALL, [(1, 0), (1, 1)]),
    ],
    ids=["in prefill", "before the first token", "amid the answer"],
)
def test_the_leg_under_way_is_aborted_at_once(
    body: Fields, legs: list[tuple[int, int]], stream: bool, how: str
) -> None:
    async def test(where: Routed) -> None:
        client = await where.connect()
        client.writer.write(message("POST", CHAT, body_for(CHAT, stream=stream, **body)))
        engine = where.fleet.engines[len(legs) - 1]
        sent = 3 if body is STALL else 0
        await eventually(lambda: (engine.stats.active, engine.stats.events) == (1, sent))
        assert sum(where.seats) == 1
        LEAVING[how](client)
        await eventually(lambda: where.endings == {"disconnected": 1})
        assert where.seats == (0, 0)
        assert where.counts["cancelled"] == 1
        await eventually(lambda: aborted(where) == legs)
        row = await where.row()
        assert (row["outcome"], row["reason"]) == ("cancelled", "disconnected")
        assert row["status"] == (200 if stream and body is STALL else None)
        assert row["output_tokens"] == sent

    on_router(test)


@pytest.mark.parametrize("phase", Phase)
def test_one_that_waits_for_a_seat_gives_its_place_up(phase: Phase) -> None:
    async def test(where: Routed) -> None:
        grant = seat(where, phase)
        leaver, stayer = await where.connect(), await where.connect()
        request = message("POST", CHAT, body_for(CHAT, stream=True, return_token_ids=True))
        leaver.writer.write(request)
        await eventually(lambda: where.door.waiting(phase) == 1)
        stayer.writer.write(request)
        # Behind the one that waits for its decode seat, prefill goes on.
        await eventually(lambda: where.door.waiting(phase) == 2)
        await leaver.close()
        await eventually(lambda: where.endings == {"disconnected": 1})
        assert where.door.waiting(phase) == 1
        grant.release_all(time.monotonic())
        assert (await stayer.read()).token_ids == expected_output(body_for(CHAT))[0]
        assert where.fleet["d0"].stats["decode"].started == 1

    on_router(test, serving=ONE_SEAT)


def test_one_that_leaves_amid_its_head_was_never_there_and_amid_its_body_is_cancelled() -> None:
    async def test(where: Routed) -> None:
        request = message("POST", CHAT, body_for(CHAT))
        head = request.index(b"\r\n\r\n") + 4
        for cut in (10, head - 1):
            client = await where.connect()
            client.writer.write(request[:cut])
            await client.close()
        for cut in (head, len(request) - 1):
            client = await where.connect()
            client.writer.write(request[:cut])
            await eventually(lambda: where.door.held == 1)
            await client.close()
            await eventually(lambda: where.door.held == 0)
        assert (where.counts["offered"], where.counts["unsized_offered"]) == (2, 2)
        assert where.endings == {"disconnected": 2}
        assert not any(engine.requests for engine in where.fleet.engines)

    on_router(test)


def test_one_that_leaves_between_two_attempts_gets_no_other() -> None:
    async def test(where: Routed) -> None:
        # The other engine has no seat free, so the second attempt waits for one.
        client = await where.connect()
        grant = seat(where, Phase.PREFILL, avoid={0})
        client.writer.write(message("POST", CHAT, body_for(CHAT, sim={"fault": "reset"})))
        await eventually(lambda: where.door.waiting(Phase.PREFILL) == 1)
        await client.close()
        await eventually(lambda: where.endings == {"disconnected": 1})
        grant.release_all(time.monotonic())
        row = await where.row()
        assert [attempt["failure"] for attempt in row["attempts"]] == ["broken_stream", None]
        assert len(where.fleet["p1"].requests) == 0

    on_router(test, prefill=2, serving=ONE_SEAT)


def test_one_that_leaves_while_its_engine_is_being_connected_to_is_cancelled() -> None:
    async def test(where: Routed) -> None:
        # Whether the connection stands by then or not: no engine keeps working for it.
        for _ in range(20):
            client = await where.connect()
            client.writer.write(message("POST", CHAT, body_for(CHAT, stream=True, **STALL)))
            await asyncio.sleep(0)
            client.writer.transport.abort()
        await eventually(lambda: not where.counts["in_flight"] and not where.fleet.active)
        assert set(where.endings) <= {"disconnected"}

    on_router(test)


def test_a_client_that_has_the_whole_answer_and_leaves_was_served() -> None:
    async def test(where: Routed) -> None:
        for number in range(1, 11):
            for stream in (True, False):
                client = await where.connect()
                client.writer.write(message("POST", CHAT, body_for(CHAT, stream=stream)))
                if stream:
                    await client.reader.readuntil(b"data: [DONE]\n\n")
                else:
                    await client.read()
                client.writer.transport.abort()
            await eventually(lambda: where.counts["served"] == 2 * number)  # noqa: B023
        assert where.endings == {"served": 20}

    on_router(test)


def test_one_that_leaves_between_the_last_byte_and_the_accounts_was_served_if_it_has_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Left(Exchange):
        def on_end(self) -> None:
            self.client_left()
            super().on_end()

    monkeypatch.setattr(routes, "Exchange", Left)

    async def test(where: Routed) -> None:
        assert (await where.ask(CHAT, body_for(CHAT, stream=True))).ended == "whole"
        await eventually(lambda: where.endings == {"served": 1})
        # A whole answer is not sent by then.
        await where.ask(CHAT, body_for(CHAT), wait_s=0.1)
        assert where.endings == {"served": 1, "disconnected": 1}

    on_router(test)


def test_a_client_that_leaves_after_some_requests_of_its_pipeline_ends_the_one_at_hand() -> None:
    async def test(where: Routed) -> None:
        client = await where.connect()
        requests = [body_for(CHAT, stream=True), body_for(CHAT, stream=True, **STALL), body_for(CHAT)]
        client.writer.write(b"".join(message("POST", CHAT, body) for body in requests))
        assert (await client.read()).status == 200
        await eventually(lambda: where.fleet["d0"].stats.active == 1)
        await client.close()
        await eventually(lambda: where.counts["cancelled"] == 1)
        assert where.endings == {"served": 1, "disconnected": 1}
        assert where.counts["offered"] == 2

    on_router(test)
