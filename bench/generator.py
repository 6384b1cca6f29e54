"""What the load generator can do, and how true its figures are: `python -m bench.generator`.

Streams of a paced engine, in a process of its own. Its note of when each event was sent is set against the
generator's note of when it came: the difference is the generator's timing error plus the way through the
kernel, so it bounds the error from above. Then a simulated engine, whose every delay is known, and what the
generator makes of them.
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
LOADS = ((100, 0.05), (500, 0.05), (1000, 0.05))  # streams, and seconds between their events


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


PREFILL_S, INTERVAL_S, FIGURE_TOKENS = 0.05, 0.02, 51
KNOWN = {"ttft_s": PREFILL_S, "tpot_s": INTERVAL_S, "gap_s": INTERVAL_S,
         "e2e_s": PREFILL_S + (FIGURE_TOKENS - 1) * INTERVAL_S}  # fmt: skip


async def _known(duration_s: float) -> Run:
    """One client after the other's answer, so that no request waits for another."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "narwhal", "sim", "--prefill-a", "0", "--prefill-b", "0",
        "--prefill-c", str(PREFILL_S), "--interval", str(INTERVAL_S), "--interval-per-seq", "0",
        "--interval-per-kv-token", "0", stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    endpoint = None
    try:
        url = (await child.stdout.readline()).decode().split('"')[1]
        endpoint = Endpoint(Access(read_url(url)), timeout_s=10.0)
        load = Load(
            (Point(concurrency=1),), MadeUp(chat=False, vocabulary=None, seed=0), read_lengths("32"),
            read_lengths(str(FIGURE_TOKENS)), rounds=1, duration_s=duration_s, warmup_s=2.0,
        )  # fmt: skip
        asking = Asking(COMPLETIONS, "sim-model")
        return await Runner(endpoint, load, asking, on_sample=lambda sample: None).carry_out()
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
    Console().print(table, "")
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for column in ("figure", "known, ms", "p50", "off by", "mean", "off by"):
        table.add_column(column, justify="right")
    latency = uvloop.run(_known(args.seconds)).summary()["points"][0]["latency"]
    for name, known in KNOWN.items():
        cells = [name.removesuffix("_s").upper(), f"{known * 1000:g}"]
        for of in ("p50", "mean"):
            measured = latency[name][of]
            cells += [f"{measured * 1000:.2f}", f"{measured / known - 1:+.2%}"]
        table.add_row(*cells)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
