"""`narwhal check`."""

from __future__ import annotations

import argparse
from pathlib import Path

import uvloop
from rich.console import Console

from narwhal.arguments import seconds
from narwhal.checking import keys, report
from narwhal.checking.visit import visit_all
from narwhal.config import ConfigError, FleetConfig, Problem, load
from narwhal.profiles.load import load_models
from narwhal.profiles.store import ProfileError

_MAX_TIMEOUT_S = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--fleet", type=Path, metavar="FILE", help="the fleet file (YAML) to check")
    what.add_argument("--keys", action="store_true", help="print every key of the fleet file instead")
    parser.add_argument("--markdown", action="store_true", help="with --keys: as the documentation has it")
    parser.add_argument(
        "--timeout",
        type=seconds(_MAX_TIMEOUT_S),
        default=10.0,
        metavar="S",
        help="the longest that an engine may take to answer (default: 10)",
    )


def run(args: argparse.Namespace) -> int:
    """Check, or print the keys; the exit status. Raises ConfigError for a file that is wrong."""
    if args.keys:
        if args.markdown:
            print(keys.markdown(), end="")
        else:
            Console(highlight=False).print(*keys.terminal(), sep="\n", markup=False)
        return 0
    return _check(args.fleet, args.timeout)


def _check(path: Path, timeout_s: float) -> int:
    config = load(path)
    remarks = _read_profiles(config, path)
    console = Console(highlight=False)
    console.print(f"{path}: no problem in the file. Its engines:\n", markup=False)
    visits = uvloop.run(visit_all(config, timeout_s))
    console.print(report.table(visits))
    lines = [*report.findings(visits), *report.sentences(remarks)]
    usable = sum(visit.usable for visit in visits)
    if usable and (unknown := report.unknown(config)) is not None:
        lines.append(unknown)
    lines.append(f"{usable} of {len(visits)} engines usable for {config.model}.")
    for line in lines:
        console.print("", line, sep="\n", markup=False)
    return 0 if usable == len(visits) else 1


def _read_profiles(config: FleetConfig, source: Path) -> list[str]:
    """Read the profile file as a router would that starts; what it would say of it. Raises ConfigError."""
    path = config.profiles.path
    try:
        _, remarks = load_models(
            [engine.id for engine in config.engines], config.model, Path(path) if path else None
        )
    except ProfileError as error:
        raise ConfigError(str(source), [Problem("profiles.path", 0, str(error), "")]) from None
    return remarks
