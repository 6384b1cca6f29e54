"""The load generator: sends requests when they are due, and watches itself while it does.

Open loop: each request has its time, and goes out then whether earlier ones are answered or not. Closed loop:
so many clients, each of which asks again as soon as it has its answer. Either way the generator waits for the
last answer before a round is over.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from narwhal._fast.timer import Timer
from narwhal.harness.call import Call
from narwhal.harness.endpoint import Endpoint
from narwhal.harness.prompts import Prompt
from narwhal.harness.sample import NO_TARGETS, Outcome, Sample, Targets

_LAG_EVERY_S = 0.02
_TIMEOUTS_EVERY_S = 0.1
_AFTER_FAILURE_S = 0.1  # closed loop: until a client that was not served asks again


@dataclass(frozen=True, slots=True)
class Draft:
    """A request to come."""

    prompt: Prompt
    input_tokens: int
    output_tokens: int
    at_s: float = 0.0  # since the round's begin; in a closed loop it has no meaning
    measured: bool = True


@dataclass(frozen=True, slots=True)
class Asking:
    """How requests are made."""

    path: str
    model: str
    stream: bool = True
    extra: dict[str, Any] = field(default_factory=dict)  # further members of every body
    timeout_s: float = 600.0  # of one request, from when it was due
    retries: int = 0  # of refusals with Retry-After
    connections: int | None = None  # no more at once; None: as many as there are requests
    run_id: str = "bench"
    targets: Targets = NO_TARGETS

    def body(self, draft: Draft) -> bytes:
        """A request's body."""
        members: dict[str, Any] = {"model": self.model, **draft.prompt.members}
        members["max_tokens"] = draft.output_tokens
        if self.stream:
            members |= {"stream": True, "stream_options": {"include_usage": True}}
        return orjson.dumps(members | self.extra)


@dataclass(slots=True)
class Own:
    """What the generator cost and how late it was, over one round."""

    cpu_s: float = 0.0
    took_s: float = 0.0
    lags: array[float] = field(default_factory=lambda: array("d"))  # of its event loop, sampled

    @property
    def cpu_share(self) -> float:
        """Of one core."""
        return self.cpu_s / self.took_s if self.took_s > 0 else 0.0


class Generator:
    """Puts rounds of requests on an endpoint, one after the other."""

    def __init__(
        self, endpoint: Endpoint, asking: Asking, *, epoch: float, on_sample: Callable[[Sample], None]
    ) -> None:
        """`epoch` is the run's begin (monotonic); `on_sample` gets each sample once it is complete."""
        self._endpoint = endpoint
        self._asking = asking
        self._epoch = epoch
        self._on_sample = on_sample
        self._loop = asyncio.get_running_loop()
        self._calls: dict[Call, float] = {}  # in flight, with their deadlines
        self._queue: deque[Call] = deque()  # for a connection
        self._number = 0
        self._place = (0, 0)
        self._more: Callable[[], None] | None = None  # closed loop: an answer has come
        self._launching = False
        self._waiting_clients = 0
        self._ended: asyncio.Future[None] | None = None
        self._stopping = False

    @property
    def in_flight(self) -> int:
        """Requests handed over and not over."""
        return len(self._calls)

    @property
    def handed(self) -> int:
        """Requests handed over so far."""
        return self._number

    def stop(self) -> None:
        """Send nothing more and wait for nothing; what is in flight becomes unfinished samples."""
        self._stopping = True
        self._launching = False
        self._queue.clear()
        for call in list(self._calls):
            call.give_up(None)
        self._check_end()

    async def open_loop(self, drafts: Iterator[Draft], *, begin: float, place: tuple[int, int]) -> Own:
        """Send each draft `at_s` after `begin` (monotonic); returns when the last answer is in."""
        upcoming: tuple[Draft, bytes] | None = None

        def prepare() -> None:
            nonlocal upcoming
            draft = next(drafts, None)
            upcoming = None if draft is None else (draft, self._asking.body(draft))

        def fire() -> None:
            while upcoming is not None and not self._stopping:
                draft, body = upcoming
                due = begin + draft.at_s
                if due > time.monotonic():
                    timer.set(due)
                    return
                self._launch(draft, body, due, measured=draft.measured)
                prepare()
            self._launching = False
            self._check_end()

        timer = Timer(self._loop, fire)
        try:
            prepare()
            timer.set(begin)
            return await self._watch(place)
        finally:
            timer.close()

    async def closed_loop(
        self,
        drafts: Iterator[Draft],
        *,
        begin: float,
        place: tuple[int, int],
        concurrency: int,
        ramp_s: float,
        measure_from_s: float,
        until_s: float | None,
        count: int | None,
    ) -> Own:
        """Keep `concurrency` requests in flight until `until_s`, or until `count` were measured.

        The clients come one by one over `ramp_s`. What is sent before `measure_from_s` is not measured. Times
        are since `begin`.
        """
        left = count
        standing = 0  # clients that wait for their turn to begin

        def ask() -> None:
            nonlocal left
            now = time.monotonic()
            if self._stopping or left == 0 or (until_s is not None and now - begin >= until_s):
                self._launching = False
                self._check_end()
                return
            draft = next(drafts)
            measured = now - begin >= measure_from_s
            if left is not None and measured:
                left -= 1
            self._launch(draft, self._asking.body(draft), now, measured=measured)

        def enter() -> None:
            nonlocal standing
            while standing < concurrency:
                at = begin + ramp_s * standing / concurrency
                if at > time.monotonic():
                    timer.set(at)
                    return
                standing += 1
                ask()

        timer = Timer(self._loop, enter)
        self._more = ask
        try:
            timer.set(begin)
            return await self._watch(place)
        finally:
            self._more = None
            timer.close()

    async def _watch(self, place: tuple[int, int]) -> Own:
        """Wait for the round's end, with an eye on timeouts and on the generator itself."""
        own = Own()
        self._place = place
        self._launching = True
        self._ended = self._loop.create_future()
        expected = time.monotonic() + _LAG_EVERY_S

        def sample_lag() -> None:
            nonlocal expected
            now = time.monotonic()
            own.lags.append(now - expected)
            expected = now + _LAG_EVERY_S
            lag_timer.set(expected)

        lag_timer = Timer(self._loop, sample_lag)
        lag_timer.set(expected)
        timeouts = self._loop.create_task(self._time_out())
        own.cpu_s, own.took_s = -time.process_time(), -time.monotonic()
        try:
            if not self._stopping:
                await self._ended
        finally:
            own.cpu_s += time.process_time()
            own.took_s += time.monotonic()
            timeouts.cancel()
            lag_timer.close()
        return own

    async def _time_out(self) -> None:
        while True:
            await asyncio.sleep(_TIMEOUTS_EVERY_S)
            now = time.monotonic()
            for call in [call for call, deadline in self._calls.items() if deadline < now]:
                call.give_up("timeout", f"no whole answer within {self._asking.timeout_s:g} s")

    def _launch(self, draft: Draft, body: bytes, due: float, *, measured: bool) -> None:
        asking = self._asking
        point, number_of_round = self._place
        sample = Sample(
            self._number,
            point,
            number_of_round,
            measured,
            due_s=due - self._epoch,
            handed_s=time.monotonic() - self._epoch,
            input_tokens=draft.input_tokens,
        )
        self._number += 1
        call = Call(
            self._endpoint.pool,
            self._endpoint.request(asking.path, body, f"{asking.run_id}-{sample.number}"),
            sample,
            streamed=asking.stream,
            epoch=self._epoch,
            retries=asking.retries,
            done=self._done,
        )
        self._calls[call] = due + asking.timeout_s
        if asking.connections is not None and len(self._calls) - len(self._queue) > asking.connections:
            self._queue.append(call)
        else:
            call.begin()

    def _done(self, call: Call) -> None:
        del self._calls[call]
        if self._queue:
            if call in self._queue:
                self._queue.remove(call)
            else:
                # In the loop's next turn, when the connection that has become free is known to be.
                self._loop.call_soon(self._queue.popleft().begin)
        sample = call.sample
        sample.good = sample.meets(self._asking.targets)
        self._on_sample(sample)
        if self._more is not None and sample.outcome is Outcome.SERVED:
            self._loop.call_soon(self._more)
        elif self._more is not None:
            self._waiting_clients += 1
            self._loop.call_later(_AFTER_FAILURE_S, self._ask_again, self._more)
        self._check_end()

    def _ask_again(self, ask: Callable[[], None]) -> None:
        self._waiting_clients -= 1
        ask()
        self._check_end()

    def _check_end(self) -> None:
        if self._launching or self._calls or (self._waiting_clients and not self._stopping):
            return
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
