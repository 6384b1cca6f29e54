"""`narwhal bench URL`: put a load on an endpoint and say what its clients saw."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import orjson
import uvloop
from rich.console import Console

from narwhal.arguments import seconds
from narwhal.config import EngineUrl
from narwhal.harness import page, results, tables
from narwhal.harness.arrivals import Pattern
from narwhal.harness.compare import compare
from narwhal.harness.endpoint import CHAT, COMPLETIONS, Access, Endpoint, EndpointError, read_url
from narwhal.harness.generator import Asking
from narwhal.harness.lengths import FORMS, read_lengths
from narwhal.harness.live import Live
from narwhal.harness.load import Load, Point
from narwhal.harness.prompts import MadeUp, PromptsError, load_prompts
from narwhal.harness.results import ResultsError
from narwhal.harness.run import Run, Runner
from narwhal.harness.sample import Targets
from narwhal.harness.trace import TraceError, load_trace

COMPARE = "compare"
_LONGEST_S = 86400.0
_CONNECT_S = 10.0
_Value = TypeVar("_Value")


class UsageError(Exception):
    """Arguments that don't go together; the message says which."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "url",
        type=_argument(_url_or_compare),
        metavar="URL | compare",
        help="base URL of any OpenAI-compatible API; or `compare`, with two results",
    )
    parser.add_argument("results", type=Path, nargs="*", metavar="A B", help="compare: folders of --out")
    load = parser.add_argument_group("load", "one of these; default: --concurrency 8")
    which = load.add_mutually_exclusive_group()
    which.add_argument(
        "--concurrency", type=_list(_count), metavar="N[,N...]", help="closed loop: so many clients"
    )
    which.add_argument(
        "--rate",
        "--rates",
        dest="rates",
        type=_list(_positive),
        metavar="R[,R...]",
        help="open loop: requests per second; several are a sweep",
    )
    which.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="open loop: JSON Lines with timestamp, input_length, output_length, hash_ids",
    )
    load.add_argument(
        "--speedup", type=_positive, default=1.0, metavar="X", help="play the trace X times as fast"
    )
    load.add_argument(
        "--arrivals",
        choices=tuple(Pattern),
        default=Pattern.POISSON.value,
        help="how the open loop's requests are spaced (default: %(default)s)",
    )
    how_long = load.add_mutually_exclusive_group()
    how_long.add_argument(
        "--duration", type=seconds(_LONGEST_S), metavar="S", help="length of a round (default: 20)"
    )
    how_long.add_argument("--requests", type=_count, metavar="N", help="requests of a round, instead")
    load.add_argument(
        "--rounds",
        type=_count,
        metavar="N",
        help="rounds of each load; confidence intervals need two or more (default: 3, of a trace 1)",
    )
    load.add_argument(
        "--warmup",
        type=_not_negative,
        default=2.0,
        metavar="S",
        help="before each round, under the same load (default: 2)",
    )
    load.add_argument(
        "--ramp",
        type=_not_negative,
        default=0.0,
        metavar="S",
        help="let the load grow over S seconds of warm-up",
    )
    load.add_argument(
        "--seed", type=int, default=0, help="the same seed makes the same requests (default: 0)"
    )
    load.add_argument(
        "--connections",
        type=_count,
        metavar="N",
        help="at most so many at once; requests wait for one (default: no limit)",
    )

    asked = parser.add_argument_group("requests")
    asked.add_argument("--model", help="default: the first that the endpoint lists")
    asked.add_argument("--api", choices=("chat", "completions"), default="chat", help="default: %(default)s")
    asked.add_argument("--no-stream", action="store_true", help="ask for whole replies")
    asked.add_argument(
        "--input",
        type=_argument(read_lengths),
        default="512",
        metavar="TOKENS",
        help=f"a prompt's length: {FORMS} (default: 512)",
    )
    asked.add_argument(
        "--output",
        type=_argument(read_lengths),
        default="128",
        metavar="TOKENS",
        help="max_tokens, likewise (default: 128)",
    )
    asked.add_argument(
        "--token-ids",
        type=_count,
        metavar="VOCABULARY",
        help="completions: prompts are random token IDs below VOCABULARY instead of text",
    )
    asked.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="a prompt a line: text, or an object with prompt or messages, and max_tokens",
    )
    asked.add_argument(
        "--body",
        type=_argument(_members),
        default={},
        metavar="JSON",
        help='further members of each body: \'{"ignore_eos": true, "return_token_ids": true}\'',
    )
    asked.add_argument("--header", type=_argument(_header), action="append", default=[], metavar="NAME:VALUE")
    asked.add_argument("--api-key-env", metavar="NAME", help="environment variable with the bearer token")
    asked.add_argument("--ca-file", type=Path, metavar="FILE", help="for https: trust these CAs (PEM)")
    asked.add_argument(
        "--timeout",
        type=seconds(_LONGEST_S),
        default=600.0,
        metavar="S",
        help="of a request, from when it was due (default: 600)",
    )
    asked.add_argument(
        "--honour-retry-after",
        action="store_true",
        help="send a refused request again after the time its Retry-After says",
    )
    asked.add_argument(
        "--retries", type=_count, default=10, metavar="N", help="at most so often (default: 10)"
    )

    targets = parser.add_argument_group("targets")
    targets.add_argument(
        "--slo-ttft", type=seconds(_LONGEST_S), metavar="S", help="a good request's longest TTFT"
    )
    targets.add_argument("--slo-tpot", type=seconds(_LONGEST_S), metavar="S", help="and TPOT")
    targets.add_argument(
        "--send-slo", action="store_true", help="tell the endpoint: headers x-slo-ttft-ms and x-slo-tpot-ms"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"write {results.ROWS}, {results.SUMMARY} and {results.REPORT} there",
    )


def run(args: argparse.Namespace) -> int:
    """Run it; the exit status: 0 measured, 1 could not, 2 wrong arguments, 130 ended by Ctrl-C."""
    if args.url == COMPARE or args.results:
        if args.url != COMPARE or len(args.results) != 2:
            print("narwhal bench: give one URL, or: narwhal bench compare A B", file=sys.stderr)
            return 2
        return compare(args.results[0], args.results[1], Console(highlight=False))
    out, shown = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        access, load, asking = _read(args)
        if args.out is not None:
            results.prepare(args.out)
    except (UsageError, TraceError, PromptsError, ResultsError) as error:
        print(f"narwhal bench: {error}", file=sys.stderr)
        return 2
    try:
        measured = uvloop.run(_measure(access, load, asking, args.model, shown))
        summary = measured.summary()
        for part in tables.closing(summary):
            out.print(part, "")
        if args.out is not None:
            results.write(args.out, measured, summary, page.of_run(measured, summary))
            out.print(
                f"Written to {args.out}: {results.ROWS}, {results.SUMMARY}, {results.REPORT}", markup=False
            )
    except (EndpointError, ResultsError) as error:
        print(f"narwhal bench: {error}", file=sys.stderr)
        return 1
    return 130 if measured.interrupted else 0


async def _measure(access: Access, load: Load, asking: Asking, model: str | None, shown: Console) -> Run:
    endpoint = Endpoint(access, timeout_s=_CONNECT_S)
    loop = asyncio.get_running_loop()
    try:
        _raise_file_limit()
        if not model:
            asking = replace(asking, model=await endpoint.first_model())
        with Live(shown, load) as live:
            runner = Runner(endpoint, load, asking, on_sample=live.take)

            def interrupt() -> None:
                loop.remove_signal_handler(signal.SIGINT)  # a second one ends the process
                runner.stop()

            loop.add_signal_handler(signal.SIGINT, interrupt)
            live.show(runner)
            return await runner.carry_out()
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        await endpoint.close()


def _raise_file_limit() -> None:
    """Each stream is a descriptor, and the soft limit is often only 1024."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _read(args: argparse.Namespace) -> tuple[Access, Load, Asking]:
    """Raises UsageError, TraceError, PromptsError."""
    chat = args.api == "chat"
    if args.token_ids is not None and (chat or args.prompts is not None):
        raise UsageError("--token-ids needs --api completions, and no --prompts")
    if args.token_ids is not None and args.token_ids < 2:
        raise UsageError("--token-ids: a vocabulary has 2 tokens or more")
    if args.send_slo and args.slo_ttft is None and args.slo_tpot is None:
        raise UsageError("--send-slo needs --slo-ttft or --slo-tpot")
    api_key = None
    if args.api_key_env is not None:
        api_key = os.environ.get(args.api_key_env)
        if not api_key:
            raise UsageError(f"--api-key-env: the environment variable {args.api_key_env} is not set")
    headers = list(args.header)
    for name, value in (("ttft", args.slo_ttft), ("tpot", args.slo_tpot)):
        if args.send_slo and value is not None:
            headers.append((f"x-slo-{name}-ms", f"{value * 1000:g}"))
    asking = Asking(
        path=CHAT if chat else COMPLETIONS,
        model=args.model or "",
        stream=not args.no_stream,
        extra=args.body,
        timeout_s=args.timeout,
        retries=args.retries if args.honour_retry_after else 0,
        connections=args.connections,
        run_id=f"bench-{secrets.token_hex(4)}",
        targets=Targets(args.slo_ttft, args.slo_tpot),
    )
    return Access(args.url, api_key, args.ca_file, tuple(headers)), _load(args, chat), asking


def _load(args: argparse.Namespace, chat: bool) -> Load:
    if args.prompts is not None:
        prompts: Any = load_prompts(args.prompts, chat=chat)
    else:
        prompts = MadeUp(chat=chat, vocabulary=args.token_ids, seed=args.seed)
    trace = load_trace(args.trace, speedup=args.speedup) if args.trace is not None else []
    if trace:
        points: Sequence[Point] = [Point()]
    elif args.rates:
        points = [Point(rate=rate) for rate in args.rates]
    else:
        points = [Point(concurrency=clients) for clients in args.concurrency or [8]]
    limited = args.duration is not None or args.requests is not None
    return Load(
        points=tuple(points),
        prompts=prompts,
        input_lengths=args.input,
        output_lengths=args.output,
        pattern=Pattern(args.arrivals),
        rounds=args.rounds or (1 if trace else 3),
        duration_s=args.duration if limited or trace else 20.0,
        requests=args.requests,
        warmup_s=args.warmup,
        ramp_s=args.ramp,
        seed=args.seed,
        trace=tuple(trace),
    )


# Readers of single arguments.


def _url_or_compare(text: str) -> EngineUrl | str:
    return COMPARE if text == COMPARE else read_url(text)


def _argument(read: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """A reader whose ValueErrors argparse shows as they are."""

    def checked(text: str) -> _Value:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


def _list(read: Callable[[str], _Value]) -> Callable[[str], list[_Value]]:
    return lambda text: [read(part) for part in text.split(",")]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:8]) > 0 and len(text) <= 7):
        raise argparse.ArgumentTypeError(f"{text!r} is no such number; allowed: an integer from 1 to 9999999")
    return int(text)


def _number(text: str, least: str, fits: Callable[[float], bool]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (fits(value) and value <= 1e6):
        raise argparse.ArgumentTypeError(f"{text!r} is no such number; allowed: {least}, at most 1000000")
    return value


def _positive(text: str) -> float:
    return _number(text, "more than 0", lambda value: value > 0)


def _not_negative(text: str) -> float:
    return _number(text, "0 or more", lambda value: value >= 0)


def _members(text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{text!r} is not a JSON object")
    return value


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not text.isprintable() or not text.isascii():
        raise ValueError(f"{text!r} is no header; allowed: NAME:VALUE, in ASCII")
    return name.strip(), value.strip()
