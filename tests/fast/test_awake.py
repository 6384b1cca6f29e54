"""The loop waits awake where waits have been short of late, and only there."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from narwhal._fast.awake import Expectation
from narwhal._fast.loop import run
from narwhal._fast.reactor import Reactor
from narwhal._fast.selector import Selector

EVENTS, ANSWERS, REPLIES, REQUESTS = range(4)
KINDS = st.sampled_from([ANSWERS, REPLIES, REQUESTS])
SHORT, LONG = 20e-6, 0.02
# Of a sleep, in which to be woken takes its time; awake it would be a long one.
SLEPT = 120e-6


def taught(waits: list[float], *, served: int = REPLIES, awake: bool = True) -> Expectation:
    expectation = Expectation()
    for waited_s in waits:
        expectation.learn(served, waited_s, awake)
    return expectation


def test_nothing_is_expected_before_a_short_wait_was_seen() -> None:
    assert not any(Expectation().is_short(served) for served in (EVENTS, ANSWERS, REPLIES, REQUESTS))
    assert taught([SHORT]).is_short(REPLIES)


def test_a_sleep_counts_as_short_even_with_the_time_it_takes_to_be_woken() -> None:
    assert taught([SLEPT], awake=False).is_short(REPLIES)
    assert not taught([SLEPT], awake=True).is_short(REPLIES)


@given(KINDS, st.lists(st.sampled_from([SHORT, LONG])))
def test_a_few_long_waits_end_it_whatever_was_before(served: int, before: list[float]) -> None:
    assert not taught([*before, *[LONG] * 4], served=served).is_short(served)


@given(KINDS, st.lists(st.sampled_from([SHORT, LONG])))
def test_a_run_of_short_waits_begins_it_whatever_was_before(served: int, before: list[float]) -> None:
    assert taught([*before, *[SHORT] * 9], served=served).is_short(served)


@given(KINDS, st.integers(1, 100))
def test_waits_of_which_every_other_is_long_are_slept_through(served: int, pairs: int) -> None:
    assert not taught([SHORT, LONG] * pairs, served=served).is_short(served)


@given(KINDS, KINDS)
def test_one_kind_says_nothing_of_another(served: int, other: int) -> None:
    assert taught([SHORT] * 9, served=served).is_short(other) is (served == other)


def test_after_events_of_streams_that_go_on_the_loop_always_sleeps() -> None:
    assert not taught([SHORT] * 100, served=EVENTS).is_short(EVENTS)


def test_a_loop_that_waits_awake_hears_all_that_a_sleeping_one_hears() -> None:
    """It is made to expect something before each wait: a timer, a thread's call, a signal, a descriptor."""

    class Other(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            received.append(data)
            heard.set()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        selector = cast("Selector", loop._selector)  # type: ignore[attr-defined]

        def expect_something() -> None:
            for served in (ANSWERS, REPLIES, REQUESTS):
                for _ in range(9):
                    selector.expectation.learn(served, SHORT, True)

        def take() -> None:
            readable.recv(1)
            heard.set()

        async def is_heard() -> None:
            expect_something()
            await heard.wait()
            heard.clear()

        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        transport = Reactor.of(loop).attach(ours.detach(), Other())
        loop.add_signal_handler(signal.SIGUSR1, heard.set)
        readable, writable = socket.socketpair()
        with theirs, readable, writable:
            loop.add_reader(readable, take)
            async with asyncio.timeout(30):
                for _ in range(5):
                    theirs.send(b"x")  # so that what was served last is a request, as the reactor sees it
                    await is_heard()
                    loop.call_later(0.001, heard.set)
                    await is_heard()
                    threading.Timer(0.001, loop.call_soon_threadsafe, [heard.set]).start()
                    await is_heard()
                    threading.Timer(0.001, os.kill, [os.getpid(), signal.SIGUSR1]).start()
                    await is_heard()
                    threading.Timer(0.001, writable.send, [b"x"]).start()
                    await is_heard()
                    threading.Timer(0.001, theirs.send, [b"x"]).start()
                    await is_heard()
            loop.remove_reader(readable)
            loop.remove_signal_handler(signal.SIGUSR1)
            transport.close()
        assert b"".join(received) == b"x" * 10

    received: list[bytes] = []
    heard = asyncio.Event()
    run(main())
