"""How many tokens a prompt or an answer has: fixed, uniform, or log-normal.

On the command line: `512`, `100-900`, `lognormal:400,0.8` (median, sigma), `lognormal:400,0.8,4096` (with a
maximum).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from random import Random

LONGEST = 1_000_000
FORMS = "512, 100-900, lognormal:MEDIAN,SIGMA or lognormal:MEDIAN,SIGMA,MOST"
_FORM = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?|lognormal:(\d{1,7}),(\d{1,3}(?:\.\d+)?)(?:,(\d{1,7}))?")


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths in tokens, from `least` to `most`; with `sigma`, log-normal."""

    least: int
    most: int
    median: int = 0
    sigma: float | None = None

    def draw(self, source: Random) -> int:
        """One length."""
        if self.sigma is None:
            return source.randint(self.least, self.most)
        drawn = round(self.median * math.exp(self.sigma * source.gauss(0.0, 1.0)))
        return min(max(drawn, self.least), self.most)

    def __str__(self) -> str:
        if self.sigma is not None:
            return f"lognormal:{self.median},{self.sigma:g},{self.most}"
        return str(self.least) if self.least == self.most else f"{self.least}-{self.most}"


def read_lengths(text: str) -> Lengths:
    """What the command line says. Raises ValueError."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no length in tokens; allowed: {FORMS}")
    least, most, median, sigma, longest = match.groups()
    if sigma is not None:
        lengths = Lengths(1, int(longest or LONGEST), int(median), float(sigma))
        if not 1 <= lengths.median <= lengths.most:
            raise ValueError(f"{text!r}: the median must lie between 1 and the maximum, {lengths.most}")
    else:
        lengths = Lengths(int(least), int(most or least))
    if not 1 <= lengths.least <= lengths.most <= LONGEST:
        raise ValueError(f"{text!r} is no length in tokens; allowed: 1 to {LONGEST}, the smaller one first")
    return lengths
