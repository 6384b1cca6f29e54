"""How the cost of an event and of a request grows: `python -m bench.growth`.

The router alone, before stand-in engines, as in `make bench-compare`. Events come at the same rate in every
row, so that what differs is what the row names. Memory is what the router's process has more, with all the
streams open, than before the first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import uvloop
from rich.console import Console

from bench.compare import Bench, Case, Failed, Router, measure, up

_RATE = 8000  # events a second
_TOKENS = 40


class Row(NamedTuple):
    """One figure of the table."""

    title: str
    streams: int = 500
    event_bytes: int = 200
    decoders: int = 1
    events: bool = True


ROWS = [
    *(Row(f"an event, {streams:,} streams", streams=streams) for streams in (50, 500, 5000)),
    *(Row(f"an event of {size:,} bytes", event_bytes=size) for size in (200, 2_000, 20_000)),
    *(
        Row(f"a request, {decoders:,} engines", streams=64, decoders=decoders, events=False)
        for decoders in (1, 10, 1000)
    ),
]


def _memory(router: Router) -> int:
    """Bytes of memory that the router's process has."""
    status = Path(f"/proc/{router.pids[0]}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


async def _row(router: Router, row: Row, rounds: int) -> tuple[float, int, int]:
    await up(router)
    before = _memory(router)
    tokens = _TOKENS if row.events else 1
    case = Case("", "event" if row.events else "request", row.streams, tokens, 200)
    requests = row.streams * (1 if row.streams > 2000 else 2) if row.events else 2000
    seen = [await measure(router, case, 0.0, requests) for _ in range(rounds)]
    grown = (_memory(router) - before) // row.streams if row.events else 0
    return statistics.median(one.cpu for one in seen), sum(one.failed for one in seen), grown


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.growth", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each row (default: 3)")
    rounds = parser.parse_args().rounds
    console = Console()
    console.print(f"{'':28}{'CPU, µs':>10}{'kB a stream':>14}{'failed':>9}")
    for row in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            interval_s = row.streams / _RATE if row.events else 0.02
            bench = Bench(
                Path(folder), interval_s=interval_s, event_bytes=row.event_bytes, decoders=row.decoders
            )
            try:
                cpu_s, failed, grown = uvloop.run(_row(bench.narwhal(), row, rounds))
            except Failed as reason:
                raise SystemExit(f"bench.growth: the router failed: {reason}") from None
            finally:
                bench.end()
        memory = f"{grown / 1000:.1f}" if row.streams > 2000 else ""
        console.print(f"{row.title:28}{cpu_s * 1e6:10.1f}{memory:>14}{failed or '':>9}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
