"""The alarm rings once, when what was set last is due, however often it was moved."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from narwhal.serving.alarm import Alarm


class Loop:
    """An event loop's timers, and a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self, self.now + delay, call))
        return self.timers[-1]

    def move_to(self, now: float) -> None:
        self.now = now
        while due := [timer for timer in self.timers if timer.when <= now]:
            due[0].cancel()
            due[0].call()


class Timer:
    def __init__(self, loop: Loop, when: float, call: Callable[[], None]) -> None:
        self.loop, self.when, self.call = loop, when, call

    def cancel(self) -> None:
        if self in self.loop.timers:
            self.loop.timers.remove(self)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    made = Loop()
    monkeypatch.setattr("narwhal.serving.alarm.monotonic", lambda: made.now)
    return made


@pytest.fixture
def rung() -> list[float]:
    return []


@pytest.fixture
def alarm(loop: Loop, rung: list[float]) -> Alarm:
    return Alarm(loop, rung.append)  # type: ignore[arg-type]


def test_it_rings_once_at_the_time_set_last(loop: Loop, alarm: Alarm, rung: list[float]) -> None:
    alarm.set(105)
    alarm.set(110)
    alarm.set(108)
    loop.move_to(107.9)
    assert rung == []
    loop.move_to(108)
    loop.move_to(200)
    assert rung == [108]
    alarm.set(201)
    loop.move_to(201)
    assert rung == [108, 201]


def test_it_rings_earlier_when_moved_forward(loop: Loop, alarm: Alarm, rung: list[float]) -> None:
    alarm.set(110)
    alarm.set(102)
    loop.move_to(102)
    assert rung == [102]


def test_it_never_rings_when_set_to_infinity(loop: Loop, alarm: Alarm, rung: list[float]) -> None:
    alarm.set(105)
    alarm.set(float("inf"))
    loop.move_to(1000)
    assert rung == []
    assert not loop.timers


def test_moving_it_back_costs_no_timer(loop: Loop, alarm: Alarm) -> None:
    for when in range(105, 205):
        alarm.set(when)
    assert len(loop.timers) == 1


def test_a_closed_one_never_rings_and_holds_no_timer(loop: Loop, alarm: Alarm, rung: list[float]) -> None:
    alarm.set(105)
    alarm.close()
    alarm.set(103)
    assert not loop.timers
    loop.move_to(1000)
    assert rung == []
