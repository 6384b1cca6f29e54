"""Is the time to first token the one that was projected? From the router's journal, by quantiles.

    narwhal profile --fleet fleet.yaml
    python -m bench.predicted journal.jsonl --fleet fleet.yaml
    python -m bench.predicted journal.jsonl

With `--fleet` it serves the fleet on a port of its own and puts a mixed load on it, 1 to 8 requests at once;
the engines must run. Without, it reads what any router has written. The error of a projection is its
distance from what was seen, as a share of what was seen; the status is 1 if that is more than 15 % at the
median or 40 % at the 90th percentile. Requests that took a second attempt, or came while nothing was known of
how long prompts take, have no projection to judge.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import orjson
import uvloop
import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from narwhal.config import ConfigError
from narwhal.config import load as load_fleet
from narwhal.harness.endpoint import COMPLETIONS, Access, Endpoint, read_url
from narwhal.harness.generator import Asking
from narwhal.harness.lengths import Lengths, read_lengths
from narwhal.harness.load import Load, Point
from narwhal.harness.prompts import MadeUp
from narwhal.harness.run import Runner

MOST = {0.5: 0.15, 0.9: 0.40}  # of the error, by quantile
AT_ONCE = (1, 2, 4, 8)
# Where the rows of the table are parted: prompt tokens, and others under way.
_LENGTHS, _OTHERS = (0, 100, 300, 800, 1500), (0, 1, 3, 6)
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.9, 0.99)


class Seen(NamedTuple):
    """One request that had a projection and a first token."""

    arrived: float  # seconds since 1970
    ended: float
    tokens: int
    projected_s: float
    ttft_s: float

    @property
    def error(self) -> float:
        """Of the projection, as a share."""
        return abs(self.projected_s - self.ttft_s) / self.ttft_s


def read(lines: Iterable[bytes]) -> tuple[list[Seen], int]:
    """What a journal has to judge, in the order of arrival; and how many of its rows have nothing."""
    seen, others = [], 0
    for row in map(orjson.loads, lines):
        if row["ttft_s"] and row["projected_ttft_s"] and len(row["attempts"]) == 1:
            arrived = row["received_at"]
            tokens = row["prompt_tokens"] or row["input_tokens"]
            one = Seen(arrived, arrived + row["ended_s"], tokens, row["projected_ttft_s"], row["ttft_s"])
            seen.append(one)
        else:
            others += 1
    return sorted(seen), others


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that this share does not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def groups(seen: Sequence[Seen]) -> dict[str, list[Seen]]:
    """Requests by prompt length, and by how many others were under way when they came."""
    found: dict[str, list[Seen]] = {"all": list(seen)}
    others = {one: sum(other.arrived < one.arrived < other.ended for other in seen) for one in seen}
    for what, edges, figure in (
        ("tokens", _LENGTHS, lambda one: one.tokens),
        ("others", _OTHERS, others.__getitem__),
    ):
        for least, most in pairwise((*edges, None)):
            label = f"{least:,} {what} or more" if most is None else f"{least:,} to {most - 1:,} {what}"
            label = label.replace("0 to 0", "no")
            members = [one for one in seen if least <= figure(one) and (most is None or figure(one) < most)]
            if members:
                found[label] = members
    return found


def show(console: Console, seen: Sequence[Seen], others: int) -> None:
    """The tables."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = ("", "requests", "TTFT p50", "p90", "seen/projected p10", "p50", "p90", "error p50", "p90")
    for heading in columns:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for label, members in groups(seen).items():
        ratios = [one.ttft_s / one.projected_s for one in members]
        table.add_row(
            label,
            f"{len(members):,}",
            *(f"{quantile((one.ttft_s for one in members), share):.3f} s" for share in (0.5, 0.9)),
            *(f"{quantile(ratios, share):.2f}" for share in (0.1, 0.5, 0.9)),
            *(f"{quantile((one.error for one in members), share):.1%}" for share in (0.5, 0.9)),
            end_section=label == "all",
        )
    console.print(table)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("quantile", *(f"{share:.0%}" for share in _QUANTILES)):
        table.add_column(heading, justify="right")
    for label, values in (
        ("projected, s", [one.projected_s for one in seen]),
        ("seen, s", [one.ttft_s for one in seen]),
        ("error", [one.error for one in seen]),
    ):
        table.add_row(label, *(f"{quantile(values, share):.3f}" for share in _QUANTILES))
    console.print(table)
    console.print(f"{others:,} rows have no projection, or no first token, to judge.")


def write_config(args: argparse.Namespace, path: Path) -> str:
    """The fleet file, with the journal and the profiles wanted, for the router. Returns the model."""
    content = yaml.safe_load(args.fleet.read_text())
    profiles = content.setdefault("profiles", {})
    if args.profiles is not None:
        profiles["path"] = str(args.profiles.absolute())
    elif "path" in profiles:
        profiles["path"] = str(args.fleet.absolute().parent / profiles["path"])
    content.setdefault("serving", {})["journal_path"] = str(args.journal.absolute())
    path.write_text(yaml.safe_dump(content))
    return str(content["model"])


async def measure(config: Path, model: str, args: argparse.Namespace) -> None:
    """Serve the fleet, and put the load on it."""
    command = [sys.executable, "-m", "narwhal", "serve", "--fleet", str(config), "--port", "0"]
    router = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert router.stdout is not None
        found = re.search(r"http://\S+", (await router.stdout.readline()).decode())
        if found is not None:
            await _put_on(found[0], model, args)
    finally:
        if router.returncode is None:
            router.terminate()
        await router.wait()


async def _put_on(url: str, model: str, args: argparse.Namespace) -> None:
    access = Access(read_url(url), headers=(("x-slo-ttft-ms", "600000"),))  # nobody is to be refused
    endpoint = Endpoint(access, timeout_s=10.0)
    asking = Asking(COMPLETIONS, model, extra={"ignore_eos": True})
    try:
        for clients in AT_ONCE:
            # Other prompts each time, or the engines would have them in their caches.
            prompts = MadeUp(chat=False, vocabulary=args.token_ids, seed=clients)
            load = Load(
                (Point(concurrency=clients),), prompts, args.input, args.output, rounds=1,
                duration_s=args.seconds, warmup_s=0.0, seed=clients,
            )  # fmt: skip
            await Runner(endpoint, load, asking, on_sample=lambda sample: None).carry_out()
    finally:
        await endpoint.close()


def _lengths(text: str) -> Lengths:
    try:
        return read_lengths(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or read, and print. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("journal", type=Path, metavar="JOURNAL", help="to read; with --fleet to write first")
    parser.add_argument("--fleet", type=Path, metavar="FILE", help="a fleet file, whose engines run")
    parser.add_argument("--profiles", type=Path, metavar="FILE", help="in place of the fleet file's")
    parser.add_argument("--seconds", type=float, default=20.0, help="of 1, 2, 4 and 8 at once (default: 20)")
    parser.add_argument("--input", type=_lengths, default=read_lengths("20-1500"), metavar="TOKENS")
    parser.add_argument("--output", type=_lengths, default=read_lengths("16-64"), metavar="TOKENS")
    parser.add_argument("--token-ids", type=int, metavar="VOCABULARY", help="prompts are token IDs below it")
    args = parser.parse_args(arguments)
    try:
        if args.fleet is not None:
            if args.journal.exists():
                parser.error(f"{args.journal} is there already")
            load_fleet(args.fleet)
            with tempfile.TemporaryDirectory() as folder:
                config = Path(folder, "fleet.yaml")
                uvloop.run(measure(config, write_config(args, config), args))
        with args.journal.open("rb") as lines:
            seen, others = read(lines)
    except (OSError, ConfigError) as error:
        print(f"predicted: {error}", file=sys.stderr)
        return 2
    console = Console()
    console.width = max(console.width, 120)
    show(console, seen, others)
    errors = [one.error for one in seen]
    short = not errors
    for share, most in MOST.items():
        found = quantile(errors, share)
        short |= found > most
        console.print(f"error, {share:.0%}: {found:.1%}, allowed {most:.0%}")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
