"""`narwhal sim`: one simulated engine as a process of its own, until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import ssl
import sys

import uvloop

from narwhal.arguments import port
from narwhal.sim.engine import ROLES, SimEngine, SimOptions
from narwhal.sim.faults import DESCRIPTIONS, Fault, read_fault
from narwhal.sim.timing import Curve, Interval, Timing


def _fault(text: str) -> Fault:
    try:
        return read_fault(json.loads(text) if text.startswith("{") else text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    pace, figures = Timing(), SimOptions()
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=port, default=0, help="port to listen on (default: any free one)")
    parser.add_argument(
        "--role",
        choices=ROLES,
        default="both",
        help="which legs of split requests it serves (default: %(default)s)",
    )
    parser.add_argument("--model", default=figures.model, help="name to serve under (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed for requests without one, and for chance")
    parser.add_argument(
        "--max-model-len", type=int, default=figures.max_model_len, metavar="TOKENS", help="longest context"
    )
    parser.add_argument(
        "--max-sequences",
        type=int,
        default=figures.max_sequences,
        metavar="N",
        help="most that decode at once",
    )
    for term, unit in (("a", "token²"), ("b", "token"), ("c", "pass")):
        parser.add_argument(
            f"--prefill-{term}",
            type=float,
            default=getattr(pace.prefill, term),
            metavar="S",
            help=f"prefill seconds per {unit} (default: %(default)s)",
        )
    for name, field, unit in (
        ("interval", "base", "decode step"),
        ("interval-per-seq", "per_seq", "step and sequence"),
        ("interval-per-kv-token", "per_kv_token", "step and token of KV cache"),
    ):
        parser.add_argument(
            f"--{name}",
            type=float,
            default=getattr(pace.interval, field),
            metavar="S",
            help=f"seconds per {unit} (default: %(default)s)",
        )
    parser.add_argument(
        "--speed", type=float, default=1.0, help="divides every duration (default: %(default)s)"
    )
    parser.add_argument("--reasoning-field", choices=("reasoning", "reasoning_content"), default="reasoning")
    parser.add_argument("--prompt-tokens-details", action="store_true", help="report cached tokens in usage")
    parser.add_argument("--api-key", help="ask for this bearer token")
    parser.add_argument("--tls-cert", metavar="FILE", help="serve https with this certificate (PEM)")
    parser.add_argument("--tls-key", metavar="FILE", help="and this key")
    parser.add_argument(
        "--fault",
        action="append",
        type=_fault,
        default=[],
        metavar="NAME|JSON",
        help='a fault to begin with, as a name or as {"name": "die_after", "after": 3, ...}; repeatable',
    )
    parser.add_argument("--list-faults", action="store_true", help="say which faults there are, and end")


def run(args: argparse.Namespace) -> int:
    """Run the engine until SIGTERM or SIGINT; the exit status."""
    if args.list_faults:
        width = max(map(len, DESCRIPTIONS))
        for name, description in DESCRIPTIONS.items():
            print(f"{name:{width}}  {description}")
        return 0
    try:
        options = SimOptions(
            model=args.model,
            role=args.role,
            timing=Timing(
                Curve(args.prefill_a, args.prefill_b, args.prefill_c),
                Interval(args.interval, args.interval_per_seq, args.interval_per_kv_token),
                speed=args.speed,
            ),
            seed=args.seed,
            max_model_len=args.max_model_len,
            max_sequences=args.max_sequences,
            reasoning_field=args.reasoning_field,
            prompt_tokens_details=args.prompt_tokens_details,
            api_key=args.api_key,
            tls=_tls(args.tls_cert, args.tls_key),
        )
        uvloop.run(_serve(options, args.host, args.port, args.fault))
    except (_CannotStart, ValueError) as problem:
        print(f"narwhal sim: {problem}", file=sys.stderr)
        return 1
    return 0


class _CannotStart(Exception):
    """An option names what is not to be had; the message says which, and why."""


def _tls(cert: str | None, key: str | None) -> ssl.SSLContext | None:
    if cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:  # of ssl's errors, too, all are
        reason = error.strerror or str(error)
        raise _CannotStart(
            f"the certificate {cert} can't be used: {reason} (--tls-cert, --tls-key)"
        ) from None
    return context


async def _serve(options: SimOptions, host: str, on_port: int, faults: list[Fault]) -> None:
    engine = SimEngine(options)
    told_to_stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told_to_stop.set)
    try:
        await engine.start(host, on_port)
    except OSError as error:
        # By its number, for its words repeat the address. Errors of name look-ups have negative ones.
        code = error.errno or 0
        reason = os.strerror(code) if code > 0 else "the host's address is not known"
        raise _CannotStart(f"can't listen on {host} port {on_port}: {reason} (--host, --port)") from None
    engine.faults.set(*faults)
    # One line: it can be pasted below `engines:` in a fleet file, and it says that the engine is up. One
    # write, too, for several engines may share a pipe; an unbuffered print writes its line's end on its own.
    sys.stdout.write(f'- {{id: sim-{engine.port}, url: "{engine.url}", role: {options.role}}}\n')
    sys.stdout.flush()
    await told_to_stop.wait()
    await engine.stop()
