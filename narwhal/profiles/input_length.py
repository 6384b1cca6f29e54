"""Input length: how many tokens a prompt has, judged by its bytes.

The router has no tokenizer; what it has is the size of the prompt and, once an engine has answered, the
true count of tokens. Their ratio is steady for one model and one kind of traffic, so it is learned per
route and script: at first a plain mean that starts from a prior, then, once enough is in it, an average
that forgets the old. A short prompt says more about the chat template than about the text, so it teaches
less. Prompts given as token IDs are counted, not estimated, and must not be learned from.

The script is read off a sample of the body. It is as much about JSON as about writing: the same Chinese text
takes twice the bytes when a client escapes it.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

# English text, until an engine has said otherwise.
PRIOR_BYTES_PER_TOKEN = 4.0
# What any text can be: a JSON escape takes up to twelve bytes a character; a template adds tokens, not bytes.
LEAST_BYTES_PER_TOKEN, MOST_BYTES_PER_TOKEN = 0.5, 16.0
# A prompt of this many bytes teaches half as much as a very long one.
HALF_WEIGHT_BYTES = 256
# In long prompts: what the prior counts for, and what the memory holds.
PRIOR_WEIGHT, MEMORY_WEIGHT = 1.0, 50.0

_SAMPLE_BYTES = 2048
# Beyond this share of a sample it is another script; below, an accent or a dash here and there.
_OTHER_SHARE = 1 / 3
_ASCII = bytes(range(128))
_ESCAPE_BYTES = 6  # \uXXXX


class Script(StrEnum):
    """How a body's text is written."""

    ASCII = "ascii"  # or nearly: Latin letters with their accents
    OTHER = "other"  # UTF-8 beyond ASCII
    ESCAPED = "escaped"  # the same as JSON escapes


_PLAIN, _OTHER, _ESCAPED = Script  # a look-up in the class is slow
# The ratio to begin with. Beyond ASCII, about one token a character of three bytes, or of one escape.
_PRIORS = {Script.ASCII: PRIOR_BYTES_PER_TOKEN, Script.OTHER: 3.0, Script.ESCAPED: 6.0}


def script_of(body: bytes) -> Script:
    """The script of a request's body, by a sample from its middle."""
    sample = body
    if len(body) > _SAMPLE_BYTES:
        start = (len(body) - _SAMPLE_BYTES) // 2
        sample = body[start : start + _SAMPLE_BYTES]
    least = len(sample) * _OTHER_SHARE
    if not sample.isascii() and len(sample.translate(None, _ASCII)) > least:
        return _OTHER
    return _ESCAPED if b"\\" in sample and sample.count(b"\\u") * _ESCAPE_BYTES > least else _PLAIN


class _Learned:
    """What one route's traffic in one script has taught."""

    __slots__ = ("error", "observed", "tokens_per_byte", "weight")

    def __init__(self, script: Script) -> None:
        self.tokens_per_byte = 1 / _PRIORS[script]
        self.weight = PRIOR_WEIGHT
        self.error = 0.0
        self.observed = 0.0  # weight of what `error` rests on

    def learn(self, weight: float, error: float, prompt_bytes: float, prompt_tokens: float) -> None:
        self.observed = min(self.observed + weight, MEMORY_WEIGHT)
        self.error += (error - self.error) * weight / self.observed
        sample = min(max(prompt_tokens / prompt_bytes, 1 / MOST_BYTES_PER_TOKEN), 1 / LEAST_BYTES_PER_TOKEN)
        self.weight = min(self.weight + weight, MEMORY_WEIGHT)
        self.tokens_per_byte += (sample - self.tokens_per_byte) * weight / self.weight


class Learned(NamedTuple):
    """The state of one estimate, for people."""

    route: str
    script: Script
    bytes_per_token: float
    relative_error: float


class InputLengths:
    """The estimate of each route and script, and how good it has been."""

    __slots__ = ("_learned",)

    def __init__(self) -> None:
        self._learned: dict[tuple[str, Script], _Learned] = {}

    def estimate(self, route: str, prompt_bytes: int, script: Script = Script.ASCII) -> int:
        """Tokens in a prompt of `prompt_bytes` bytes: rounded up, at least one."""
        return max(1, math.ceil(prompt_bytes / self.bytes_per_token(route, script)))

    def learn(self, route: str, prompt_bytes: int, prompt_tokens: int, script: Script = Script.ASCII) -> None:
        """Take note of what an engine counted. An empty prompt or count says nothing and is passed over."""
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        learned = self._learned.get((route, script))
        if learned is None:
            learned = self._learned[route, script] = _Learned(script)
        weight = prompt_bytes / (prompt_bytes + HALF_WEIGHT_BYTES)
        error = abs(self.estimate(route, prompt_bytes, script) - prompt_tokens) / prompt_tokens
        learned.learn(weight, error, prompt_bytes, prompt_tokens)

    def bytes_per_token(self, route: str, script: Script = Script.ASCII) -> float:
        """The ratio that estimates go by at present."""
        learned = self._learned.get((route, script))
        return 1 / learned.tokens_per_byte if learned is not None else _PRIORS[script]

    def relative_error(self, route: str, script: Script = Script.ASCII) -> float | None:
        """How far recent estimates were off on average, as a share of the count; None before the first."""
        learned = self._learned.get((route, script))
        return learned.error if learned else None

    def report(self) -> list[Learned]:
        """All that has been learned."""
        return [
            Learned(route, script, 1 / learned.tokens_per_byte, learned.error)
            for (route, script), learned in self._learned.items()
        ]
