"""What lasts is said at once, and then ever more rarely, but never less than once an hour."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from narwhal.monitoring.reminder import Reminder


@given(st.floats(0, 1e6), st.floats(0.5, 120.0))
def test_it_is_said_at_once_and_then_ever_more_rarely(start: float, every_s: float) -> None:
    reminder = Reminder(60, 3600)
    asked = [start + number * every_s for number in range(int(6 * 3600 / every_s))]
    said = [now for now in asked if reminder.is_due(now)]
    gaps = [after - before for before, after in pairwise(said)]
    assert said[0] == start
    for gap, wanted in zip(gaps, [60, 120, 240, 480, 960, 1920, *[3600] * 9], strict=False):
        assert wanted - 1e-3 <= gap <= wanted + every_s + 1e-3


def test_it_may_be_said_as_often_for_ever() -> None:
    reminder = Reminder(10, 10)
    assert [now for now in range(45) if reminder.is_due(now)] == [0, 10, 20, 30, 40]
