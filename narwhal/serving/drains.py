"""Drains, kept in a file so that they survive a restart of the router.

The file is small and is written whole: to a file beside it, flushed to the disk, then renamed over it. So at
every instant it is either the old one or the new one.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from narwhal.config import ConfigError, Problem


class Drain(NamedTuple):
    """One engine's drain."""

    until: float | None  # seconds since 1970: from when it is safe to stop whatever runs
    reason: str


Drains = dict[str, Drain]  # by engine ID


class DrainFile:
    """The file that `recovery.state_path` names."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._newest = 0
        self._written = 0

    def load(self) -> Drains:
        """What it holds; nothing, if it is not there. Raises ConfigError."""
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._problem(error.strerror or str(error)) from None
        try:
            return {name: _drain(entry) for name, entry in orjson.loads(raw)["drains"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._problem("something else than the router writes there") from None

    def _problem(self, seen: str) -> ConfigError:
        allowed = "a file that this router wrote; move it away to start without drains"
        return ConfigError(str(self._path), [Problem("recovery.state_path", 0, seen, allowed)])

    def ticket(self) -> int:
        """The order of what is to be written: take one where the drains are changed."""
        self._newest += 1
        return self._newest

    def save(self, ticket: int, drains: Drains) -> None:
        """Write, unless something newer is written. Blocks: call it on another thread. Raises OSError."""
        text = orjson.dumps({"drains": {name: drain._asdict() for name, drain in drains.items()}})
        with self._lock:
            if ticket <= self._written:
                return
            beside = self._path.with_name(self._path.name + ".new")
            with beside.open("wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self._written = ticket


def _drain(entry: Any) -> Drain:
    until, reason = entry["until"], entry["reason"]
    if not isinstance(reason, str) or not isinstance(until, float | int | None):
        raise TypeError
    return Drain(until, reason)
