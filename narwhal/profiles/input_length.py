"""Input length: how many tokens a prompt has, judged by its bytes.

The router has no tokenizer; what it has is the size of the prompt and, once an engine has answered, the true
count of tokens. Their ratio is steady for one model and one kind of traffic, so it is learned per route: at
first a plain mean that starts from a prior, then, once enough is in it, an average that forgets the old. A
short prompt says more about the chat template than about the text, so it teaches less. Prompts given as token
IDs are counted, not estimated, and must not be learned from.
"""

from __future__ import annotations

import math

# English text, until an engine has said otherwise.
PRIOR_BYTES_PER_TOKEN = 4.0
# What any text can be: a JSON escape takes up to twelve bytes a character; a template adds tokens, not bytes.
LEAST_BYTES_PER_TOKEN, MOST_BYTES_PER_TOKEN = 0.5, 16.0
# A prompt of this many bytes teaches half as much as a very long one.
HALF_WEIGHT_BYTES = 256
# In long prompts: what the prior counts for, and what the memory holds.
PRIOR_WEIGHT, MEMORY_WEIGHT = 1.0, 50.0


class _Learned:
    """What one route's traffic has taught."""

    __slots__ = ("error", "observed", "tokens_per_byte", "weight")

    def __init__(self) -> None:
        self.tokens_per_byte = 1 / PRIOR_BYTES_PER_TOKEN
        self.weight = PRIOR_WEIGHT
        self.error = 0.0
        self.observed = 0.0  # weight of what `error` rests on


class InputLengths:
    """The estimate of each route, and how good it has been."""

    __slots__ = ("_routes",)

    def __init__(self) -> None:
        self._routes: dict[str, _Learned] = {}

    def estimate(self, route: str, prompt_bytes: int) -> int:
        """Tokens in a prompt of `prompt_bytes` bytes: rounded up, at least one."""
        return max(1, math.ceil(prompt_bytes / self.bytes_per_token(route)))

    def learn(self, route: str, prompt_bytes: int, prompt_tokens: int) -> None:
        """Take note of what an engine counted. An empty prompt or count says nothing and is passed over."""
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        learned = self._routes.setdefault(route, _Learned())
        weight = prompt_bytes / (prompt_bytes + HALF_WEIGHT_BYTES)
        error = abs(self.estimate(route, prompt_bytes) - prompt_tokens) / prompt_tokens
        learned.observed = min(learned.observed + weight, MEMORY_WEIGHT)
        learned.error += (error - learned.error) * weight / learned.observed
        sample = min(max(prompt_tokens / prompt_bytes, 1 / MOST_BYTES_PER_TOKEN), 1 / LEAST_BYTES_PER_TOKEN)
        learned.weight = min(learned.weight + weight, MEMORY_WEIGHT)
        learned.tokens_per_byte += (sample - learned.tokens_per_byte) * weight / learned.weight

    def bytes_per_token(self, route: str) -> float:
        """The ratio that estimates on this route go by at present."""
        learned = self._routes.get(route)
        return 1 / learned.tokens_per_byte if learned else PRIOR_BYTES_PER_TOKEN

    def relative_error(self, route: str) -> float | None:
        """How far recent estimates were off on average, as a share of the count; None before the first."""
        learned = self._routes.get(route)
        return learned.error if learned else None
