"""Fuzz every target for a bounded time, and say what was found; or replay a find.

Each target is a process of its own, with AddressSanitizer where that runs. It begins with its own seeds and
what is in corpus/, and ends at the first find, which is kept in found/.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.native import ROOT, Native, build
from tests.fuzz.one import FOLDER, LARGEST, TARGETS

FOUND = FOLDER / "found"
CORPUS = FOLDER / "corpus"
SLOWEST_S = 10  # for one input
START_S = 2.5  # what a process takes before it fuzzes, and after


class Result(NamedTuple):
    """What came of fuzzing one target."""

    target: str
    executions: int
    seconds: float
    blocks: int  # of the extensions' code that were reached
    finds: list[Path]
    output: str  # of a process that failed

    @property
    def row(self) -> str:
        """A line of the table."""
        if self.finds:
            said = "FOUND " + ", ".join(str(path.relative_to(ROOT)) for path in self.finds)
        else:
            said = "FAILED" if self.output else "no crash, no disagreement"
        speed = self.executions / self.seconds
        return f"{self.target:10} {self.executions:11,} {speed:12,.0f} {self.blocks:8,}  {said}"


def _command(native: Native, target: str) -> list[str]:
    return [sys.executable, "-m", "tests.fuzz.one", target, "--native", str(native.folder)]


def _fuzz(native: Native, target: str, seconds: float) -> Result:
    found, kept = FOUND / target, CORPUS / target
    found.mkdir(parents=True, exist_ok=True)
    before = set(found.iterdir())
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        new, seeds = Path(folder, "new"), Path(folder, "seeds")
        new.mkdir()
        seeds.mkdir()
        options = [
            f"-max_total_time={max(1, round(seconds - START_S))}",
            f"-timeout={SLOWEST_S}",
            f"-max_len={LARGEST}",
            f"-artifact_prefix={found}/",
            *("-len_control=0", "-mutate_depth=3", "-rss_limit_mb=4096", "-print_final_stats=1"),
            *(str(path) for path in (new, seeds, kept) if path.exists()),
        ]
        log = Path(folder, "log")
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*_command(native, target), "--seeds", str(seeds), *options],
                cwd=ROOT,
                env=native.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            try:
                process.wait(seconds + 3 * SLOWEST_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        output = log.read_text(errors="replace")
    blocks = re.findall(r" cov: (\d+)", output)
    executions = re.findall(r"stat::number_of_executed_units: (\d+)", output)
    return Result(
        target,
        int(executions[-1]) if executions else 0,
        time.monotonic() - start,
        int(blocks[-1]) if blocks else 0,
        sorted(set(found.iterdir()) - before),
        output if process.returncode else "",
    )


def _lane(native: Native, targets: list[str], end: float) -> Iterator[Result]:
    """One after another, each with its share of the time that is left."""
    for at, target in enumerate(targets):
        yield _fuzz(native, target, (end - time.monotonic()) / (len(targets) - at))


def _explain(result: Result) -> None:
    """What a failed process said, from the error on."""
    lines = result.output.splitlines()
    marks = ("=== Uncaught", "ERROR: ", "Traceback")
    at = next((at for at, line in enumerate(lines) if any(mark in line for mark in marks)), -30)
    print(f"\n{result.target}:", *lines[at:][:25], sep="\n  ")
    for path in result.finds:
        print(f"To see it again: {sys.executable} -m tests.fuzz.run --replay {path.relative_to(ROOT)}")


def fuzz(targets: list[str], seconds: float, processes: int) -> bool:
    """Fuzz, print the table and what was found; False if anything was."""
    native = build()
    print(
        f"Fuzzing for {seconds:.0f} s in {processes} processes, "
        + (
            "with AddressSanitizer."
            if native.sanitizer
            else "without AddressSanitizer: it does not run here."
        )
    )
    print(f"\n{'target':10} {'executions':>11} {'executions/s':>12} {'blocks':>8}  result", flush=True)
    end = time.monotonic() + seconds
    results: list[Result] = []

    def run(number: int) -> None:
        for result in _lane(native, targets[number::processes], end):
            results.append(result)
            print(result.row, flush=True)

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(run, range(processes)))
    print(f"{'':10} {sum(result.executions for result in results):11,}")
    failed = [result for result in results if result.output]
    for result in failed:
        _explain(result)
    return not failed


def replay(path: Path) -> bool:
    """Check one input as its folder's name says; False if it fails."""
    target = path.resolve().parent.name
    if target not in TARGETS:
        sys.exit(f"{path}: the folder's name must be a target ({', '.join(TARGETS)}); it is {target}")
    native = build()
    done = subprocess.run(
        [*_command(native, target), "--check", str(path.resolve())],
        cwd=ROOT,
        env=native.environment,
        check=False,
    )
    print(f"{path}: " + ("fails" if done.returncode else "no crash, no disagreement"))
    return done.returncode == 0


def main() -> None:
    """Read the arguments and do it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; all if none is named")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all of them together")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--replay", type=Path, metavar="FILE", help="check this one input instead")
    arguments = parser.parse_args()
    unknown = set(arguments.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    passed = (
        replay(arguments.replay)
        if arguments.replay
        else fuzz(arguments.targets or TARGETS, arguments.seconds, arguments.processes)
    )
    sys.exit(not passed)


if __name__ == "__main__":
    main()
