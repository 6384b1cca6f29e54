"""A warning is logged at once, and one that repeats about once a second with how often it came."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from narwhal.serving.repeats import Repeats

if TYPE_CHECKING:
    import pytest


def test_of_warnings_that_repeat_the_first_and_then_the_latest_with_a_count_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    repeats = Repeats(logging.getLogger("narwhal.test"))
    for number in range(1, 6):
        repeats.warn("d0", f"d0 failed {number}")
    repeats.warn("d1", "d1 failed 1")
    assert caplog.messages == ["d0 failed 1", "d1 failed 1"]
    repeats.flush()
    assert caplog.messages[2:] == ["d0 failed 5 (3 more like this)"]
    repeats.warn("d0", "d0 failed 6")
    repeats.warn("d1", "d1 failed 2")
    # d0 goes on and is held back; d1 had its pause.
    assert caplog.messages[3:] == ["d1 failed 2"]
    repeats.flush()
    assert caplog.messages[4:] == ["d0 failed 6"]
    repeats.flush()
    repeats.warn("d0", "d0 failed 7")
    assert caplog.messages[5:] == ["d0 failed 7"]
