"""A recorded load: JSON Lines in the format of the public Mooncake traces.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}

`timestamp` is in milliseconds. `hash_ids`, which may be missing, name the prompt's blocks of 512 tokens: two
prompts that begin with the same IDs begin with the same text.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import orjson

BLOCK_TOKENS = 512
_LONGEST = 10_000_000


class TraceError(Exception):
    """A trace that can't be used; the message says which line and why."""


class Recorded(NamedTuple):
    """One request of a trace."""

    at_s: float  # since the first
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]


def load_trace(path: Path, *, speedup: float = 1.0) -> list[Recorded]:
    """A trace file's requests by time, `speedup` times as fast as recorded. Raises TraceError."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    try:
        return read_trace(lines, speedup=speedup)
    except TraceError as error:
        raise TraceError(f"{path}, {error}") from None


def read_trace(lines: Iterable[bytes], *, speedup: float = 1.0) -> list[Recorded]:
    """See load_trace; blank lines are skipped."""
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            rows.append(_row(line, f"line {number}"))
    if not rows:
        raise TraceError("line 1: there is no request in it")
    rows.sort(key=lambda row: row.at_s)
    begin = rows[0].at_s
    return [row._replace(at_s=(row.at_s - begin) / speedup) for row in rows]


def _row(line: bytes, where: str) -> Recorded:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise TraceError(f"{where}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise TraceError(f"{where}: not an object")
    hash_ids = row.get("hash_ids") or []
    if not isinstance(hash_ids, list) or not all(type(entry) is int for entry in hash_ids):
        raise TraceError(f"{where}: hash_ids is {hash_ids!r:.80}; allowed: a list of integers")
    at: Any = row.get("timestamp")
    if type(at) not in (int, float) or at < 0:
        raise TraceError(f"{where}: timestamp is {at!r:.80}; allowed: milliseconds, 0 or more")
    return Recorded(
        at / 1000, _length(row, "input_length", where), _length(row, "output_length", where), tuple(hash_ids)
    )


def _length(row: dict[str, Any], name: str, where: str) -> int:
    value = row.get(name)
    if type(value) is not int or not 0 <= value <= _LONGEST:
        raise TraceError(f"{where}: {name} is {value!r:.80}; allowed: an integer from 0 to {_LONGEST}")
    return max(1, value)
