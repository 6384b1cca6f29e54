"""One function against the obvious Python for the same result."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any


def measure(
    benchmark: Any,
    ours: Callable[[], object],
    obvious: Callable[[], object],
    *,
    items: int,
    size: int,
) -> None:
    """Benchmark `ours`, which handles `items` things in `size` bytes, and note how `obvious` compares."""
    benchmark(ours)
    seconds = benchmark.stats.stats.min
    obvious_s = min(timeit.repeat(obvious, number=1, repeat=3))
    source = memoryview(bytearray(size))
    copy_s = min(timeit.repeat(lambda: bytes(source), number=1, repeat=20))
    benchmark.extra_info |= {
        "ns_per_item": round(seconds / items * 1e9),
        "megabytes_per_s": round(size / seconds / 1e6),
        "times_as_fast_as_python": round(obvious_s / seconds, 1),
        "times_a_copy": round(seconds / copy_s, 1),
    }
