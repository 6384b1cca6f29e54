"""What the load generator can do, and how true its clock is: `python -m bench.generator`.

Streams of a paced engine, in a process of its own. Its note of when each
event was sent is set against the generator's note of when it came: the difference is the generator's timing
error plus the way through the kernel, so it bounds the error from above.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from itertools import accumulate

import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from narwhal.harness.endpoint import COMPLETIONS, Access, Endpoint, read_url
from narwhal.harness.generator import Asking
from narwhal.harness.lengths import read_lengths
from narwhal.harness.load import Load, Point
from narwhal.harness.measures import percentile
from narwhal.harness.prompts import MadeUp
from narwhal.harness.run import Run, Runner

TOKENS = 60
LOADS = ((100, 0.05), (500, 0.05), (1000, 0.1), (1000, 0.05))  # streams, and seconds between their events


async def _one(streams: int, interval_s: float, duration_s: float) -> tuple[Run, list[float], list[float]]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.paced_engine", str(interval_s), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    endpoint = None
    try:
        endpoint = Endpoint(
            Access(read_url((await child.stdout.readline()).decode().strip())), timeout_s=10.0
        )
        load = Load(
            (Point(concurrency=streams),), MadeUp(chat=False, vocabulary=None, seed=0), read_lengths("32"),
            read_lengths(str(TOKENS)), rounds=1, duration_s=duration_s, warmup_s=2.0, ramp_s=2.0,
        )  # fmt: skip
        asking = Asking(COMPLETIONS, "paced", run_id="x")
        run = await Runner(endpoint, load, asking, on_sample=lambda sample: None).carry_out()
        errors, tpots = [], []
        for sample in run.samples:
            sent = await endpoint.get(f"/sent/x-{sample.number}")
            if sample.first_s is None or len(sent) != len(sample.gaps) + 1 or not sample.measured:
                continue
            came = accumulate(sample.gaps, initial=sample.first_s + run.epoch)
            errors += [at - of for at, of in zip(came, sent, strict=True)]
            tpots.append(((sample.tpot_s or 0.0) * (len(sent) - 1)) / (sent[-1] - sent[0]) - 1)
        return run, errors, tpots
    finally:
        if endpoint is not None:
            await endpoint.close()
        child.kill()
        await child.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load (default: 8)")
    args = parser.parse_args()
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for column in (
        "streams",
        "events/s",
        "µs of CPU per event",
        "core",
        "late p50, ms",
        "p99",
        "p99.9",
        "TPOT off by",
    ):
        table.add_column(column, justify="right")
    for streams, interval_s in LOADS:
        run, errors, tpots = uvloop.run(_one(streams, interval_s, args.seconds))
        point = run.summary()["points"][0]
        own = run.rounds[0].own
        events = sum(len(sample.gaps) + 1 for sample in run.samples)
        errors.sort()
        table.add_row(
            f"{streams:,}",
            f"{point['rates']['output_tokens_per_s']['value']:,.0f}",
            f"{own.cpu_s / events * 1e6:.1f}",
            f"{own.cpu_share:.0%}",
            *(f"{percentile(errors, percent) * 1000:.2f}" for percent in (50, 99, 99.9)),
            f"{max(map(abs, tpots)):.2%}",
        )
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
