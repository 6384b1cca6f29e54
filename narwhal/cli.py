"""The command `narwhal`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from narwhal import __version__
from narwhal.arguments import port
from narwhal.config import ConfigError, FleetConfig, load
from narwhal.logs import LEVELS, set_up_logging


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code: 0 done, 1 failed, 2 wrong arguments or fleet file."""
    parser = _parser()
    args = parser.parse_args(argv)
    if "run" not in args:
        parser.print_help(sys.stderr)
        return 2
    try:
        code: int = args.run(args)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="narwhal",
        description="A router for LLM engines that split each request into prefill and decode.",
    )
    parser.add_argument("--version", action="version", version=f"narwhal {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _serve_command(commands)
    _profile_command(commands)
    _check_command(commands)
    _operator_commands(commands)
    _demo_command(commands)
    _bench_command(commands)
    _report_command(commands)
    _sim_command(commands)
    _outcomes_command(commands)
    return parser


_Commands = argparse._SubParsersAction  # the type of what add_subparsers returns; argparse has no public name


def _fleet_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fleet", type=Path, required=True, metavar="FILE", help="the fleet file (YAML)")


def _serve_command(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("serve", help="run the router", description="Run the router.")
    _fleet_argument(parser)
    parser.add_argument("--host", help="listen here instead of serving.host")
    parser.add_argument(
        "--port", type=port, help="listen on this port instead of serving.port; 0: any free one"
    )
    parser.add_argument("--log-level", choices=LEVELS, default="info", help="default: %(default)s")
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="default: %(default)s")
    parser.set_defaults(run=_serve)


def _serve(args: argparse.Namespace) -> int:
    from narwhal._fast.loop import run as run_in_loop
    from narwhal.profiles.store import ProfileError
    from narwhal.serving.server import CannotListen, Server, run

    def read() -> FleetConfig:
        config = load(args.fleet)
        serving = config.serving
        if args.host is not None:
            serving = replace(serving, host=args.host)
        if args.port is not None:
            serving = replace(serving, port=args.port)
        return replace(config, serving=serving)

    config = read()
    set_up_logging(args.log_level, args.log_format)

    def announce(server: Server) -> None:
        print(f"narwhal serves {config.model} on {server.url} ({_fleet_in_words(config)})", flush=True)

    try:
        return run_in_loop(run(config, announce, read, str(args.fleet)))
    except (CannotListen, ProfileError) as error:
        print(f"narwhal: {error}", file=sys.stderr)
        return 1


def _fleet_in_words(config: FleetConfig) -> str:
    counts: dict[str, int] = {}
    for engine in config.engines:
        counts[engine.role.value] = counts.get(engine.role.value, 0) + 1
    return ", ".join(f"{count} {role}" for role, count in counts.items())


def _profile_command(commands: _Commands[argparse.ArgumentParser]) -> None:
    from narwhal.profiling import command

    parser = commands.add_parser(
        "profile",
        help="measure what engines' work costs",
        description="Measure prefill, handoff and decode on the live engines, which must be idle.",
    )
    _fleet_argument(parser)
    command.add_arguments(parser)
    parser.set_defaults(run=command.run)


def _check_command(commands: _Commands[argparse.ArgumentParser]) -> None:
    from narwhal.checking import command

    parser = commands.add_parser(
        "check",
        help="check a fleet file and the engines in it",
        description="Read a fleet file, report every problem in it, then ask each engine whether it fits.",
    )
    command.add_arguments(parser)
    parser.set_defaults(run=command.run)


def _operator_commands(commands: _Commands[argparse.ArgumentParser]) -> None:
    from narwhal.operating import command

    for name, run, text in (
        ("engines", command.engines, "show where the engines of a running router stand"),
        ("drain", command.drain, "have a running router send nothing new to some engines"),
        ("readmit", command.readmit, "have a running router take drained engines back"),
    ):
        parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.add_arguments(parser, chooses=name != "engines")
        if name == "drain":
            command.add_drain_arguments(parser)
        parser.set_defaults(run=run)


def _demo_command(commands: _Commands[argparse.ArgumentParser]) -> None:
    from narwhal.demo import command

    parser = commands.add_parser(
        "demo",
        help="show the router at work on simulated engines",
        description="Start simulated engines and the router in this process, stream one answer, then put a "
        "short load on them and print its figures.",
    )
    command.add_arguments(parser)
    parser.set_defaults(run=command.run)


def _bench_command(commands: _Commands[argparse.ArgumentParser]) -> None:
    from narwhal.harness import command

    parser = commands.add_parser(
        "bench",
        help="put a load on an endpoint and measure what its clients see",
        description="Put a load on any OpenAI-compatible endpoint and measure what its clients see: "
        "latencies, goodput, refusals, failures. Or compare two results.",
    )
    command.add_arguments(parser)
    parser.set_defaults(run=command.run)


def _report_command(commands: _Commands[argparse.ArgumentParser]) -> None:
    from narwhal.harness import journal

    parser = commands.add_parser(
        "report",
        help="draw a router's journal",
        description="Write an HTML page with the latencies, refusals and failures in a router's journal.",
    )
    journal.add_arguments(parser)
    parser.set_defaults(run=journal.run)


def _sim_command(commands: _Commands[argparse.ArgumentParser]) -> None:
    from narwhal.sim import command

    parser = commands.add_parser(
        "sim",
        help="run one simulated engine",
        description="Run one simulated engine until it is told to stop.",
    )
    command.add_arguments(parser)
    parser.set_defaults(run=command.run)


def _outcomes_command(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "outcomes",
        help="print the table of outcomes",
        description="Print every way a request can end: status, error type and code, counter, Retry-After.",
    )
    parser.add_argument("--markdown", action="store_true", help="as the documentation has it")
    parser.set_defaults(run=_outcomes)


def _outcomes(args: argparse.Namespace) -> int:
    from rich.console import Console

    from narwhal.accounting import outcome_table

    if args.markdown:
        print(outcome_table.markdown(), end="")
    else:
        Console().print(outcome_table.terminal())
    return 0


if __name__ == "__main__":
    sys.exit(main())
