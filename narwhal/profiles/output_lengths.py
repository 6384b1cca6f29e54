"""Output lengths: how many tokens an answer will have, by what earlier answers had.

Learned from counted tokens, for each pair of prompt length and `max_tokens`, both in powers of two, as a
histogram over lengths that grow by a quarter of a power of two; so a quantile is within a fifth of the truth
and the memory is bounded. A pair that has seen too little falls back on all prompts with its `max_tokens`,
then on everything, then on a prior.
"""

from __future__ import annotations

import math

# Until there is enough: most answers are a few paragraphs.
PRIOR_MEDIAN, PRIOR_SIGMA = 150.0, 1.0
ENOUGH = 16
# Samples in a histogram; the old fade beyond it.
MEMORY = 2048
_STEPS = 4  # buckets per power of two
_BUCKETS = 24 * _STEPS
_LARGEST = 24  # powers of two that are told apart
_LIMITS = _LARGEST + 2  # of `max_tokens`: those, and none
_ROWS = _LARGEST + 3  # of prompts: those, all prompts, and everything


class _Histogram:
    __slots__ = ("_found", "added", "counts", "total")

    def __init__(self) -> None:
        self.counts = [0.0] * _BUCKETS
        self.total = 0.0
        self.added = 0
        self._found: dict[float, tuple[float, int]] = {}  # by share: a quantile, and until when it will do

    def add(self, bucket: int) -> None:
        self.added += 1
        if self.total >= MEMORY:
            self.counts = [count / 2 for count in self.counts]
            self.total /= 2
        self.counts[bucket] += 1
        self.total += 1

    def quantile(self, share: float) -> float:
        """Found anew only when a thirty-second of the samples is new: it is asked for often."""
        found = self._found.get(share)
        if found is None or self.added >= found[1]:
            news = int(min(self.added, self.total) / 32) + 1
            found = self._found[share] = (self._quantile(share), self.added + news)
        return found[0]

    def _quantile(self, share: float) -> float:
        left = share * self.total
        for bucket, count in enumerate(self.counts):
            if count > 0 and left <= count:
                return math.exp2((bucket + left / count) / _STEPS)
            left -= count
        return math.exp2(_BUCKETS / _STEPS)


class OutputLengths:
    """What is known of output lengths."""

    __slots__ = ("_histograms",)

    def __init__(self) -> None:
        self._histograms: list[_Histogram | None] = [None] * (_ROWS * _LIMITS)

    def learn(self, prompt_tokens: int, max_tokens: int | None, output_tokens: int) -> None:
        """Take note of an answer that came to its end. One without output says nothing."""
        if output_tokens < 1:
            return
        bucket = min(int(math.log2(output_tokens) * _STEPS), _BUCKETS - 1)
        for place in range(3):
            index = _index(place, prompt_tokens, max_tokens)
            histogram = self._histograms[index]
            if histogram is None:
                histogram = self._histograms[index] = _Histogram()
            histogram.add(bucket)

    def expect(self, prompt_tokens: int, max_tokens: int | None, quantile: float = 0.5) -> float:
        """Tokens that a share `quantile` of such answers don't exceed; at least 1, at most `max_tokens`."""
        most = float(max_tokens) if max_tokens else math.inf
        for place in range(3):
            histogram = self._histograms[_index(place, prompt_tokens, max_tokens)]
            if histogram is not None and histogram.total >= ENOUGH:
                return min(max(1.0, histogram.quantile(quantile)), most)
        return min(prior(quantile), most)


def _index(place: int, prompt_tokens: int, max_tokens: int | None) -> int:
    """Where a histogram is kept: of such pairs (0), of all prompts with such a limit (1), of all (2)."""
    if place == 2:
        return _ROWS * _LIMITS - 1
    limit = _power(max_tokens) if max_tokens else _LIMITS - 1
    row = _power(prompt_tokens) if place == 0 else _LARGEST + 1
    return row * _LIMITS + limit


def _power(tokens: int) -> int:
    """The power of two that `tokens` is sorted under."""
    left, found = tokens - 1, 0
    while left > 0 and found < _LARGEST:
        left >>= 1
        found += 1
    return found


def prior(quantile: float) -> float:
    """A log-normal guess, for when nothing is known."""
    # The normal quantile within 0.5 %, by the logistic curve's.
    share = min(max(quantile, 0.001), 0.999)
    return PRIOR_MEDIAN * math.exp(PRIOR_SIGMA * math.log(share / (1 - share)) / 1.702)
