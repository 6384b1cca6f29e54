"""Correction: how far a curve is off at present, as one factor.

The ratio of seen to predicted seconds over the last few dozen pieces of work. It is a ratio of sums, not a mean
of ratios, so that two prompts an engine ran as one (all the time on the first, none on the second) come out
right; and short work counts for less than its number, since fixed delays are most of what is seen of it. The
first samples move it fast, later ones by their share of the memory. Bounded: nothing makes a curve useless.
"""

from __future__ import annotations

LEAST, MOST = 1 / 16, 16.0
# In samples: what the curve's own word counts for at the start, and what the memory holds.
PRIOR_WEIGHT, MEMORY = 2.0, 32.0
# A sample counts as at most this many times what was predicted.
_OUTLIER = 4.0
# The relative spread of single samples, until enough of them are in.
PRIOR_SPREAD = 0.1


class Correction:
    """The factor for one engine and one kind of work."""

    __slots__ = ("_mean_s", "_predicted", "_seen", "_variance", "_weight", "factor", "samples")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Trust the curve again, as at the start."""
        self.factor = 1.0
        self.samples = 0
        self._weight = self._seen = self._predicted = PRIOR_WEIGHT
        self._mean_s = 0.0
        self._variance = PRIOR_SPREAD**2

    def learn(self, predicted_s: float, seen_s: float) -> None:
        """Take note of work that the bare curve priced at `predicted_s` and that took `seen_s`.

        A price of zero can't be corrected by a factor and is passed over.
        """
        if predicted_s <= 0 or seen_s < 0:
            return
        self.samples += 1
        self._mean_s += (predicted_s - self._mean_s) / min(self.samples, MEMORY)
        weight = predicted_s / (predicted_s + self._mean_s) * 2  # 1 for work of the usual size
        ratio = min(max(seen_s / predicted_s, 0.0), MOST)
        off = ratio / self.factor - 1
        if self.samples > PRIOR_WEIGHT:
            off = min(off, _OUTLIER - 1)
            ratio = self.factor * (1 + off)
        self._variance += (off * off - self._variance) * weight / (self._weight + weight)
        keep = min(1.0, MEMORY / (self._weight + weight))
        self._weight = (self._weight + weight) * keep
        self._seen = (self._seen + weight * ratio) * keep
        self._predicted = (self._predicted + weight) * keep
        self.factor = min(max(self._seen / self._predicted, LEAST), MOST)

    @property
    def spread(self) -> float:
        """How far single pieces of work were from the corrected curve: relative, root mean square."""
        return float(self._variance**0.5)
