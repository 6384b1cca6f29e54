"""One process's work: fuzz one target, or check an input. run.py starts it, and says how.

libFuzzer is guided by what an input reaches in the extensions. The oracles could be instrumented too; that
halves the number of inputs tried, and what they tell apart the extensions tell apart as well.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Protocol

from tests.fuzz import native

FOLDER = Path(__file__).parent
LARGEST = 2048  # bytes of an input
TARGETS = sorted(path.stem for path in (FOLDER / "targets").glob("[!_]*.py"))


class Target(Protocol):
    """A module of targets/."""

    def check(self, data: bytes) -> None: ...

    def seeds(self) -> Iterator[bytes]: ...

    def change(self, data: bytes, random: Random) -> bytes: ...


def load(name: str) -> Target:
    """The target of this name."""
    target: Target = importlib.import_module(f"tests.fuzz.targets.{name}")
    return target


def seeds_of(target: Target) -> list[bytes]:
    """Its seeds that are not too large."""
    return [data for data in target.seeds() if len(data) <= LARGEST]


def fuzz(name: str, seeds: Path, options: list[str]) -> None:
    """Let libFuzzer run, from these seeds. Does not return."""
    import atheris

    target = load(name)
    for number, data in enumerate(seeds_of(target)):
        (seeds / f"seed-{number}").write_bytes(data)

    def change(data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.05:
            mutated: bytes = atheris.Mutate(data, max_size)
            return mutated
        changed = target.change(data, random)
        return changed if len(changed) <= max_size else data

    def check(data: bytes) -> None:
        native.guide_fuzzer()
        target.check(data)

    atheris.Setup([sys.argv[0], *options], check, custom_mutator=change)
    atheris.Fuzz()


def main() -> None:
    """Read the arguments and do it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--native", type=Path, required=True, help="folder of the extensions")
    parser.add_argument("--seeds", type=Path, help="folder for the seeds, the first of the corpus")
    parser.add_argument("--check", type=Path, help="an input to check, instead of fuzzing")
    arguments, options = parser.parse_known_args()
    native.use(arguments.native)
    if arguments.check:
        load(arguments.target).check(arguments.check.read_bytes())
    else:
        fuzz(arguments.target, arguments.seeds, options)


if __name__ == "__main__":
    main()
