"""Many requests at once: every token is accounted for, no limit is passed, and nothing is left behind."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from typing import Any

import orjson
import pytest

from narwhal.fleet.table import Phase
from narwhal.sim import Fault, FaultName, Interval, Leg, SimOptions, Timing, expected_output
from tests.http.support import (
    CHAT,
    COMPLETIONS,
    Routed,
    at_rest,
    body_for,
    eventually,
    message,
    on_router,
    seat,
)

Fields = dict[str, Any]


class Watch:
    """Samples of the law and of the seats, taken between any two turns of the loop."""

    def __init__(self, where: Routed) -> None:
        self._where = where
        self.samples = 0
        self.most_in_flight = 0

    async def during(self, *work: Coroutine[Any, Any, None]) -> None:
        """Do the work, and look all the while."""
        watching = asyncio.ensure_future(self._look())
        try:
            await asyncio.gather(*work)
        finally:
            watching.cancel()

    async def _look(self) -> None:
        where = self._where
        table = where.router.table
        counters = where.router.accounts.counters
        while True:
            assert counters.law_holds()
            self.most_in_flight = max(self.most_in_flight, counters.in_flight)
            for phase in Phase:
                assert all(
                    0 <= taken <= limit
                    for taken, limit in zip(table.seats[phase], table.limit[phase], strict=True)
                )
            self.samples += 1
            await asyncio.sleep(0.001)


def test_three_hundred_streams_at_once_lose_no_token() -> None:
    async def test(where: Routed) -> None:
        tokens = 0
        clients = [await where.connect() for _ in range(300)]

        async def one(number: int) -> None:
            nonlocal tokens
            path = COMPLETIONS if number % 3 == 0 else CHAT
            body = body_for(path, f"request {number}", max_tokens=16 + number % 9, return_token_ids=True)
            answer = await clients[number].ask("POST", path, body | {"stream": number % 4 != 0}, wait_s=60)
            assert (answer.status, answer.ended) == (200, "whole")
            ids = answer.token_ids if number % 4 else answer.json()["choices"][0]["token_ids"]
            assert ids == expected_output(body)[0]
            tokens += len(ids)

        grants = [seat(where, Phase.DECODE) for _ in range(300)]

        async def let_go() -> None:
            """All prompts are computed; now everybody's tokens come."""
            await eventually(lambda: where.door.waiting(Phase.DECODE) == 300, within_s=30)
            for grant in grants:
                grant.release_all(time.monotonic())
            assert where.seats == (0, 300)

        watch = Watch(where)
        await watch.during(let_go(), *(one(number) for number in range(300)))
        await at_rest(where)
        assert where.endings == {"served": 300}
        assert watch.most_in_flight == 300
        figures = where.router.accounts.engines
        assert sum(figures.tokens) == tokens
        assert not any(figures.usage_disagreements)
        assert sum(row["output_tokens"] for row in await where.rows(300)) == tokens
        legs = where.fleet.of("decode")
        assert sum(engine.stats["decode"].finished for engine in legs) == 300
        assert sum(engine.stats.generated_tokens for engine in legs) == tokens
        assert [engine.stats["decode"].finished for engine in legs] == [150, 150]
        made = sum(engine.stats.handoffs_made for engine in where.fleet.of("prefill"))
        assert made == sum(engine.stats.handoffs_taken for engine in where.fleet.of("prefill")) == 300

    serving = {"queue_capacity": 300, "queue_timeout_s": 60, "decode_concurrency": 150}
    on_router(test, prefill=2, decode=2, serving=serving)


@pytest.mark.parametrize("fleet", [{"prefill": 2, "decode": 2}, {"prefill": 0, "decode": 0, "both": 3}])
def test_no_engine_ever_has_more_legs_than_seats_with_faults_and_clients_leaving(
    fleet: dict[str, int],
) -> None:
    seats = {"prefill_concurrency": 3, "decode_concurrency": 5}
    chance = random.Random(7)
    timing = Timing(interval=Interval(base=0.001), prefill_batch=4)

    async def test(where: Routed) -> None:
        for engine in where.fleet.engines:
            engine.faults.set(
                Fault(FaultName.RESET, probability=0.08),
                Fault(FaultName.BAD_STATUS, probability=0.08, leg="prefill", status=503),
                Fault(FaultName.IDS_NULL, probability=0.08, after=2),
                Fault(FaultName.STALL, probability=0.08, after=3, leg="decode"),
                Fault(FaultName.HANG, probability=0.03),
            )
        whole = 0

        async def stay(number: int) -> None:
            nonlocal whole
            body = body_for(CHAT, f"request {number}", max_tokens=6, return_token_ids=True)
            stream = number % 3 != 0
            answer = await where.ask(CHAT, body | {"stream": stream}, wait_s=60)
            assert answer.ended == "whole"
            if answer.status != 200:
                assert answer.json()["error"]["code"] in where.endings
            elif b"[DONE]" in answer.blocks or not stream:
                ids = answer.token_ids if stream else answer.json()["choices"][0]["token_ids"]
                assert ids == expected_output(body)[0]
                whole += 1
            else:
                assert orjson.loads(answer.blocks[-1])["error"]["type"] == "decode"

        async def leave(number: int) -> None:
            client = await where.connect()
            body = body_for(CHAT, f"request {number}", max_tokens=6, stream=number % 2 == 0)
            client.writer.write(message("POST", CHAT, body))
            await asyncio.sleep(chance.random() * 0.1)
            client.writer.transport.abort()

        watch = Watch(where)
        await watch.during(*((leave if number % 4 == 0 else stay)(number) for number in range(240)))
        await at_rest(where)
        assert where.counts["offered"] == 240
        assert where.counts["served"] >= whole > 60
        assert 0 < where.counts["cancelled"] <= 60
        assert where.counts["failed"]
        peaks = {leg: max(engine.stats[leg].peak for engine in where.fleet.engines) for leg in Leg}
        assert peaks[Leg.PREFILL] <= 3
        assert peaks[Leg.DECODE] + peaks[Leg.WHOLE] == 5
        # No handoff was ever used twice, whatever failed.
        assert not any(engine.stats.handoffs_spoiled for engine in where.fleet.of("prefill"))
        assert watch.samples > 10

    serving = {"queue_timeout_s": 60, "first_token_timeout_s": 0.3, "stream_idle_timeout_s": 0.3}
    serving |= {"prefill_timeout_s": 0.3, **seats}
    on_router(test, **fleet, options=SimOptions(timing=timing), serving=serving)


def test_a_client_that_does_not_read_pauses_its_own_engine_stream_and_no_other() -> None:
    # More than the sockets between engine and client can hold.
    delta = {"content": "x" * 32768}
    event = orjson.dumps({"choices": [{"index": 0, "delta": delta, "token_ids": [7]}]}).decode()
    events = [f"data: {event}\n\n"] * 400 + ["data: [DONE]\n\n"]

    async def test(where: Routed) -> None:
        (d0,) = where.fleet.of("decode")
        slow = await where.connect()
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        slow.writer.write(message("POST", CHAT, body_for(CHAT, stream=True, sim={"events": events})))
        await eventually(lambda: d0.stats.pauses > 0, "the engine's stream stands still")
        # The router holds little of it, and stays out of the others' way.
        outlets = [connection.outlet.transport_or_none() for connection in where.server._connections]
        assert max(outlet.get_write_buffer_size() for outlet in outlets if outlet is not None) < 1 << 20
        body = body_for(CHAT, stream=True, return_token_ids=True)
        for _ in range(3):
            assert (await where.ask(CHAT, body)).token_ids == expected_output(body)[0]
        # An engine that falls silent is given up; this one's silence is the client's.
        await where.ask(CHAT, body | {"sim": {"fault": {"name": "stall", "after": 1, "leg": "decode"}}})
        assert where.endings == {"served": 3, "engine_timeout": 1}
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        answer = await slow.read(30)
        assert (answer.ended, len(answer.blocks)) == ("whole", 401)
        assert where.endings == {"served": 4, "engine_timeout": 1}

    on_router(test, serving={"stream_idle_timeout_s": 0.3, "max_request_bytes": 64 << 20})
