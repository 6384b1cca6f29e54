"""Does the router keep its word? Thousands of seconds of traffic in virtual time, as a table and a picture.

    python -m bench.goodput [--quick] [--plot goodput.png]

The router's own admission, placement and models run before modelled engines (`virtual_router`), at loads from
half to twice what the fleet can carry. Of each run it says how many of those admitted met their TTFT budget,
and how many of those refused would have missed it, or come within 5 % of it, had that one been let in: the
run is forked at the refusal to see. What the router is measured against stands in `WAYS`; the status is 1 if
it falls short. Beside it: what happens without prediction, and with the placements that others use.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from bench.loads import fleet, load
from bench.virtual_router import LeastBusy, Policy, RoundRobin, Setting, VirtualRouter
from narwhal.placement.place import Placement
from narwhal.profiling import plot

LOADS = (0.5, 0.8, 1.0, 1.5, 2.0)
ENOUGH = 20  # refusals to be judged before their share is held against the router
CLOSE = 0.95  # of the budget: a refusal was right if it would have come to this or more
# The fleet carries a load if this share of its requests meets both targets, all let in.
CARRIED = 0.97


class Required(NamedTuple):
    """What a way to run must reach."""

    met: float
    right: float
    kept: float  # goodput at twice the capacity, of that at capacity


class Way(NamedTuple):
    """One way to run the router."""

    name: str
    placement: type[Placement]
    predictive: bool
    profiles: float | None  # off by this factor; None: without
    learning: int = 0  # requests that are not judged
    required: Required | None = None


WAYS = (
    Way("predictive", Placement, True, 1.0, 0, Required(0.97, 0.90, 0.95)),
    Way("profiles 1.5 too slow", Placement, True, 1.5, 200, Required(0.97, 0.90, 0.95)),
    Way("profiles 1.5 too fast", Placement, True, 1 / 1.5, 200, Required(0.97, 0.90, 0.95)),
    Way("no profiles", Placement, True, None, 500, Required(0.95, 0.85, 0.90)),
    Way("admission: open", Placement, False, 1.0),
    Way("open, round robin", RoundRobin, False, 1.0),
    Way("open, least busy", LeastBusy, False, 1.0),
)


class Job(NamedTuple):
    """One run."""

    way: int
    bursts: bool
    load: float  # of the capacity
    rate: float
    seed: int
    seconds: float
    judged: int  # refusals to fork at, at most


@dataclass(slots=True)
class Figures:
    """What runs came to; they add up."""

    offered: int = 0
    admitted: int = 0
    met_ttft: int = 0
    met_both: int = 0
    refused: int = 0
    at_once: int = 0  # of those refused, on arrival
    judged: int = 0
    right: int = 0
    seconds: float = 0.0
    ttfts: list[float] = field(default_factory=list)

    def add(self, other: Figures) -> None:
        """Take in another run."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def met(self) -> float:
        """The share of the admitted that met the TTFT budget."""
        return self.met_ttft / max(1, self.admitted)

    @property
    def goodput(self) -> float:
        """Requests a second that met both targets."""
        return self.met_both / max(1e-9, self.seconds)

    def ttft(self, quantile: float) -> float:
        """Of the admitted."""
        ordered = sorted(self.ttfts)
        return ordered[int(quantile * (len(ordered) - 1))] if ordered else 0.0


def run(job: Job) -> Figures:
    """One run, judged from when the router has learned what it is to have learned."""
    way = WAYS[job.way]
    setting = Setting(fleet())
    policy = Policy(way.predictive, way.placement, way.profiles)
    requests = load(job.rate, job.seconds, job.seed, setting.noise, bursts=job.bursts)
    router = VirtualRouter(setting, policy, requests, job.seed)
    start = requests[way.learning].moment
    figures, due = Figures(seconds=job.seconds - start), start
    for refused in router.run(job.seconds):
        # Not all are judged: the first, and the next after a while.
        if job.judged and router.clock.now >= due:
            due = router.clock.now + job.seconds / job.judged
            figures.judged += 1
            figures.right += router.let_in(refused) >= CLOSE * setting.ttft_s
    # Those under way are seen to their ends, without anybody new.
    for _ in router.run(job.seconds + 60):
        pass
    for request in router.requests[way.learning :]:
        figures.offered += 1
        if request.refusal is not None:
            figures.refused += 1
            figures.at_once += request.refused_at == request.arrival.moment
        else:
            ttft_s = request.ttft_s if request.ttft_s is not None else float("inf")
            figures.admitted += 1
            figures.ttfts.append(ttft_s)
            figures.met_ttft += ttft_s <= setting.ttft_s
            figures.met_both += ttft_s <= setting.ttft_s and request.tpot_s <= setting.tpot_s
    return figures


def capacity(seconds: float, pool: ProcessPoolExecutor) -> float:
    """Requests a second that the fleet can carry within its targets: by halving, each time over ten seeds."""
    opened = next(number for number, way in enumerate(WAYS) if not way.predictive)
    low, high = 10.0, 200.0
    while high - low > 0.5:
        rate, total = (low + high) / 2, Figures()
        jobs = [Job(opened, False, 1.0, rate, 100 + seed, seconds, 0) for seed in range(10)]
        for figures in pool.map(run, jobs):
            total.add(figures)
        if total.met_both >= CARRIED * total.offered:
            low = rate
        else:
            high = rate
    return low


Results = dict[tuple[int, bool, float], Figures]


def shortfalls(results: Results) -> list[str]:
    """Where the router does not reach what is required of it."""
    found = []
    for (number, bursts, share), figures in results.items():
        name, required = WAYS[number].name, WAYS[number].required
        if required is None:
            continue
        where = f"{name}, {arrivals(bursts)}, load {share:g}"
        if figures.met < required.met:
            found.append(f"{where}: {figures.met:.1%} of the admitted met the budget, not {required.met:.0%}")
        if figures.judged >= ENOUGH and figures.right < required.right * figures.judged:
            right = figures.right / figures.judged
            found.append(f"{where}: {right:.1%} of the refused would have missed, not {required.right:.0%}")
        if share == 2.0 and figures.goodput < required.kept * results[number, bursts, 1.0].goodput:
            found.append(f"{where}: goodput falls below {required.kept:.0%} of that at capacity")
    return found


def arrivals(bursts: bool) -> str:
    """How requests come, in words."""
    return "on/off" if bursts else "Poisson"


def show(console: Console, results: Results) -> None:
    """The table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in (
        "", "load", "admitted", "met TTFT", "p50, p99", "goodput", "of refusals", "right", "on arrival"
    ):  # fmt: skip
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for (number, bursts, share), figures in results.items():
        refused, judged = figures.refused, figures.judged
        table.add_row(
            f"{WAYS[number].name}, {arrivals(bursts)}" if share == LOADS[0] else "",
            f"{share:g}",
            f"{figures.admitted / max(1, figures.offered):.1%}",
            f"{figures.met:.2%}",
            f"{figures.ttft(0.5):.2f}, {figures.ttft(0.99):.2f} s",
            f"{figures.goodput:.1f}/s",
            str(refused) if refused else "",
            f"{figures.right / judged:.1%} of {judged}" if judged else "",
            f"{figures.at_once / refused:.1%}" if refused else "",
            end_section=share == LOADS[-1],
        )
    console.print(table)


def draw(results: Results, rate: float, path: Path) -> None:
    """The picture. Needs matplotlib."""
    importlib.import_module("matplotlib").use("agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(2, 2, figsize=(13, 9), layout="constrained", sharex=True)
    for column, bursts in enumerate((False, True)):
        above, below = axes[0][column], axes[1][column]
        above.set(title=f"{arrivals(bursts)} arrivals", ylabel="goodput, requests a second")
        below.set(xlabel=f"load, of what the fleet can carry ({rate:.0f}/s)", ylim=(0, 1.03))
        below.set_ylabel("share of the admitted that met the TTFT budget")
        for number, way in enumerate(WAYS):
            shares = [share for n, b, share in results if (n, b) == (number, bursts)]
            cells = [results[number, bursts, share] for share in shares]
            style = "o-" if way.predictive else "s--"
            above.plot(shares, [cell.goodput for cell in cells], style, label=way.name, alpha=0.8)
            below.plot(shares, [cell.met for cell in cells], style, label=way.name, alpha=0.8)
        above.set_ylim(0, None)
        for axis in (above, below):
            axis.grid(visible=True, alpha=0.3)
    axes[0][0].legend()
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all of it. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="two seeds and half a minute each")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it (needs matplotlib)")
    args = parser.parse_args(arguments)
    if args.plot and not plot.is_possible():
        parser.error("--plot needs matplotlib")
    seeds, seconds, judged = (2, 30.0, 10) if args.quick else (10, 60.0, 25)
    console = Console()
    console.width = max(console.width, 132)
    began = time.monotonic()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rate = capacity(seconds, pool)
        console.print(f"The fleet carries {rate:.1f} requests a second: {CARRIED:.0%} meet both targets.")
        jobs = [
            Job(number, bursts, share, share * rate, seed, seconds, judged if way.predictive else 0)
            for number, way in enumerate(WAYS)
            for bursts in (False, True)
            for share in LOADS
            for seed in range(seeds)
        ]
        results = gather(jobs, pool.map(run, jobs))
    show(console, results)
    virtual = sum(job.seconds for job in jobs)
    console.print(f"{virtual:,.0f} virtual seconds took {time.monotonic() - began:,.0f} s.")
    if args.plot:
        draw(results, rate, args.plot)
    found = shortfalls(results)
    for line in found:
        console.print(line, style="red")
    return 1 if found else 0


def gather(jobs: Iterable[Job], runs: Iterable[Figures]) -> Results:
    """Add up the seeds."""
    results: Results = {}
    for job, figures in zip(jobs, runs, strict=True):
        results.setdefault((job.way, job.bursts, job.load), Figures()).add(figures)
    return results


if __name__ == "__main__":
    raise SystemExit(main())
