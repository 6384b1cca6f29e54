"""What is thought to be left of an engine's work is right again whenever a leg ends, and its ends teach."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.fleet.table import Phase
from narwhal.fleet.work import PrefillLeg, Work
from narwhal.profiles.models import FleetModels
from tests.unit.fleets import Engine, Rooms, paced


def one_of_each() -> Rooms:
    return Rooms(
        [Engine("p", "prefill", 8), Engine("d", "decode", 1, 8)], [paced(0.001), paced(0, 0.01, 0.005)]
    )


def begin(work: Work, tokens: int, now: float) -> PrefillLeg:
    return work.begin_prefill(0, tokens, tokens, tokens / 1000, now)


def test_a_leg_that_ends_early_or_late_puts_those_behind_it_right() -> None:
    rooms = one_of_each()
    first, second, third = (begin(rooms.work, tokens, now=0.0) for tokens in (1000, 500, 250))
    assert rooms.board.left_s(0, 0.4) == pytest.approx(1.35)
    rooms.work.end_prefill(first, now=0.6)
    assert rooms.board.left_s(0, 0.6) == pytest.approx(0.75)
    rooms.work.end_prefill(third, now=0.7)  # it went away from the middle of things
    assert rooms.board.left_s(0, 0.7) == pytest.approx(0.4)
    rooms.work.end_prefill(second, now=2.0)
    assert rooms.board.left_s(0, 2.0) == 0
    assert rooms.table.idle


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5000), st.integers(0, 9)), max_size=60))
def test_what_is_left_is_the_sum_over_the_legs_and_nothing_when_all_have_ended(
    steps: list[tuple[bool, int, int]],
) -> None:
    rooms, legs, due = one_of_each(), list[PrefillLeg](), 0.0
    for now, (comes, tokens, which) in enumerate(steps):
        if comes or not legs:
            legs.append(begin(rooms.work, tokens, float(now)))
            if len(legs) == 1:
                due = now + tokens / 1000
        else:
            which %= len(legs)
            rooms.work.end_prefill(legs.pop(which), float(now))
            if which == 0 and legs:
                due = now + legs[0].tokens / 1000
        head = abs(due - now) if legs and legs[0].tokens else 0.0
        rest = sum(leg.tokens / 1000 for leg in legs[1:])
        assert rooms.board.left_s(0, float(now)) == pytest.approx(head + rest)
        assert rooms.table.coming_kv[0] == sum(leg.tokens for leg in legs)
    for leg in legs:
        rooms.work.end_prefill(leg, 1e6)
    assert rooms.table.idle


def test_a_prompt_teaches_the_time_that_the_engine_had_for_it() -> None:
    rooms = one_of_each()
    legs = [begin(rooms.work, 1000, now=10.0 + n / 10) for n in range(3)]
    for leg, end in zip(legs, (12.0, 14.0, 16.0), strict=True):
        assert rooms.work.prefilled(leg, 1000, end) == 2.0
        rooms.work.end_prefill(leg, end)
    late = begin(rooms.work, 1000, now=100.0)
    assert rooms.work.prefilled(late, 1000, 102.0) == 2.0
    assert rooms.models.prefill_s(0, 1000).seconds == pytest.approx(2.0, rel=0.2)  # the profile said 1


def test_even_absurd_costs_are_added_up_and_taken_out_again() -> None:
    rooms = one_of_each()
    legs = [rooms.work.begin_prefill(0, 1000, 0, 1e9, now=0.0) for _ in range(100)]
    assert rooms.board.left_s(0, 0.0) == pytest.approx(1e11)
    for leg in legs:
        rooms.work.end_prefill(leg, now=1.0)
    assert rooms.table.idle


def test_a_stream_teaches_its_pace_with_the_mean_batch_it_ran_in() -> None:
    rooms, learned = one_of_each(), []

    class Taught(FleetModels):
        def learn_interval(self, engine: int, running: float, kv_tokens: float, seen_s: float) -> None:
            learned.append((engine, running, kv_tokens, seen_s))

    models = Taught(rooms.models.engines)
    table = rooms.table
    work = Work(table, models, 0.0)

    def join(now: float) -> object:
        leg = work.begin_decode(1, 100, 40, now)
        table.take(1, Phase.DECODE)
        return leg

    first = work.begin_decode(1, 100, 40, 0.0)
    table.take(1, Phase.DECODE)
    work.first_token(first, 1.0, handed_over=True)
    join(2.0)
    work.decoded(first, 11, 3.0)  # alone for a second, in company for another
    assert learned == [(1, 1.5, 180.0, 0.2)]
    assert models.handoff_s(1, 100).seconds > 0.005  # the profile's, and it took a second


def test_short_streams_and_those_without_a_first_token_teach_nothing() -> None:
    rooms = one_of_each()
    leg = rooms.work.begin_decode(1, 100, 40, 0.0)
    rooms.work.decoded(leg, 50, 1.0)
    rooms.work.first_token(leg, 1.0, handed_over=False)
    rooms.work.decoded(leg, 2, 9.0)
    assert rooms.models.interval_s(1, 1, 0).seconds == pytest.approx(0.011)
    assert rooms.models.handoff_s(1, 100).seconds == pytest.approx(0.005)
