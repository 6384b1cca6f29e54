"""How an input is cut into reads, and what those do with it that take no cuts."""

from __future__ import annotations

from array import array
from random import Random
from zlib import crc32

from tests.fast.splits import pieces_at

BYTEWISE = 64


def dice(data: bytes) -> Random:
    """Chance that follows from the input."""
    return Random(crc32(data))


def cuts(data: bytes) -> list[list[bytes]]:
    """The input whole, in a few pieces, and a byte at a time, or if it is long, a part of it so."""
    random = dice(data)
    places = [random.randrange(len(data) + 1) for _ in range(random.randrange(1, 6))]
    start = random.randrange(len(data) - BYTEWISE) if len(data) > BYTEWISE else 0
    single = [start + at for at in range(min(BYTEWISE, len(data)))]
    return [[data], pieces_at(data, places), pieces_at(data, single)]


def exactly(data: bytes) -> memoryview:
    """The input in a buffer with nothing behind it: bytes end in a NUL that a reader may run into unseen."""
    return memoryview(array("B", data))
