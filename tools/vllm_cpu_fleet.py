#!/usr/bin/env python3
"""Runs vLLM engines on this machine's CPU, with a tiny random model and a real NIXL KV transfer.

    tools/vllm_cpu_fleet.py up                          one prefill and one decode engine
    narwhal serve --fleet ~/.cache/narwhal/fleet/fleet.yaml
    tools/vllm_cpu_fleet.py down

The first `up` makes vLLM's own environment in a cache folder (about 100 s, 2 GB). Later ones take about 35 s.
Each engine wants about 3 GB of memory. Needs nothing but Python's standard library.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it runs as a plain script too

from tools.vllm_cpu.environment import SetupError, cache_folder
from tools.vllm_cpu.fleet import START_TIMEOUT_S, Fleet, FleetError


def say(line: str) -> None:
    print(line, flush=True)


def up(options: argparse.Namespace) -> int:
    roles = {"prefill": options.prefill, "decode": options.decode, "both": options.both}
    if not any(roles.values()):
        say("nothing to start: --prefill, --decode and --both are all 0")
        return 2
    fleet = Fleet.up(
        options.dir,
        roles,
        model=options.served_model_name,
        engine_args=options.engine_args,
        start_timeout_s=options.timeout,
        say=say,
    )
    say(f"fleet file: {fleet.config}")
    say(f"try: narwhal serve --fleet {shlex.quote(str(fleet.config))}")
    return 0


def down(options: argparse.Namespace) -> int:
    fleet = Fleet.load(options.dir)
    if fleet is None:
        say(f"no fleet in {options.dir}")
        return 0
    fleet.down()
    say(f"ended {', '.join(engine.id for engine in fleet.engines)}")
    return 0


def status(options: argparse.Namespace) -> int:
    fleet = Fleet.load(options.dir)
    if fleet is None:
        say(f"no fleet in {options.dir}")
        return 1
    all_healthy = True
    for engine in fleet.engines:
        healthy = engine.healthy
        all_healthy &= healthy
        state = "healthy" if healthy else "not answering" if engine.alive else "dead"
        say(f"{engine.id}  {engine.role:7}  {engine.url}  {state:13}  pid {engine.pid}  log {engine.log}")
    say(f"fleet file: {fleet.config}")
    return 0 if all_healthy else 1


def count(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 16:
        raise argparse.ArgumentTypeError(f"{number} engines: 0 to 16 are allowed")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="vllm_cpu_fleet.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument(
        "--dir",
        type=Path,
        default=cache_folder() / "fleet",
        help="the folder for fleet.yaml, state.json and the logs (default: %(default)s)",
    )
    commands = parser.add_subparsers(required=True, metavar="up | down | status")
    starting = commands.add_parser(
        "up", parents=[where], help="start engines and wait until they are healthy"
    )
    starting.add_argument(
        "--prefill", type=count, default=1, metavar="N", help="prefill engines (default: 1)"
    )
    starting.add_argument("--decode", type=count, default=1, metavar="N", help="decode engines (default: 1)")
    starting.add_argument(
        "--both", type=count, default=0, metavar="N", help="engines for whole requests (default: 0)"
    )
    starting.add_argument(
        "--served-model-name", default="tiny", metavar="NAME", help="(default: %(default)s)"
    )
    starting.add_argument(
        "--engine-args",
        type=shlex.split,
        default=[],
        metavar="ARGS",
        help="further arguments for vLLM, quoted as one; a word: --engine-args=--WORD",
    )
    starting.add_argument(
        "--timeout",
        type=float,
        default=START_TIMEOUT_S,
        metavar="S",
        help="seconds to wait for all engines to be healthy (default: %(default)s)",
    )
    starting.set_defaults(run=up)
    commands.add_parser("down", parents=[where], help="end all engines").set_defaults(run=down)
    commands.add_parser(
        "status", parents=[where], help="what runs; exits 1 unless all is healthy"
    ).set_defaults(run=status)
    options = parser.parse_args()
    try:
        return int(options.run(options))
    except (FleetError, SetupError, OSError) as error:
        print(f"vllm_cpu_fleet.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
