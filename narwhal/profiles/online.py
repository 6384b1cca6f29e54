"""Learning a curve from traffic: least squares over what was seen, in which the old fades.

The recursion is kept in sums (the normal equations), so that adding a sample is a dozen multiplications, the
terms can be kept from going negative exactly, and forgetting can't blow up when traffic says nothing new.
Errors count relatively: being 10 ms off matters at 20 ms and not at 2 s. The fit says how sure it is; it is
not used for refusing anybody until it has enough.
"""

from __future__ import annotations

from narwhal.profiles.nonnegative import NormalEquations, Triple

# In samples: how many are enough, and what the memory holds. Shape changes slowly; `correction` does the
# rest.
ENOUGH, MEMORY = 24, 1024
# A fit that is further off than this, on average, is not relied on however much it has seen.
WORST_ERROR = 0.5
# Solve after every sample at first, later when this share of the samples is new.
_NEWS = 1 / 32
_MOST_GROWTH = 1e6


class OnlineFit:
    """One curve of three terms, learned sample by sample."""

    __slots__ = ("_equations", "_growth", "_solved_at", "coefficients", "error", "samples", "weight")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._equations = NormalEquations()
        self._growth = 1.0
        self._solved_at = 0
        self.coefficients: Triple = (0.0, 0.0, 0.0)
        self.samples = 0
        self.weight = 0.0  # samples in memory
        self.error = 1.0  # mean relative error of predictions made before the answer was known

    def predict(self, x: Triple) -> float:
        """What the fit says of terms `x`."""
        c0, c1, c2 = self.coefficients
        return c0 * x[0] + c1 * x[1] + c2 * x[2]

    def learn(self, x: Triple, seen_s: float) -> None:
        """Take in one sample. Negative seconds are passed over."""
        if seen_s < 0:
            return
        predicted = self.predict(x)
        if self.samples:
            error = min(abs(predicted - seen_s) / max(seen_s, predicted, 1e-9), 1.0)
            self.error += (error - self.error) / min(self.samples, ENOUGH)
        # By what is predicted, once that is something: by what was seen, low samples would weigh more.
        sure = self.is_sure()
        scale = max(predicted if sure else seen_s, 1e-6)
        if sure:
            seen_s = min(seen_s, 4 * predicted)
        # The old fades by the new's counting for ever more; now and then everything is scaled back.
        self._equations.add(x, seen_s, self._growth / (scale * scale))
        self.weight = min(self.weight + 1, MEMORY)
        self._growth /= 1 - 1 / MEMORY
        if self._growth > _MOST_GROWTH:
            self._equations.fade(1 / self._growth)
            self._growth = 1.0
        self.samples += 1
        if self.samples - self._solved_at >= self.weight * _NEWS:
            self._solved_at = self.samples
            self.coefficients = self._equations.solve()

    def is_sure(self) -> bool:
        """Whether there is enough to go by."""
        return self.samples >= ENOUGH and self.error <= WORST_ERROR

    @property
    def confidence(self) -> float:
        """How sure it is: 0 (nothing seen) to 1 (plenty seen, and all of it as predicted)."""
        return min(1.0, self.weight / ENOUGH) * max(0.0, 1 - self.error)
