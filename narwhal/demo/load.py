"""The demo's load: a steady stream of requests, and in the middle of it a burst that the fleet can't take.

The load generator sends them when they are due, whether earlier ones are answered or not, as clients that
know nothing of each other would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from random import Random

from narwhal.config import Slo
from narwhal.harness.arrivals import Pattern, arrivals
from narwhal.harness.endpoint import CHAT, Endpoint
from narwhal.harness.generator import Asking, Draft, Generator
from narwhal.harness.prompts import Prompt
from narwhal.harness.sample import Sample, Targets
from narwhal.sim.vocabulary import words

RATE_PER_S = 7.0  # about half of what the demo's prefill engines take
BURST_REQUESTS = 40
BURST_AT = 0.4  # of the load's duration
PROMPT_TOKENS = (200, 600)
OUTPUT_TOKENS = (32, 96)
_SEED = 1
_TIMEOUT_S = 30.0


class Part(StrEnum):
    """What a request belongs to."""

    STEADY = "steady"
    BURST = "burst"


@dataclass(frozen=True, slots=True)
class Planned:
    """A request to come."""

    at_s: float  # since the load's begin
    part: Part
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that was sent, and what its client saw."""

    planned: Planned
    sample: Sample


def plan(seconds: float) -> list[Planned]:
    """The requests of a load, in order; always the same."""
    source = Random(_SEED)
    steady = takewhile(lambda at: at < seconds, arrivals(Pattern.POISSON, RATE_PER_S, source))
    due = [(seconds * BURST_AT, Part.BURST)] * BURST_REQUESTS + [(at, Part.STEADY) for at in steady]
    return [
        Planned(at, part, source.randint(*PROMPT_TOKENS), source.randint(*OUTPUT_TOKENS))
        for at, part in sorted(due)
    ]


async def run(
    endpoint: Endpoint, model: str, slo: Slo, planned: list[Planned], on_sample: Callable[[Sample], None]
) -> list[Sent]:
    """Send the requests, each when it is due, and wait for every answer."""
    sent: list[Sent] = []

    def take(sample: Sample) -> None:
        sent.append(Sent(planned[sample.number], sample))
        on_sample(sample)

    asking = Asking(CHAT, model, timeout_s=_TIMEOUT_S, targets=Targets(slo.ttft_s, slo.tpot_s))
    now = time.monotonic()
    generator = Generator(endpoint, asking, epoch=now, on_sample=take)
    await generator.open_loop(iter(_drafts(planned)), begin=now, place=(0, 0))
    return sent


def _drafts(planned: list[Planned]) -> Iterable[Draft]:
    for number, request in enumerate(planned):
        text = words(request.prompt_tokens, start=number * 31)
        prompt = Prompt({"messages": [{"role": "user", "content": text}]})
        yield Draft(prompt, request.prompt_tokens, request.output_tokens, request.at_s)
