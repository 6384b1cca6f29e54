"""What a request waits for: it goes on once, with what came, and never from within a call with an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from narwhal.serving.awaited import Awaited


class Loop:
    """The calls that are due in the next turn."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.due.append(call)

    def turn(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()


class Waiter:
    """A coroutine that waits for one thing, and what came of it."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.loop = Loop()
        self.awaited = Awaited(self.loop, self.go_on, at_once)  # type: ignore[arg-type]
        self.seen: list[Any] = []
        self.way = self.wait()

    async def wait(self) -> None:
        try:
            self.seen.append(await self.awaited)
        except ValueError as error:
            self.seen.append(str(error))

    def go_on(self) -> None:
        with pytest.raises(StopIteration):
            self.way.send(None)

    def begin(self) -> None:
        self.way.send(None)


def test_it_goes_on_in_the_next_turn_unless_it_may_at_once() -> None:
    later, at_once = Waiter(), Waiter(at_once=True)
    for waiter in (later, at_once):
        waiter.begin()
        waiter.awaited.set_result(7)
    assert (later.seen, at_once.seen) == ([], [7])
    later.loop.turn()
    assert later.seen == [7]
    assert not at_once.loop.due


@pytest.mark.parametrize("at_once", [False, True])
def test_an_error_is_raised_in_the_next_turn(at_once: bool) -> None:
    waiter = Waiter(at_once=at_once)
    waiter.begin()
    waiter.awaited.set_exception(ValueError("lost"))
    assert waiter.seen == []
    waiter.loop.turn()
    assert waiter.seen == ["lost"]


def test_what_came_before_it_is_waited_for_is_there_and_wakes_nobody() -> None:
    waiter = Waiter(at_once=True)
    waiter.awaited.set_result(7)
    waiter.go_on()
    assert (waiter.seen, waiter.loop.due) == ([7], [])


def test_it_comes_once() -> None:
    awaited = Awaited(Loop(), lambda: None)  # type: ignore[arg-type]
    assert not awaited.done()
    awaited.set_result(1)
    assert awaited.done()
    with pytest.raises(RuntimeError, match="twice"):
        awaited.set_exception(ValueError())


def test_a_task_may_wait_for_it_in_a_real_loop() -> None:
    async def main() -> Any:
        going_on = asyncio.Event()
        awaited = Awaited(asyncio.get_running_loop(), going_on.set)
        way = wait_for(awaited)
        way.send(None)
        awaited.set_result("there")
        await going_on.wait()
        with pytest.raises(StopIteration) as end:
            way.send(None)
        return end.value.value

    async def wait_for(awaited: Awaited) -> Any:
        return await awaited

    assert asyncio.run(main()) == "there"
