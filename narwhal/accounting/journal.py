"""The journal: one line of JSON for each request, written by a thread of its own.

The loop hands over what a row is made of and goes on; it never waits for a disk. What the disk can't take in
time piles up to a bound, and beyond it rows are dropped and counted. A disk error loses nothing by itself:
the rows at hand are tried again until they are written or the journal is closed.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import threading
from collections import deque
from pathlib import Path
from typing import Any

import orjson

from narwhal.accounting.record import Settled
from narwhal.placement.place import Offer

_BATCH = 256  # rows for one write

_log = logging.getLogger("narwhal.journal")


class Journal:
    """Appends rows to a file."""

    def __init__(self, path: str | Path, *, backlog: int = 8192, retry_s: float = 1.0) -> None:
        """`backlog` is how many rows may wait to be written, `retry_s` the pause after a disk error."""
        self.written = 0  # rows
        self.dropped = 0  # rows
        self._file = _LineFile(Path(path))
        self._backlog = backlog
        self._retry_s = retry_s
        self._rows: deque[Settled | dict[str, Any]] = deque()
        self._reopen = False
        self._closing = False
        self._work = threading.Event()  # there is something to do
        self._urgent = threading.Event()  # and a pause after an error should end for it
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Rows handed over and not yet taken up."""
        return len(self._rows)

    @property
    def errors(self) -> int:
        """Failed tries to open or write the file."""
        return self._file.errors

    def write(self, row: Settled | dict[str, Any]) -> None:
        """Hand a row over, which must not be changed afterwards. Never blocks: a row too many is dropped."""
        if self._closing or len(self._rows) >= self._backlog:
            self.dropped += 1
            return
        self._rows.append(row)
        self._work.set()

    def reopen(self) -> None:
        """Go on in a new file under the same path, as after a rotation. Rows that wait may go to either."""
        self._reopen = True
        self._urgent.set()
        self._work.set()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits and close the file. Blocks, for `timeout_s` at the most."""
        self._closing = True
        self._urgent.set()
        self._work.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        lines: list[bytes] = []
        self._file.open()  # now, so that a bad path is known before there are rows for it
        while True:
            # The flags are lowered before anything is looked at: what comes later raises them again.
            self._work.clear()
            self._urgent.clear()
            closing = self._closing
            if self._reopen:
                self._reopen = False
                self._file.close()
                self._file.open()
            while len(lines) < _BATCH and self._rows:
                lines.append(_line(self._rows.popleft()))
            done = self._file.append(lines) if lines else 0
            self.written += done
            del lines[:done]
            if lines and not closing:
                self._urgent.wait(self._retry_s)
            elif lines:
                self.dropped += len(lines) + len(self._rows)
                break
            elif not self._rows:
                if closing:
                    break
                self._work.wait()
        self._file.close()


class _LineFile:
    """A file that lines are appended to. It is opened when needed, and again after an error."""

    def __init__(self, path: Path) -> None:
        self.errors = 0
        self._path = path
        self._file: io.FileIO | None = None
        self._troubled = False  # the last try failed, and that was logged

    def open(self) -> None:
        """Open the file, if it can be opened."""
        try:
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            self._failed(error)

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError as error:
                self._failed(error)

    def append(self, lines: list[bytes]) -> int:
        """Append lines; returns how many of them are in the file whole, which after an error may be fewer."""
        if self._file is None:
            self.open()
        if self._file is None:
            return 0
        data = memoryview(b"".join(lines))
        written = 0
        try:
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            self._failed(error)
            done, half = _whole(lines, written)
            if half:
                with contextlib.suppress(OSError):  # half a row would be in the way: it is written again
                    self._file.truncate(self._file.tell() - half)
            self.close()
            return done
        if self._troubled:
            self._troubled = False
            _log.warning("the journal %s can be written again", self._path)
        return len(lines)

    def _failed(self, error: OSError) -> None:
        self.errors += 1
        if not self._troubled:
            self._troubled = True
            _log.error(
                "the journal %s can't be written (%s): rows are kept and tried again, and dropped when there "
                "are too many; see serving.journal_path",
                self._path,
                error.strerror or error,
            )


def _whole(lines: list[bytes], written: int) -> tuple[int, int]:
    """How many lines the first `written` bytes hold whole, and how many bytes of one more."""
    for index, line in enumerate(lines):
        if written < len(line):
            return index, written
        written -= len(line)
    return len(lines), 0


def _line(row: Settled | dict[str, Any]) -> bytes:
    if isinstance(row, Settled):
        row = row.row()
    try:
        return orjson.dumps(row, default=_plain, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # half a surrogate pair in an engine's message, say; the slow encoder escapes it
        return json.dumps(row, default=_plain).encode() + b"\n"


def _plain(value: object) -> object:
    return value.rows() if isinstance(value, Offer) else str(value)
