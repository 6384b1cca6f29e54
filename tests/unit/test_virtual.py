"""Virtual time: engines take as long as their curves say, and the router's rooms keep their word before
them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from bench.goodput import LOADS, WAYS, Figures, Job, Results, run, shortfalls
from bench.loads import fleet, load
from bench.virtual_router import Policy, Setting, VirtualRouter
from narwhal.sim.timing import Curve, Interval, Timing
from narwhal.sim.virtual import Clock, DecodeEngine, Noise, PrefillEngine

STILL = Noise(0.0)


@dataclass
class Work:
    """A prompt and an answer, and when things happened to it."""

    clock: Clock
    prompt_tokens: int = 100
    output_tokens: int = 1
    prefill_noise: float = 1.0
    moments: list[float] = field(default_factory=list)

    def note(self) -> None:
        self.moments.append(round(self.clock.now, 6))

    prefilled = first_token = decoded = note


def play(clock: Clock) -> None:
    while clock.step():
        pass


def test_prompts_are_prefilled_one_after_another() -> None:
    clock = Clock()
    engine = PrefillEngine(clock, Timing(prefill=Curve(b=0.001, c=0.01), speed=2.0))
    first, second = Work(clock), Work(clock, prompt_tokens=300, prefill_noise=2.0)
    clock.at(1.0, engine.submit, first)
    clock.at(1.0, engine.submit, second)
    play(clock)
    assert (first.moments, second.moments) == ([1.055], [1.365])
    assert engine.busy_s == pytest.approx(0.365)


def test_a_batch_steps_together_and_the_longer_the_more_is_in_it() -> None:
    clock = Clock()
    timing = Timing(interval=Interval(base=0.1, per_seq=0.01, per_kv_token=0.0001))
    engine = DecodeEngine(clock, timing, STILL, seed=0)
    first, second = Work(clock, output_tokens=3), Work(clock, prompt_tokens=200, output_tokens=1)
    clock.at(0.0, engine.join, first)
    clock.at(0.05, engine.join, second)
    play(clock)
    # Steps of 0.1 + 0.01 + 0.01; with both, 0.1 + 0.02 + 0.0301; then alone again, with 102 tokens.
    assert first.moments == [0.12, 0.3903]
    assert second.moments == [0.2701, 0.2701]


def router(share: float, seconds: float, seed: int = 3) -> VirtualRouter:
    setting = Setting(fleet())
    return VirtualRouter(
        setting, Policy(), load(share * 86, seconds, seed, setting.noise, bursts=False), seed
    )


def history(of: VirtualRouter) -> list[tuple[float, float | None, float | None]]:
    return [(one.arrival.moment, one.first_at, one.refused_at) for one in of.requests]


def test_what_would_have_come_of_a_request_is_found_without_the_runs_noticing() -> None:
    disturbed, left_alone = router(2.0, 8.0), router(2.0, 8.0)
    refusals = enumerate(disturbed.run(8.0))
    found = [disturbed.let_in(request) for number, request in refusals if number % 40 == 0]
    assert len(found) > 2
    assert all(ttft_s > 1.0 for ttft_s in found)
    list(left_alone.run(8.0))
    assert history(disturbed) == history(left_alone)


def test_a_run_that_is_over_leaves_no_seat_taken_and_no_work_behind() -> None:
    over = router(2.0, 5.0)
    assert len(list(over.run(60.0))) > 10
    assert over.table.idle
    ended = [one.last_at is not None or one.refusal is not None for one in over.requests]
    assert all(ended)


@pytest.mark.parametrize("way", [0, 1, 2, 3], ids=lambda way: WAYS[way].name)
def test_at_twice_what_the_fleet_carries_those_let_in_meet_their_budget_and_those_refused_had_missed_it(
    way: int,
) -> None:
    required = WAYS[way].required
    assert required
    figures = run(Job(way, False, 2.0, 172.0, seed=way, seconds=22.0, judged=8))
    assert figures.judged >= 5
    assert figures.met >= required.met
    assert figures.right >= required.right * figures.judged
    assert figures.goodput >= 0.95 * 86


def test_what_falls_short_of_what_is_required_is_named() -> None:
    def cell(met: int, right: int, good: int) -> Figures:
        return Figures(100, 100, met, good, 50, 50, 100, right, 1.0)

    good: Results = {(0, False, share): cell(97, 90, 95) for share in LOADS}
    assert shortfalls(good) == []
    bad: Results = good | {(0, False, 1.0): cell(96, 89, 95), (0, False, 2.0): cell(100, 100, 90)}
    assert shortfalls(bad) == [
        "predictive, Poisson, load 1: 96.0% of the admitted met the budget, not 97%",
        "predictive, Poisson, load 1: 89.0% of the refused would have missed, not 90%",
        "predictive, Poisson, load 2: goodput falls below 95% of that at capacity",
    ]
