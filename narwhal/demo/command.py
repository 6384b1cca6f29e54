"""`narwhal demo`: one streamed answer, then a short load and its figures; or, with --serve, a router to try a
client on."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from narwhal.arguments import port, seconds
from narwhal.demo import load, report, snippets
from narwhal.demo.figures import figures
from narwhal.demo.load import Part, Planned
from narwhal.demo.stage import MODEL, Stage
from narwhal.harness.call import ask
from narwhal.harness.endpoint import CHAT, Access, Endpoint, EndpointError, read_url
from narwhal.harness.sample import Outcome, Sample
from narwhal.serving.server import CannotListen

QUESTION = "What becomes of this prompt?"
# What the simulated engines are told to answer; left to themselves, as under load, they make up words.
ANSWER = (
    "One engine read your prompt and handed its KV cache to another, which writes these words token by "
    "token. Narwhal chose both, checks every token's ID, and passes it on as it comes. (The engines are "
    "simulated.)"
)
_MAX_LOAD_S = 600.0
_ANSWER_TIMEOUT_S = 30.0
_SETTLE_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--serve", action="store_true", help="no load: keep the router up for your own client, until Ctrl-C"
    )
    parser.add_argument("--port", type=port, default=0, help="the router's port (default: any free one)")
    parser.add_argument(
        "--load-seconds",
        type=seconds(_MAX_LOAD_S),
        default=12.0,
        metavar="S",
        help="the load's length (default: 12)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo; the exit status."""
    try:
        return uvloop.run(_serve(args.port) if args.serve else _show(args.port, args.load_seconds))
    except CannotListen as error:
        print(f"narwhal demo: {error.reason} (--port)", file=sys.stderr)
    except EndpointError as error:
        print(f"narwhal demo: {error}", file=sys.stderr)
    return 1


async def _serve(on_port: int) -> int:
    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    async with Stage(on_port, ANSWER) as stage:
        url = stage.server.url
        print(f"{_fleet(stage)}\n\nFrom a shell:\n\n{snippets.curl(url, MODEL)}\n")
        print(f"From Python, with the openai package:\n\n{snippets.python(url, MODEL)}\n")
        print(f"Metrics: {url}/metrics  State: {url}/narwhal/state  Stop: Ctrl-C", flush=True)
        await asked.wait()
    return 0


def _fleet(stage: Stage) -> str:
    fleet = stage.fleet
    engines = f"{len(fleet.of('prefill'))} prefill and {len(fleet.of('decode'))} decode engines, simulated"
    return f"Narwhal serves the model {MODEL} on {stage.server.url} ({engines})."


async def _show(on_port: int, load_s: float) -> int:
    console = Console(highlight=False)
    async with Stage(on_port) as stage:
        endpoint = Endpoint(Access(read_url(stage.server.url)), timeout_s=_ANSWER_TIMEOUT_S)
        try:
            console.print(_fleet(stage))
            first = await _one_answer(console, endpoint)
            if first.outcome is not Outcome.SERVED:
                print(f"narwhal demo: the first answer failed: {first.detail}", file=sys.stderr)
                return 1
            console.print(_of_one(first, stage))
            result = await _load(console, endpoint, stage, load_s)
            state = await _settled(endpoint)
        finally:
            await endpoint.close()
    wrong = report.disagreements(result, first, state)
    for part in (
        report.latencies(result, stage.config),
        report.outcomes(result),
        *report.words(result, stage.config, state),
        *(wrong or [report.books(state)]),
        "To try your own client: narwhal demo --serve",
    ):
        console.print("", part, sep="\n", markup=False)
    return 1 if wrong or result.all.failed else 0


async def _one_answer(console: Console, endpoint: Endpoint) -> Sample:
    console.print(f"\nOne chat completion, streamed:\n\n[bold]> {QUESTION}[/bold]")

    def write(data: bytes) -> None:
        # Not by rich, which would fold each piece by itself.
        for choice in orjson.loads(data)["choices"]:
            sys.stdout.write(choice["delta"].get("content") or "")
        sys.stdout.flush()

    body = {
        "model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "sim": {"text": ANSWER},
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    answer = await ask(endpoint, CHAT, body, timeout_s=_ANSWER_TIMEOUT_S, on_data=write)
    sys.stdout.write("\n\n")
    return answer


def _of_one(answer: Sample, stage: Stage) -> str:
    engines = [stage.asked(role) for role in ("prefill", "decode")]
    return (
        f"Prefill on {engines[0]}, decode on {engines[1]}: the first token after "
        f"{(answer.ttft_s or 0) * 1000:.0f} ms, then {answer.output_tokens - 1} more, one every "
        f"{(answer.tpot_s or 0) * 1000:.1f} ms.\n"
    )


async def _load(console: Console, endpoint: Endpoint, stage: Stage, load_s: float) -> report.Load:
    planned = load.plan(load_s)
    slo = stage.config.slo
    began = time.monotonic()
    with _progress(console, planned, load_s) as progress:
        sent = await load.run(endpoint, MODEL, slo, planned, progress)
    took = time.monotonic() - began
    by_part = {part: figures(one.sample for one in sent if one.planned.part is part) for part in Part}
    samples = [one.sample for one in sent]
    return report.Load(samples, by_part, figures(samples), took)


@contextmanager
def _progress(console: Console, planned: list[Planned], load_s: float) -> Iterator[Any]:
    """Shows how far a load is: yields what is to be called with each sample."""
    what = f"Load: {len(planned)} requests in {load_s:g} s, {load.BURST_REQUESTS} of them at once."
    console.print(what)
    columns = (
        BarColumn(),
        TextColumn("{task.completed} of {task.total} answered, {task.fields[refused]} refused"),
    )
    shown = console.is_terminal and not console.is_dumb_terminal
    with Progress(*columns, console=console, disable=not shown, transient=True) as progress:
        task = progress.add_task("", total=len(planned), refused=0)
        refused = 0

        def on_sample(sample: Sample) -> None:
            nonlocal refused
            refused += sample.outcome is Outcome.REFUSED
            progress.update(task, advance=1, refused=refused)

        yield on_sample


async def _settled(endpoint: Endpoint) -> dict[str, Any]:
    """The router's state once its last request is in the books."""
    async with asyncio.timeout(_SETTLE_S):
        while True:
            state: dict[str, Any] = await endpoint.get("/narwhal/state")
            if state["requests"]["in_flight"] == 0:
                return state
            await asyncio.sleep(0.01)
