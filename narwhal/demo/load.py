"""The demo's load: a steady stream of requests, and in the middle of it a burst that the fleet can't take.

Requests are sent when they are due, whether earlier ones are answered or not, as clients that know nothing of
each other would send them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from narwhal.demo.client import Answer, Client, Unanswered
from narwhal.sim.vocabulary import words

RATE_PER_S = 7.0  # about half of what the demo's prefill engines take
BURST_REQUESTS = 40
BURST_AT = 0.4  # of the load's duration
PROMPT_TOKENS = (200, 600)
OUTPUT_TOKENS = (32, 96)
_SEED = 1


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
class Sample:
    """A request that was sent; without an answer, why."""

    planned: Planned
    answer: Answer | None
    why: str = ""


def plan(seconds: float) -> list[Planned]:
    """The requests of a load, in order; always the same."""
    source = Random(_SEED)
    due: list[tuple[float, Part]] = [(seconds * BURST_AT, Part.BURST)] * BURST_REQUESTS
    at = source.expovariate(RATE_PER_S)
    while at < seconds:
        due.append((at, Part.STEADY))
        at += source.expovariate(RATE_PER_S)
    return [
        Planned(at, part, source.randint(*PROMPT_TOKENS), source.randint(*OUTPUT_TOKENS))
        for at, part in sorted(due)
    ]


async def run(
    client: Client, model: str, planned: list[Planned], on_answer: Callable[[Sample], None]
) -> list[Sample]:
    """Send the requests, each when it is due, and wait for every answer."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    tasks = []
    async with asyncio.TaskGroup() as group:
        for number, request in enumerate(planned):
            delay = begin + request.at_s - loop.time()
            if delay > 0:
                await asyncio.sleep(delay)
            tasks.append(group.create_task(_send(client, model, number, request, on_answer)))
    return [task.result() for task in tasks]


async def _send(
    client: Client, model: str, number: int, request: Planned, on_answer: Callable[[Sample], None]
) -> Sample:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": words(request.prompt_tokens, start=number * 31)}],
        "max_tokens": request.output_tokens,
    }
    try:
        sample = Sample(request, await client.chat(body))
    except Unanswered as error:
        sample = Sample(request, None, str(error))
    on_answer(sample)
    return sample
