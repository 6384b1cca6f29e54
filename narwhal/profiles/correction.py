"""Correction: how far a curve is off at present, as one factor.

The mean ratio of seen to predicted seconds over the last few dozen pieces of work, each weighed by its size
(up to a point), so that it is about the ratio of the sums. Then two prompts that an engine ran as one, all
the time on the first and none on the second, come out right, and short work, of which fixed delays are a
large part, counts for less. At the start each sample moves the factor much, later by its share of the
memory. A run of errors to one side says that the engine has changed, and the factor starts over from where
it is. It is bounded: nothing makes a curve useless.
"""

from __future__ import annotations

LEAST, MOST = 1 / 16, 16.0
# In samples of the usual size: what the factor counts for at the start, what it comes to count for unless
# somebody wants it otherwise, and over how many it is seen whether errors lean to one side.
_PRIOR, _MEMORY, _RUN = 1.0, 64.0, 8.0
# A sample counts as at most this many times what was expected.
_OUTLIER = 4.0
_LEAST_S = 1e-9
# The relative spread of single samples, until they say.
PRIOR_SPREAD = 0.1


class Correction:
    """The factor for one engine and one kind of work."""

    __slots__ = ("_leaning", "_memory", "_size_s", "_told", "_variance", "_weight", "factor", "samples")

    def __init__(self, memory: float = _MEMORY) -> None:
        """`memory` is how many samples the factor rests on, once there are so many."""
        self._memory = memory
        self.reset()

    def reset(self) -> None:
        """Trust the curve again, as at the start."""
        self.factor = 1.0
        self.samples = 0
        self._weight = _PRIOR
        self._size_s = 0.0  # of the usual piece of work
        self._leaning = 0.0  # recent errors with their sign: about 0 while the factor is right
        self._variance = PRIOR_SPREAD**2
        self._told = _PRIOR  # what the spread rests on

    def learn(self, predicted_s: float, seen_s: float) -> None:
        """Take note of work that the bare curve priced at `predicted_s` and that took `seen_s`.

        A price of next to nothing can't be corrected by a factor and is passed over, as is a negative time.
        """
        if not predicted_s > _LEAST_S or not seen_s >= 0:
            return
        self.samples += 1
        self._size_s += (predicted_s - self._size_s) / min(self.samples, self._memory)
        weight = 2 * predicted_s / (predicted_s + self._size_s)  # 1 for work of the usual size
        off = min(seen_s / (predicted_s * self.factor), _OUTLIER) - 1
        usual = max(self._variance**0.5, PRIOR_SPREAD)
        # One error counts for two usual ones at most, so it takes a run of them.
        lean = min(max(off, -2 * usual), 2 * usual)
        self._leaning += (lean - self._leaning) * weight / _RUN
        if abs(self._leaning) > usual:
            self._weight, self._leaning = _PRIOR, 0.0
        self._weight = min(self._weight + weight, self._memory)
        share = weight / self._weight
        self.factor = min(max(self.factor * (1 + off * share), LEAST), MOST)
        # About the new factor: that the old one was wrong is no spread. Nor is a run of errors, as when an
        # engine stands still for a moment: it starts the factor over, but what is usual changes slowly.
        off = (1 + off) / (1 + off * share) - 1
        off = min(max(off, -2 * usual), 2 * usual)
        self._told = min(self._told + weight, self._memory)
        self._variance += (off * off - self._variance) * weight / self._told

    @property
    def spread(self) -> float:
        """How far single pieces of work are from the corrected curve: relative, root mean square."""
        return float(self._variance**0.5)
