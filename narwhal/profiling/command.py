"""The command `narwhal profile`: measure, write the file, print the fits, draw them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from narwhal.config import load

_DEFAULT_PATH = "profiles.json"
_FAILED, _USAGE = 1, 2  # exit statuses: as argparse has it for wrong arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options, `--fleet` excepted."""
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ENGINE",
        help="measure this engine only, and keep what the file has of others; repeatable",
    )
    parser.add_argument("--quick", action="store_true", help="fewer lengths and batches, fewer repeats")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=f"write here (default: profiles.path of the fleet file, else {_DEFAULT_PATH})",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw points and curves (.png, .svg, .pdf)")


def run(args: argparse.Namespace) -> int:
    """Measure; the exit status."""
    # Here, since every other command would load them, too.
    import uvloop
    from rich.console import Console

    from narwhal.profiles import store
    from narwhal.profiling import plot, report
    from narwhal.profiling.display import Display
    from narwhal.profiling.measure import measure
    from narwhal.profiling.probe import MeasurementError
    from narwhal.profiling.sweep import FULL, QUICK

    config = load(args.fleet)
    known = [engine.id for engine in config.engines]
    for name in args.only:
        if name not in known:
            return _fail(f"--only {name}: the fleet has no such engine; it has {', '.join(known)}", _USAGE)
    if args.plot is not None and not plot.is_possible():
        return _fail('--plot needs matplotlib: pip install "narwhal[plot]"', _USAGE)
    path: Path = args.out or Path(config.profiles.path or _DEFAULT_PATH)
    profiles: dict[str, store.EngineProfile] = {}
    try:
        if path.exists():
            profiles = store.read(path)
        store.check_folder(path)
    except store.ProfileError as error:
        return _fail(f"{error}\nWrite elsewhere with --out, or remove the file.")
    console = Console(stderr=True)
    measured: dict[str, store.EngineProfile] = {}

    def done(name: str, profile: store.EngineProfile) -> None:
        measured[name] = profiles[name] = profile
        store.write(path, profiles)
        console.print(f"{name}: measured")

    try:
        with Display(console) as display:
            uvloop.run(measure(config, QUICK if args.quick else FULL, display, done, args.only))
    except (MeasurementError, store.ProfileError) as error:
        return _fail(str(error))
    for table in report.tables(measured):
        Console().print(table, "")
    print(f"{report.LEGEND}\nWritten to {path}.")
    if config.profiles.path is None or Path(config.profiles.path) != path.absolute():
        print(f"Its place in the fleet file: profiles: {{path: {path}}}")
    if args.plot is not None:
        try:
            plot.draw(measured, args.plot)
        except (OSError, ValueError) as error:
            return _fail(f"{args.plot} can't be drawn: {error}")
        print(f"Drawn in {args.plot}.")
    return 0


def _fail(text: str, status: int = _FAILED) -> int:
    print(f"narwhal profile: {text}", file=sys.stderr)
    return status
