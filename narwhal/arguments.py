"""Values on the command line: readers for argparse that say what is allowed."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def port(text: str) -> int:
    """A TCP port; 0 stands for any free one. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is no port; allowed: 0 to 65535")
    return int(text)


def seconds(most: float) -> Callable[[str], float]:
    """A reader of durations up to `most` seconds, which raises ArgumentTypeError."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value <= most:
            allowed = f"a number of seconds greater than 0, at most {most:g}"
            raise argparse.ArgumentTypeError(f"{text!r} is no such duration; allowed: {allowed}")
        return value

    return read
