"""What would miss its targets is turned away, when it comes or while it waits, and is told why in figures."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.admission.grant import Grant
from narwhal.admission.line import SeatRequest
from narwhal.fleet.table import Phase
from narwhal.outcomes import Ending
from narwhal.profiles.model import EngineModel
from tests.unit.fleets import Engine, Rooms, paced

PREFILL, DECODE = Phase.PREFILL, Phase.DECODE
PACE = 0.001  # seconds a prompt token


def fleet_of(*, prefill: int = 1, seats: int = 1, handoff_s: float = 0.0, **limits: Any) -> Rooms:
    """Prefill engines of one pace, and a decode engine of 10 ms a token and 1 ms a sequence."""
    engines = [Engine(f"p{n}", "prefill", seats) for n in range(prefill)]
    engines.append(Engine("d", "decode", 1, 4, 10_000))
    return Rooms(engines, [*[paced(PACE)] * prefill, paced(0, 0.01, handoff_s)], **limits)


class Client:
    """One request at the door, and what became of it."""

    def __init__(self, rooms: Rooms, tokens: int, arrived: float, budget_s: float, **more: Any) -> None:
        self.door = rooms.door
        self.grant: Grant | None = None
        self.ending: Ending | None = None
        self.request = SeatRequest(
            PREFILL,
            arrived,
            more.pop("avoid", frozenset()),
            self.granted,
            self.ended,
            tokens=tokens,
            target=arrived + budget_s,
            refusable=more.pop("refusable", True),
            **more,
        )

    def granted(self, grant: Grant) -> None:
        self.grant = grant

    def ended(self, ending: Ending) -> None:
        self.ending = ending

    def ask(self, now: float | None = None) -> Client:
        try:
            self.grant = self.door.ask(self.request, self.request.arrived if now is None else now)
        except Ending as ending:
            self.ending = ending
        return self


def come(rooms: Rooms, tokens: int, arrived: float = 0.0, budget_s: float = 2.0, **more: Any) -> Client:
    return Client(rooms, tokens, arrived, budget_s, **more).ask()


def test_a_prompt_that_alone_exceeds_the_budget_is_refused_for_good_with_both_figures() -> None:
    rooms = fleet_of(prefill=2, handoff_s=0.1)
    ending = come(rooms, 3000).ending
    assert ending is not None
    assert (ending.name, ending.http_status) == ("prompt_exceeds_ttft", 429)
    assert ending.headers() == [("x-should-retry", "false")]
    alone = ending.details["projected_ttft_s"]
    assert alone == pytest.approx(3.1, rel=0.2)  # and something for chance
    assert f"{alone:.3g} s" in ending.message
    assert "budget is 2 s" in ending.message
    assert "shorten the prompt or raise the target" in ending.message
    assert ending.details["budget_s"] == 2.0


def test_one_whom_the_line_makes_late_is_refused_at_once_and_told_when_to_come_back() -> None:
    rooms = fleet_of(handoff_s=0.1)
    assert come(rooms, 1000).grant
    waits = come(rooms, 500)
    assert not waits.grant
    assert not waits.ending
    ending = come(rooms, 1500).ending
    assert ending is not None
    assert (ending.name, ending.http_status) == ("ttft_projected", 429)
    parts = ending.details["parts"]
    assert parts == {
        "elapsed_s": 0.0,
        "wait_s": pytest.approx(1.5),
        "prefill_s": pytest.approx(1.5),
        "handoff_s": pytest.approx(0.1),
        "spread_s": pytest.approx(0.08),  # no more than a share of the budget
    }
    assert ending.details["projected_ttft_s"] == pytest.approx(sum(parts.values()), abs=1e-5)
    assert ending.details["engine"] == "p0"
    assert ending.headers() == [("retry-after", "2")]  # 3.4 s and the budget is 2


def test_what_a_request_has_waited_already_counts_against_it() -> None:
    rooms = fleet_of()
    assert Client(rooms, 1500, arrived=0.0, budget_s=2.0).ask(now=0.1).grant
    rooms = fleet_of()
    late = Client(rooms, 1500, arrived=0.0, budget_s=2.0).ask(now=0.5)
    assert late.ending
    assert (late.ending.name, late.ending.details["parts"]["elapsed_s"]) == ("ttft_projected", 0.5)


def test_one_who_waits_is_turned_away_as_soon_as_it_can_no_longer_make_it() -> None:
    rooms = fleet_of()
    runs, waits = come(rooms, 1000), come(rooms, 500)
    rooms.door.look_again(1.2)
    assert waits.ending is None  # late by 0.2 s: 0.2 s more are expected
    rooms.door.look_again(1.5)
    assert waits.ending
    assert waits.ending.name == "ttft_projected"
    assert rooms.door.waiting(PREFILL) == 0
    assert runs.grant
    runs.grant.release_all(1.6)
    assert rooms.table.idle


def test_a_leg_that_ends_late_turns_away_whom_it_made_late_and_seats_the_next() -> None:
    rooms = fleet_of(prefill=1)
    runs, long, short = come(rooms, 500), come(rooms, 1100), come(rooms, 50, budget_s=3.0)
    assert runs.grant
    runs.grant.release_all(0.95)
    assert long.ending
    assert long.ending.name == "ttft_projected"
    assert short.grant


def test_one_who_was_tried_before_or_may_not_be_refused_is_let_in_late_or_not() -> None:
    rooms = fleet_of(prefill=2, seats=8)
    assert come(rooms, 9000, refusable=False).grant
    assert come(rooms, 9000, refusable=False, avoid=frozenset({0})).grant
    assert rooms.placement.unserved[PREFILL] == 2


def test_a_long_prompt_does_not_take_room_on_an_engine_that_is_too_slow_for_it() -> None:
    engines = [Engine("fast", "prefill"), Engine("slow", "prefill")]
    rooms = Rooms(engines, [paced(PACE), paced(3 * PACE)])
    runs = come(rooms, 500)
    assert runs.grant
    assert runs.grant.engine == 0
    long = come(rooms, 1000)
    assert not long.grant  # though the slow one is free
    assert not long.ending
    short = come(rooms, 400)
    assert short.grant
    assert short.grant.engine == 1
    runs.grant.release_all(0.5)
    assert long.grant
    assert long.grant.engine == 0


def test_an_engine_that_is_thought_too_slow_gets_a_request_now_and_then_and_may_show_otherwise() -> None:
    rooms = fleet_of()
    rooms.models.learn_prefill(0, 1000, 16.0)  # once it hung
    for _ in range(20):
        rooms.models.learn_prefill(0, 1000, 4.0)
    refused = come(rooms, 1000, arrived=5.0)
    assert refused.ending
    assert refused.ending.name == "prompt_exceeds_ttft"
    now, tried = 5.0, 0
    while come(rooms, 1000, arrived=now).ending:
        now += 11.0
        client = come(rooms, 1000, arrived=now)
        assert client.grant
        assert come(rooms, 1000, arrived=now + 0.5).ending, "only one at a time"
        client.grant.prefilled(1000, now + 1.0)
        client.grant.release_all(now + 1.0)
        now, tried = now + 2.0, tried + 1
    assert 0 < tried < 20


def test_an_idle_decode_engine_that_is_thought_too_slow_is_tried_again_in_time() -> None:
    rooms = fleet_of()
    assert come(rooms, 10, tpot_s=0.005).ending
    assert come(rooms, 10, arrived=11.0, tpot_s=0.005).grant
    assert come(rooms, 10, arrived=11.1, tpot_s=0.005).ending


def test_while_nothing_is_known_everybody_may_come_in() -> None:
    rooms = Rooms([Engine("p", "prefill")], [EngineModel()])
    assert come(rooms, 10**6, budget_s=0.001).grant
    assert come(rooms, 10**6, budget_s=0.001).ending is None


def test_a_request_that_would_push_every_decode_engine_over_its_interval_is_refused() -> None:
    rooms = fleet_of()
    assert come(rooms, 10, tpot_s=0.0111, output_tokens=10).grant
    ending = come(rooms, 10, tpot_s=0.0111, output_tokens=10).ending  # the first will be there by then
    assert ending is not None
    assert (ending.name, ending.headers()) == ("tpot_projected", [("retry-after", "1")])
    assert ending.details == {"projected_tpot_s": pytest.approx(0.012), "target_s": 0.0111, "engine": "d"}
    assert come(rooms, 10, tpot_s=0.02, output_tokens=10).ending is None


def test_a_request_for_whose_kv_cache_there_will_be_no_room_is_refused() -> None:
    rooms = fleet_of(prefill=2, seats=8)
    assert come(rooms, 1000, output_tokens=5000).grant
    ending = come(rooms, 1000, output_tokens=3500).ending
    assert ending is not None
    assert (ending.name, ending.headers()) == ("kv_projected", [("retry-after", "1")])
    assert ending.details == {"kv_tokens": 4500, "free_kv_tokens": 4000, "engine": "d"}


def test_only_a_prompt_that_no_kv_cache_holds_is_refused_for_good() -> None:
    """How long its answer would be is a guess, and another one tomorrow."""
    rooms = fleet_of(prefill=2, seats=8)
    for tokens, output_tokens, advice in [
        (1000, 20_000, ("retry-after", "1")),
        (10_000, 1, ("retry-after", "1")),
        (10_001, 0, ("x-should-retry", "false")),
    ]:
        ending = come(rooms, tokens, output_tokens=output_tokens, budget_s=100.0).ending
        assert ending is not None
        assert (ending.name, ending.headers()) == ("kv_projected", [advice])


def test_too_few_decode_seats_make_a_request_late() -> None:
    rooms = fleet_of(prefill=4)
    for _ in range(4):
        rooms.work.begin_decode(4, 10, 1000, now=0.0)
        rooms.table.take(4, DECODE)
    ending = come(rooms, 100, output_tokens=1000).ending
    assert ending is not None
    assert ending.name == "ttft_projected"
    assert ending.details["parts"]["handoff_s"] > 2


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "end", "leave", "look"]),
        st.integers(0, 9),
        st.sampled_from([20, 200, 900, 2500]),
        st.sampled_from([0.5, 2.0, math.inf]),
        st.sampled_from([0.0, 0.1, 0.6]),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(
    paces=st.lists(st.sampled_from([PACE, 2 * PACE]), min_size=1, max_size=3),
    depth_s=st.sampled_from([0.1, 10.0]),
    steps=STEPS,
)
def test_whatever_happens_nobody_waits_who_could_use_a_seat_and_nothing_is_left_behind(
    paces: list[float], depth_s: float, steps: list[tuple[str, int, int, float, float]]
) -> None:
    rooms = Rooms([Engine(f"p{n}", "prefill", 2) for n in range(len(paces))], [paced(pace) for pace in paces])
    rooms.table.set_depth(depth_s)
    now, clients = 0.0, list[Client]()
    for doing, which, tokens, budget_s, passes in steps:
        now += passes
        running = [c for c in clients if c.grant and c.grant.held]
        waiting = [c for c in clients if not c.grant and not c.ending]
        if doing == "come":
            clients.append(come(rooms, tokens, now, budget_s, refusable=budget_s < math.inf))
        elif doing == "end" and running:
            grant = running[which % len(running)].grant
            assert grant
            grant.prefilled(tokens, now)
            grant.release_all(now)
        elif doing == "leave" and waiting:
            client = waiting[which % len(waiting)]
            rooms.door.leave(client.request, now)
            client.ending = Ending("disconnected")
        else:
            rooms.door.look_again(now)
        waiting = [c for c in clients if not c.grant and not c.ending]
        assert rooms.door.waiting(PREFILL) == len(waiting)
        for request in (client.request for client in waiting):
            for engine in range(len(paces)):
                if rooms.table.has_room(engine):
                    rooms.board.note(request, engine, now)
                    parts = (request.wait_s, request.prefill_s, request.handoff_s, request.spread_s)
                    assert request.refusable
                    assert now + sum(parts) > request.target - 1e-9
    for client in clients:
        rooms.door.leave(client.request, now)
    for client in clients:
        if client.grant:
            client.grant.release_all(now)
    assert rooms.table.idle
    assert rooms.door.waiting(PREFILL) == 0


def test_a_prompt_far_longer_than_any_seen_is_let_in_and_keeps_nobody_out_for_long() -> None:
    """Traffic that showed one length doesn't tell which term of the curve the time goes by."""
    rooms = Rooms([Engine("p", "prefill", 8), Engine("d", "decode", 1, 64)])
    for _ in range(60):
        rooms.models.learn_prefill(0, 50, 0.02)
        rooms.models.learn_interval(1, 8, 400, 0.02)
    huge = [come(rooms, 64_000, budget_s=1.0, tpot_s=0.05) for _ in range(4)]
    assert not any(client.ending for client in huge)
    assert huge[0].grant is not None
    assert come(rooms, 50, budget_s=0.01).ending is not None  # of these lengths it is known
    assert come(rooms, 50, budget_s=20.0).ending is None


def test_where_no_prompt_is_short_enough_the_length_of_this_one_is_not_blamed() -> None:
    rooms = fleet_of(handoff_s=0.1)
    ending = come(rooms, 3, budget_s=0.05).ending
    assert ending is not None
    assert ending.name == "prompt_exceeds_ttft"
    assert ending.message.startswith("even after a prompt of one token the first takes 0.1")
    assert "budget is 0.05 s; raise the target" in ending.message
    assert "shorten" not in ending.message
    assert "3 tokens" not in ending.message
