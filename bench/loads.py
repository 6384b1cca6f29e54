"""Loads for the router in virtual time, and the fleet that carries them.

Prompts and answers have log-normal lengths, as served traffic has. Requests come by chance at a steady rate,
or in bursts: by turns of ten seconds on average at 1.75 times the rate and at a quarter of it.
"""

from __future__ import annotations

import math
from random import Random

from bench.virtual_router import Arrival, EngineSpec, Load
from narwhal.sim.timing import Timing
from narwhal.sim.virtual import Noise

# Median 1,000 tokens, and one in a hundred longer than 12,000.
_PROMPT_MU, _PROMPT_SIGMA, _LONGEST_PROMPT = math.log(1000), math.log(12) / 2.3263, 32_768
# Median 150 tokens.
_OUTPUT_MU, _OUTPUT_SIGMA, _LONGEST_OUTPUT = math.log(150), 0.8, 4096
_TURN_S, _BURST, _LULL = 10.0, 1.75, 0.25


def fleet() -> tuple[EngineSpec, ...]:
    """Four engines of each kind, half of them twice as fast as the others."""
    return tuple(
        EngineSpec(f"{role[0]}{number}", role, Timing(speed=1.0 if number < 2 else 2.0))
        for role in ("prefill", "decode")
        for number in range(4)
    )


def load(rate: float, seconds: float, seed: int, noise: Noise, *, bursts: bool) -> Load:
    """Requests for so many seconds, at `rate` a second on average."""
    chance, turns = Random(seed), Random(-1 - seed)  # turns are the same at every rate
    arrivals: list[Arrival] = []
    moment, pace, turn_ends = 0.0, 1.0, math.inf
    if bursts:
        pace, turn_ends = _BURST, turns.expovariate(1 / _TURN_S)
    while True:
        coming = moment + chance.expovariate(rate * pace)
        if coming > turn_ends:
            moment, pace = turn_ends, _BURST + _LULL - pace
            turn_ends += turns.expovariate(1 / _TURN_S)
            continue
        moment = coming
        if moment > seconds:
            return arrivals
        arrivals.append(_arrival(moment, chance, noise))


def _arrival(moment: float, chance: Random, noise: Noise) -> Arrival:
    prompt = min(round(chance.lognormvariate(_PROMPT_MU, _PROMPT_SIGMA)), _LONGEST_PROMPT)
    output = min(round(chance.lognormvariate(_OUTPUT_MU, _OUTPUT_SIGMA)), _LONGEST_OUTPUT)
    return Arrival(moment, max(1, prompt), max(1, output), noise(chance), noise(chance))
