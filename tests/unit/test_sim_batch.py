"""The simulated engine's computing, on a clock that the test turns."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.sim.batch import Batch
from narwhal.sim.timing import Curve, Interval, Timing


class Clock:
    """What a batch needs of an event loop; time passes only in `run`."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()  # settles equal times

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[..., None], *args: Any) -> asyncio.TimerHandle:
        heapq.heappush(self._due, (when, next(self._order), call, args))
        return cast("asyncio.TimerHandle", call)

    def run(self, until: float = float("inf")) -> None:
        while self._due and self._due[0][0] <= until:
            when, _, call, args = heapq.heappop(self._due)
            self.now = max(self.now, when)
            call(*args)


class Job:
    """A sequence that notes when its tokens come."""

    def __init__(self, clock: Clock, prompt_tokens: int, output_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self._clock, self._left = clock, output_tokens
        self.times: list[float] = []

    def prefilled(self) -> bool:
        return self.step() >= 0

    def step(self) -> int:
        self.times.append(self._clock.now)
        self._left -= 1
        return 1 if self._left else -1


def batch_with(timing: Timing, max_sequences: int = 100) -> tuple[Clock, Batch]:
    clock = Clock()
    return clock, Batch(cast("asyncio.AbstractEventLoop", clock), timing, max_sequences)


def test_prompts_are_prefilled_one_after_another_as_the_curve_says() -> None:
    clock, batch = batch_with(Timing(prefill=Curve(a=0.01, b=0.1, c=1.0)))
    jobs = [Job(clock, length, 1) for length in (10, 20)]
    for job in jobs:
        batch.prefill(job)
    assert (batch.running, batch.waiting) == (1, 1)
    clock.run()
    assert jobs[0].times == pytest.approx([3.0])  # 0.01 * 100 + 0.1 * 10 + 1
    assert jobs[1].times == pytest.approx([3.0 + 7.0])  # and 0.01 * 400 + 0.1 * 20 + 1
    assert (batch.running, batch.waiting) == (0, 0)


def test_prompts_in_one_pass_share_its_constant() -> None:
    clock, batch = batch_with(Timing(prefill=Curve(b=0.1, c=1.0), prefill_batch=2))
    jobs = [Job(clock, 10, 1) for _ in range(4)]
    for job in jobs:
        batch.prefill(job)
    clock.run()
    # The first prompt found the engine idle; the next two were waiting when its pass was over.
    assert [job.times[0] for job in jobs] == pytest.approx([2.0, 5.0, 5.0, 7.0])


def test_the_interval_grows_with_sequences_and_with_the_kv_cache_they_hold() -> None:
    clock, batch = batch_with(Timing(interval=Interval(base=1.0, per_seq=0.1, per_kv_token=0.01)))
    first, second = Job(clock, 10, 3), Job(clock, 50, 1)
    batch.decode(first)
    clock.run(until=1.25)
    assert first.times == pytest.approx([1.2])
    batch.decode(second)  # joins with the next step, which is under way: 1.2 + (1 + 0.1 + 0.11)
    clock.run()
    assert first.times == pytest.approx([1.2, 2.41, 2.41 + 1 + 0.2 + 0.62])
    assert second.times == first.times[2:]


def test_all_running_sequences_advance_in_the_same_instant() -> None:
    clock, batch = batch_with(Timing(interval=Interval(base=1.0)))
    jobs = [Job(clock, 1, 3) for _ in range(4)]
    for job in jobs:
        batch.decode(job)
    clock.run()
    # The first found the engine idle; the others join when its step is over.
    assert jobs[0].times == [1.0, 2.0, 3.0]
    assert all(job.times == [2.0, 3.0, 4.0] for job in jobs[1:])


def test_no_more_sequences_decode_than_the_engine_takes() -> None:
    clock, batch = batch_with(Timing(interval=Interval(base=1.0)), max_sequences=2)
    jobs = [Job(clock, 1, 2) for _ in range(4)]
    for job in jobs:
        batch.decode(job)
    clock.run(until=1.5)
    assert (batch.running, batch.waiting) == (2, 2)
    clock.run()
    assert [job.times for job in jobs] == [[1.0, 2.0], [2.0, 3.0], [3.0, 4.0], [4.0, 5.0]]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 6), st.booleans()), max_size=20), st.data())
@settings(max_examples=80, deadline=None)
def test_every_sequence_gets_its_tokens_whatever_joins_and_leaves(
    jobs: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    timing = Timing(prefill=Curve(b=0.1), interval=Interval(1.0, 0.1, 0.001), prefill_batch=3)
    clock, batch = batch_with(timing, max_sequences=4)
    sequences = []
    for prompt, output, prefill in jobs:
        job = Job(clock, prompt, output)
        (batch.prefill if prefill else batch.decode)(job)
        sequences.append((job, output))
    clock.run(until=data.draw(st.floats(0, 10)))
    left = data.draw(st.lists(st.sampled_from([job for job, _ in sequences]))) if sequences else []
    for job in left:
        batch.drop(job)
    had = [len(job.times) for job in left]
    clock.run()
    assert [len(job.times) for job in left] == had
    assert all(len(job.times) == output for job, output in sequences if job not in left)
    assert batch.running == batch.waiting == batch._kv_tokens == 0


def test_speed_divides_every_duration() -> None:
    timing = Timing(prefill=Curve(c=2.0), interval=Interval(base=1.0), speed=4.0)
    assert timing.prefill_s([10]) == 0.5
    assert timing.interval_s(1, 1) == 0.25
