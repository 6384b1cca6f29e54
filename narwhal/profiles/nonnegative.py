"""Least squares with at most three terms, none of them negative: exactly, and without a library.

The optimum lies on a subset of the terms, where it is the ordinary least-squares solution; with three terms
there are seven subsets, so all are tried. Almost always the first (all three) is the answer, and then it
costs a few microseconds, which is why the router's learning can use it as well as the fitting of profiles.

The problem is given by its normal equations: `gram[i][j]` is the sum of weighted products of terms i and j,
`moment[i]` that of term i and the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

Triple = tuple[float, float, float]

# A pivot this small, on a diagonal of ones, says that the terms can't be told apart.
_SINGULAR = 1e-11
_SUBSETS = [subset for size in (3, 2, 1) for subset in combinations(range(3), size)]


class NormalEquations:
    """Sums over weighted samples of three terms each; what least squares needs to know of them."""

    __slots__ = ("g00", "g01", "g02", "g11", "g12", "g22", "m0", "m1", "m2")

    def __init__(self) -> None:
        self.g00 = self.g01 = self.g02 = self.g11 = self.g12 = self.g22 = 0.0
        self.m0 = self.m1 = self.m2 = 0.0

    def add(self, x: Triple, y: float, weight: float) -> None:
        """Take in one sample: terms `x`, target `y`. A negative weight takes it out again."""
        x0, x1, x2 = x
        w0, w1, w2 = weight * x0, weight * x1, weight * x2
        self.g00 += w0 * x0
        self.g01 += w0 * x1
        self.g02 += w0 * x2
        self.g11 += w1 * x1
        self.g12 += w1 * x2
        self.g22 += w2 * x2
        self.m0 += w0 * y
        self.m1 += w1 * y
        self.m2 += w2 * y

    def fade(self, share: float) -> None:
        """Let everything so far count `share` of what it did."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) * share)

    def solve(self) -> Triple:
        """The non-negative coefficients with the least squared error; all zero without samples."""
        # Scaled so that the diagonal is one: the terms differ by many orders of magnitude.
        s0, s1, s2 = (g**-0.5 if g > 0 else 0.0 for g in (self.g00, self.g11, self.g22))
        g01, g02, g12 = self.g01 * s0 * s1, self.g02 * s0 * s2, self.g12 * s1 * s2
        gram = ((1.0, g01, g02), (g01, 1.0, g12), (g02, g12, 1.0))
        moment = (self.m0 * s0, self.m1 * s1, self.m2 * s2)
        present = (s0 > 0, s1 > 0, s2 > 0)
        best, gain = (0.0, 0.0, 0.0), 0.0
        for subset in _SUBSETS:
            if not all(present[i] for i in subset):
                continue
            found = _solve(gram, moment, subset)
            if found is None or min(found) < 0:
                continue
            explained = sum(moment[i] * value for i, value in zip(subset, found, strict=True))
            if explained > gain * (1 + 1e-12):
                gain = explained
                values = dict(zip(subset, found, strict=True))
                best = (values.get(0, 0.0), values.get(1, 0.0), values.get(2, 0.0))
                if len(subset) == 3:
                    break  # the unconstrained optimum: nothing explains more
        return best[0] * s0, best[1] * s1, best[2] * s2


def _solve(gram: Sequence[Triple], moment: Triple, subset: tuple[int, ...]) -> list[float] | None:
    """Cholesky on the subset's rows and columns; None if it is singular."""
    lower: list[list[float]] = []
    half: list[float] = []
    for row, i in enumerate(subset):
        line: list[float] = []
        for column, j in enumerate(subset[:row]):
            line.append(
                (gram[i][j] - sum(line[k] * lower[column][k] for k in range(column))) / lower[column][column]
            )
        pivot = gram[i][i] - sum(value * value for value in line)
        if pivot < _SINGULAR:
            return None
        line.append(pivot**0.5)
        lower.append(line)
        half.append((moment[i] - sum(line[k] * half[k] for k in range(row))) / line[row])
    size = len(subset)
    solution = [0.0] * size
    for row in range(size - 1, -1, -1):
        rest = half[row] - sum(lower[k][row] * solution[k] for k in range(row + 1, size))
        solution[row] = rest / lower[row][row]
    return solution
