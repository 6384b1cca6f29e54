"""What is wrong with a fleet file, in a form that a person can act on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to put right."""

    path: str  # of the key, `engines[1].role`; empty for the file as a whole
    line: int  # in the file, from 1; 0 when no line is to blame
    seen: str
    allowed: str  # empty when `seen` is all there is to say

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}saw {self.seen}; allowed: {self.allowed}" if self.allowed else f"{where}{self.seen}"


class ConfigError(Exception):
    """The fleet file can't be used. Holds all of its problems, in the order of their lines."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        super().__init__(source, self.problems)

    def __str__(self) -> str:
        return "\n".join(
            f"{self.source}:{problem.line}: {problem}" if problem.line else f"{self.source}: {problem}"
            for problem in self.problems
        )
