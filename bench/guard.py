"""A guard against creeping cost that does not wobble: instructions, not seconds.

callgrind counts what the processor is told to do, so the same work gives the same figure whatever else the
machine is doing. Each piece of work is run twice, for fewer and for more items; the difference is the items'
own cost, and start-up falls out. The figures kept in guard.json are what a change is held against.

    python bench/guard.py            compare with guard.json; exit 1 if something costs over 3 % more
                                     (of another Python than theirs it says so, and does nothing)
    python bench/guard.py --keep     write what is measured now to guard.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KEPT = Path(__file__).with_name("guard.json")
TOLERANCE = 0.03
# The same for every run: the order of hashes and of the environment's bytes moves the figures.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONPATH": str(KEPT.parent.parent), "PATH": "/usr/bin:/bin"}
STREAMS = 100  # open at once
# The work, what one item of it is called, the two counts that are compared, and the function whose
# instructions count, where the rest is the harness's.
WORK = {
    "events": ("a relayed event", 2_000, 12_000, "--toggle-collect=__pyx_pw_*Reactor_*serve"),
    "requests": ("a request in two legs", 100, 300, ""),
}


def relay_events(count: int) -> None:
    """Relay `count` recorded events, one a read, over sockets from engines to clients."""
    asyncio.run(_relay_events(count))


async def _relay_events(count: int) -> None:
    from bench.in_memory import TOKEN
    from bench.streams import Streams

    streams = Streams(STREAMS)
    for _ in range(count // STREAMS):
        streams.send(TOKEN)
        streams.reactor.serve()
        streams.read()
    streams.check(count // STREAMS)


def serve(count: int) -> None:
    """Serve `count` requests between transports made of memory."""
    from bench.in_memory import chat_request, serve_requests
    from narwhal._fast.loop import run

    run(serve_requests(count, chat_request()))


def instructions(work: str, count: int, only: str) -> int:
    """What callgrind counts for a run, all of it or what an option of its lets it."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [
                *("setarch", "-R", "valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out"),
                *filter(None, [only]),
                *(sys.executable, __file__, "--work", work, "--count", str(count)),
            ],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
        )
    found = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode or not found:
        raise SystemExit(f"callgrind failed:\n{run.stdout}{run.stderr}")
    return int(found[1])


def measure() -> dict[str, int]:
    """Instructions for one item of each work."""
    found = {}
    for work, (_, fewer, more, only) in WORK.items():
        # Once without counting: whatever Python keeps of a first run (compiled modules) is kept by then.
        subprocess.run(
            [sys.executable, __file__, "--work", work, "--count", "1"], env=ENVIRONMENT, check=True
        )
        cost = instructions(work, more, only) - instructions(work, fewer, only)
        found[work] = round(cost / (more - fewer))
    return found


def main() -> int:
    """Measure, and compare or keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="write what is measured now to guard.json")
    parser.add_argument("--work", choices=WORK, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        (relay_events if args.work == "events" else serve)(args.count)
        return 0
    if shutil.which("valgrind") is None:
        print("valgrind is not installed (Debian: apt-get install valgrind)", file=sys.stderr)
        return 1
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if not args.keep and kept and kept["python"] != platform.python_version():
        here = platform.python_version()
        print(f"the kept figures are of Python {kept['python']}, and this is {here}: nothing to compare")
        return 0
    measured = measure()
    worse = False
    print(f"{'instructions for':24}{'kept':>12}{'now':>12}{'change':>9}")
    for work, now in measured.items():
        before = kept.get("instructions", {}).get(work, now)
        change = now / before - 1
        worse |= change > TOLERANCE
        print(f"{WORK[work][0]:24}{before:12,}{now:12,}{change:9.1%}")
    if args.keep:
        figures = {"python": platform.python_version(), "instructions": measured}
        KEPT.write_text(json.dumps(figures, indent=2) + "\n")
        return 0
    if worse:
        print(f"over {TOLERANCE:.0%} more: find out why, or keep the new figures with --keep and say why")
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
