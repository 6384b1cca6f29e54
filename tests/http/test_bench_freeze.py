"""No coordinated omission: who was due while the server stood still has waited until it went on."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import uvloop

from narwhal.harness.load import Point
from narwhal.harness.sample import Outcome
from tests.http.bench_support import Bench, load
from tests.http.support import eventually
from tests.http.test_sim_process import process

FREEZE_S = 2.0
RATE = 50.0


def test_an_engine_that_freezes_for_two_seconds_shows_in_every_request_that_was_due_in_them() -> None:
    """With a single connection: a generator that waits for it would have seen one slow request."""

    async def main() -> None:
        async with process("--speed", "100") as (child, url):
            bench = Bench(url)
            of = load(Point(rate=RATE), duration_s=3.0, output="2", pattern="constant")
            under_way = asyncio.create_task(bench.run(of, connections=1))
            await eventually(lambda: sum(s.outcome is Outcome.SERVED for s in bench.samples) >= 10)
            os.kill(child.pid, signal.SIGSTOP)
            await asyncio.to_thread(os.waitid, os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
            frozen = time.monotonic()
            await asyncio.sleep(FREEZE_S)
            thawed = time.monotonic()
            os.kill(child.pid, signal.SIGCONT)
            run = await under_way
        start, end = frozen - run.epoch, thawed - run.epoch
        within = [sample for sample in run.samples if start <= sample.due_s < end]
        assert abs(len(within) - (end - start) * RATE) <= 1
        for sample in within:
            assert sample.outcome is Outcome.SERVED
            assert (sample.ttft_s or 0) >= end - sample.due_s
        ttft = run.summary()["points"][0]["latency"]["ttft_s"]
        # Their waits are evenly spread over the length of the freeze.
        assert ttft["max"] >= FREEZE_S - 1 / RATE
        assert sum((sample.ttft_s or 0) >= FREEZE_S / 2 for sample in run.samples) >= FREEZE_S / 2 * RATE - 1
        # The requests themselves, counted from their sending, hardly show it.
        slow = [s for s in within if (s.first_s or 0) - (s.sent_s or 0) >= FREEZE_S / 2]
        assert len(slow) <= 1

    uvloop.run(main())
