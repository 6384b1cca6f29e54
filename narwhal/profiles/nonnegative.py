"""Least squares with at most three terms, none of them negative: exactly, and without a library.

The optimum lies on a subset of the terms, where it is the ordinary least-squares solution; with three terms
there are seven subsets, so all are tried. Almost always the first (all three) is the answer, and then it
costs a few microseconds, which is why the router's learning can use it as well as the fitting of profiles.

The problem is given by its normal equations: `gram[i][j]` is the sum of weighted products of terms i and j,
`moment[i]` that of term i and the target.
"""

from __future__ import annotations

Triple = tuple[float, float, float]

# A pivot this small, on a diagonal of ones, says that the terms can't be told apart.
_SINGULAR = 1e-11


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
        self.g00, self.g01, self.g02 = self.g00 * share, self.g01 * share, self.g02 * share
        self.g11, self.g12, self.g22 = self.g11 * share, self.g12 * share, self.g22 * share
        self.m0, self.m1, self.m2 = self.m0 * share, self.m1 * share, self.m2 * share

    def solve(self) -> Triple:
        """The non-negative coefficients with the least squared error; all zero without samples."""
        # Scaled so that the diagonal is one: the terms differ by many orders of magnitude.
        s0 = self.g00**-0.5 if self.g00 > 0 else 0.0
        s1 = self.g11**-0.5 if self.g11 > 0 else 0.0
        s2 = self.g22**-0.5 if self.g22 > 0 else 0.0
        g01, g02, g12 = self.g01 * s0 * s1, self.g02 * s0 * s2, self.g12 * s1 * s2
        m0, m1, m2 = self.m0 * s0, self.m1 * s1, self.m2 * s2
        if s0 > 0 and s1 > 0 and s2 > 0:
            x0, x1, x2 = _three(g01, g02, g12, m0, m1, m2)
            if x0 >= 0 and x1 >= 0 and x2 >= 0:
                return x0 * s0, x1 * s1, x2 * s2  # the unconstrained optimum: nothing explains more
        best, gain = (0.0, 0.0, 0.0), 0.0
        if s0 > 0 and s1 > 0:
            x0, x1 = _two(g01, m0, m1)
            if x0 >= 0 and x1 >= 0 and _more(m0 * x0 + m1 * x1, gain):
                best, gain = (x0, x1, 0.0), m0 * x0 + m1 * x1
        if s0 > 0 and s2 > 0:
            x0, x2 = _two(g02, m0, m2)
            if x0 >= 0 and x2 >= 0 and _more(m0 * x0 + m2 * x2, gain):
                best, gain = (x0, 0.0, x2), m0 * x0 + m2 * x2
        if s1 > 0 and s2 > 0:
            x1, x2 = _two(g12, m1, m2)
            if x1 >= 0 and x2 >= 0 and _more(m1 * x1 + m2 * x2, gain):
                best, gain = (0.0, x1, x2), m1 * x1 + m2 * x2
        # One term alone: what it explains is its moment's square.
        if m0 > 0 and _more(m0 * m0, gain):
            best, gain = (m0, 0.0, 0.0), m0 * m0
        if m1 > 0 and _more(m1 * m1, gain):
            best, gain = (0.0, m1, 0.0), m1 * m1
        if m2 > 0 and _more(m2 * m2, gain):
            best, gain = (0.0, 0.0, m2), m2 * m2
        return best[0] * s0, best[1] * s1, best[2] * s2


def _more(explained: float, gain: float) -> bool:
    """Whether that is more, by more than rounding."""
    return explained > gain * (1 + 1e-12)


def _two(g: float, m0: float, m1: float) -> tuple[float, float]:
    """The optimum over two terms; negative if they can't be told apart."""
    pivot = 1 - g * g
    if pivot < _SINGULAR:
        return -1.0, -1.0
    return (m0 - g * m1) / pivot, (m1 - g * m0) / pivot


def _three(g01: float, g02: float, g12: float, m0: float, m1: float, m2: float) -> Triple:
    """The optimum over all terms, by Cholesky; negative if they can't be told apart."""
    pivot = 1 - g01 * g01
    if pivot < _SINGULAR:
        return -1.0, -1.0, -1.0
    l11 = pivot**0.5
    l21 = (g12 - g02 * g01) / l11
    pivot = 1 - g02 * g02 - l21 * l21
    if pivot < _SINGULAR:
        return -1.0, -1.0, -1.0
    l22 = pivot**0.5
    y1 = (m1 - g01 * m0) / l11
    x2 = (m2 - g02 * m0 - l21 * y1) / l22 / l22
    x1 = (y1 - l21 * x2) / l11
    return m0 - g01 * x1 - g02 * x2, x1, x2
