"""A leg goes to the cheapest eligible engine with room: in seconds, or while nothing is known in seats."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal._fast.price import Waiter
from narwhal.fleet.table import FleetTable, Phase, RoleCode
from narwhal.placement.place import NoEligibleEngine
from narwhal.profiles.curves import DecodeCurve, PrefillCurve
from narwhal.profiles.drift import SURCHARGE
from narwhal.profiles.model import EngineModel
from tests.unit.fleets import Engine, Rooms, paced

PREFILL, DECODE = Phase.PREFILL, Phase.DECODE


def prompt(tokens: float = 1000, avoid: frozenset[int] = frozenset()) -> Waiter:
    waiter = Waiter()
    waiter.tokens = tokens
    waiter.avoid = avoid
    return waiter


def place(rooms: Rooms, phase: Phase, waiter: Waiter | None = None, now: float = 0.0) -> int | None:
    return rooms.placement.place(waiter or prompt(), phase, now)


def take(table: FleetTable, engine: int, phase: Phase, count: int = 1) -> None:
    for _ in range(count):
        table.take(engine, phase)


# While nothing is known.


def test_unknown_engines_are_priced_by_the_share_of_their_seats_that_is_taken() -> None:
    rooms = Rooms([Engine("a", "prefill", 2), Engine("b", "prefill", 8)])
    take(rooms.table, 0, PREFILL, 1)
    take(rooms.table, 1, PREFILL, 3)  # more legs, but 3/8 < 1/2
    assert place(rooms, PREFILL) == 1
    assert rooms.placement.offer(PREFILL).rows() == {
        "a": {"share": 0.5, "room": True},
        "b": {"share": 0.375, "room": True},
    }


def test_equals_are_settled_by_the_order_of_ids_not_of_the_file() -> None:
    rooms = Rooms([Engine("p9", "prefill", 3), Engine("p10", "prefill", 6)])
    assert place(rooms, PREFILL) == 1
    take(rooms.table, 0, PREFILL, 1)
    take(rooms.table, 1, PREFILL, 2)
    assert place(rooms, PREFILL) == 1
    known = Rooms([Engine("d9", "decode"), Engine("d10", "decode")], [paced(0, 0.01)] * 2)
    assert place(known, DECODE) == 1


def test_a_decode_leg_never_goes_to_a_prefill_or_a_both_engine() -> None:
    assert place(Rooms([Engine("a", "prefill"), Engine("b", "both"), Engine("c", "decode")]), DECODE) == 2


def test_an_unknown_both_engine_is_priced_by_the_fuller_of_its_phases() -> None:
    rooms = Rooms([Engine("b", "both", 8, 4), Engine("p", "prefill", 8)])
    take(rooms.table, 0, DECODE, 3)
    take(rooms.table, 1, PREFILL, 5)
    assert place(rooms, PREFILL) == 1
    take(rooms.table, 1, PREFILL, 2)
    assert place(rooms, PREFILL) == 0
    take(rooms.table, 0, DECODE, 1)
    assert place(rooms, PREFILL) == 1


def test_all_full_is_a_wait_and_none_eligible_is_an_error_that_says_why() -> None:
    rooms = Rooms([Engine("p0", "prefill"), Engine("p1", "prefill")])
    take(rooms.table, 0, PREFILL)
    take(rooms.table, 1, PREFILL)
    assert place(rooms, PREFILL) is None
    with pytest.raises(NoEligibleEngine, match=r"prefill leg: 2 of 2 are available.*failed on those"):
        place(rooms, PREFILL, prompt(avoid=frozenset({0, 1})))
    rooms.table.set_available(0, False)
    rooms.table.set_available(1, False)
    with pytest.raises(NoEligibleEngine, match=r"0 of 2 are available$"):
        place(rooms, PREFILL)
    with pytest.raises(NoEligibleEngine, match="decode leg: 0 of 0"):
        place(rooms, DECODE)


# Prefill, in seconds.


def test_a_prompt_goes_where_it_will_be_done_first_counting_what_is_left_of_the_work_there() -> None:
    rooms = Rooms([Engine("fast", "prefill", 8), Engine("slow", "prefill", 8)], [paced(0.001), paced(0.002)])
    assert place(rooms, PREFILL, prompt(1000)) == 0
    rooms.work.begin_prefill(0, 1500, 0, 1.5, now=0.0)
    assert place(rooms, PREFILL, prompt(1000), now=0.0) == 1  # 1.5 + 1.0 against 2.0
    assert place(rooms, PREFILL, prompt(1000), now=0.6) == 0  # 0.9 + 1.0 against 2.0
    assert place(rooms, PREFILL, prompt(100), now=0.6) == 1  # 0.9 + 0.1 against 0.2


def test_a_leg_that_is_late_is_expected_to_be_late_as_long_again() -> None:
    rooms = Rooms([Engine("p", "prefill", 8)], [paced(0.001)])
    rooms.work.begin_prefill(0, 1000, 0, 1.0, now=5.0)
    rooms.work.begin_prefill(0, 300, 0, 0.3, now=5.1)
    assert [round(rooms.board.left_s(0, now), 6) for now in (5.0, 5.6, 6.0, 6.5)] == [1.3, 0.7, 0.3, 0.8]


def test_an_unknown_engine_is_taken_to_be_as_its_peers_on_average() -> None:
    engines = [Engine("a", "prefill", 8), Engine("b", "prefill", 8), Engine("new", "prefill", 8)]
    rooms = Rooms(engines, [paced(0.001), paced(0.003), EngineModel()])
    assert rooms.board.prefill_cost_s(2, 1000) == pytest.approx(2.0)


def test_an_engine_that_takes_over_the_other_half_s_work_is_offered_it_from_then_on() -> None:
    rooms = Rooms([Engine("p", "prefill", 2, 2), Engine("d", "decode", 2, 2)], [paced(0.001, 0.01)] * 2)
    assert (place(rooms, PREFILL), place(rooms, DECODE)) == (0, 1)
    rooms.table.set_available(0, False)
    rooms.table.set_roles([1], RoleCode.BOTH)
    assert place(rooms, PREFILL) == 1
    assert rooms.placement.offer(PREFILL).rows() == {"d": {"price_s": 1.0, "room": True}}
    with pytest.raises(NoEligibleEngine):
        place(rooms, DECODE)


def test_an_engine_that_is_new_is_priced_with_the_others() -> None:
    rooms = Rooms([Engine("p5", "prefill", 8)], [paced(0.002)])
    assert place(rooms, PREFILL) == 0
    for number, pace in enumerate((0.003, 0.001)):
        rooms.models.add(paced(pace))
        rooms.table.add(Engine(f"p{number}", "prefill", 8))
        rooms.work.add(0.0)
    assert place(rooms, PREFILL) == 2
    rooms.work.begin_prefill(2, 5000, 0, 5.0, now=0.0)
    assert place(rooms, PREFILL) == 0
    offered = rooms.placement.offer(PREFILL).rows()
    assert {name: row["price_s"] for name, row in offered.items()} == {"p5": 2.0, "p0": 3.0, "p1": 6.0}


def test_past_the_measured_range_a_prompt_costs_no_less_a_token_than_at_its_edge() -> None:
    rooms = Rooms([Engine("p", "prefill")], [EngineModel(PrefillCurve(c=1.0, lo=10, hi=1000))])
    assert rooms.board.prefill_cost_s(0, 1000) == pytest.approx(1.0)
    assert rooms.board.prefill_cost_s(0, 3000) == pytest.approx(3.0)


def test_a_price_beyond_what_was_measured_says_so() -> None:
    models = [EngineModel(PrefillCurve(b=0.001, lo=10, hi=1000)), EngineModel(PrefillCurve(b=0.001))]
    rooms = Rooms([Engine("narrow", "prefill"), Engine("wide", "prefill")], models)
    for tokens, marked in ((5, {"narrow"}), (10, set()), (1000, set()), (1001, {"narrow"})):
        place(rooms, PREFILL, prompt(tokens))
        rows = rooms.placement.offer(PREFILL).rows()
        assert {name for name, row in rows.items() if "extrapolated" in row} == marked
    curves = [DecodeCurve(c=0.01, running_hi=1), DecodeCurve(c=0.01, running_hi=2, kv_hi=500)]
    rooms = Rooms(
        [Engine("few", "decode", 1, 8), Engine("small", "decode", 1, 8)],
        [EngineModel(decode=curve) for curve in curves],
    )
    for tokens, marked in ((500, set()), (501, {"small"})):
        place(rooms, DECODE, prompt(tokens))
        rows = rooms.placement.offer(DECODE).rows()
        assert {name for name, row in rows.items() if "extrapolated" in row} == marked
    take(rooms.table, 0, DECODE)
    place(rooms, DECODE, prompt(1))
    assert rooms.placement.offer(DECODE).rows()["few"]["extrapolated"]


def test_an_engine_on_probation_is_passed_over_for_one_that_is_a_little_slower() -> None:
    rooms = Rooms([Engine("a", "prefill", 8), Engine("b", "prefill", 8)], [paced(0.001), paced(0.0014)])
    rooms.models.surcharge[PREFILL][0] = SURCHARGE
    assert place(rooms, PREFILL) == 1


def test_an_engine_with_enough_work_is_given_no_more_free_seats_or_not() -> None:
    rooms = Rooms([Engine("p", "prefill", 8)], [paced(0.001)])
    rooms.table.set_depth(0.25)
    rooms.work.begin_prefill(0, 200, 0, 0.2, now=0.0)
    assert place(rooms, PREFILL) == 0
    leg = rooms.work.begin_prefill(0, 50, 0, 0.05, now=0.0)
    assert place(rooms, PREFILL) is None
    rooms.work.end_prefill(leg, now=0.2)
    assert place(rooms, PREFILL) == 0


# Decode, in seconds.


def test_a_decode_leg_goes_where_the_token_interval_will_be_the_shortest_once_it_has_joined() -> None:
    rooms = Rooms(
        [Engine("a", "decode", 1, 8), Engine("b", "decode", 1, 8)], [paced(0, 0.01), paced(0, 0.012)]
    )
    assert place(rooms, DECODE) == 0
    take(rooms.table, 0, DECODE, 3)
    assert place(rooms, DECODE) == 1  # 10 ms + 4 * 1 against 12 ms + 1 * 1.2


def test_an_engine_without_room_for_the_kv_cache_is_taken_only_if_all_lack_it_and_that_is_counted() -> None:
    engines = [Engine("small", "decode", 1, 8, 1000), Engine("big", "decode", 1, 8, 5000)]
    rooms = Rooms(engines, [paced(0, 0.01), paced(0, 0.02)])
    waiter = prompt(900)
    waiter.kv = 1100
    assert place(rooms, DECODE, waiter) == 1
    assert rooms.placement.unserved == [0, 0]
    rooms.work.begin_decode(1, 4000, 200, now=0.0)
    assert place(rooms, DECODE, waiter) == 0
    assert rooms.placement.unserved == [0, 1]


def test_the_cheapest_is_taken_though_it_misses_the_target_and_that_is_counted() -> None:
    rooms = Rooms([Engine("d", "decode", 1, 8), Engine("p", "prefill", 8)], [paced(0, 0.02), paced(0.001)])
    waiter = prompt(3000)
    waiter.tpot_s, waiter.target = 0.01, 2.0
    assert place(rooms, DECODE, waiter) == 0
    assert place(rooms, PREFILL, waiter) == 1
    assert rooms.placement.unserved == [1, 1]


def test_the_producer_decodes_only_if_no_other_engine_has_a_seat() -> None:
    rooms = Rooms([Engine("a", "decode"), Engine("b", "decode")], [paced(0, 0.01), paced(0, 0.05)])
    waiter = prompt()
    waiter.producer = 0
    assert place(rooms, DECODE, waiter) == 1
    take(rooms.table, 1, DECODE)
    assert place(rooms, DECODE, waiter) == 0


# All of it against sorting, the obvious way.


@st.composite
def busy_fleets(draw: st.DrawFn) -> Rooms:
    names = draw(st.lists(st.text("ab1", min_size=1, max_size=3), min_size=1, max_size=6, unique=True))
    role, limit = st.sampled_from(["prefill", "decode", "both"]), st.integers(1, 4)
    engines = [Engine(name, draw(role), draw(limit), draw(limit), draw(st.just(1000))) for name in names]
    known = st.sampled_from([None, 0.001, 0.002])
    paces = [draw(known) for _ in engines]
    rooms = Rooms(engines, [EngineModel() if pace is None else paced(pace, pace) for pace in paces])
    for engine in range(len(engines)):
        rooms.table.set_available(engine, draw(st.booleans()))
        if engines[engine].role != "decode":
            for _ in range(draw(st.integers(0, engines[engine].prefill_concurrency))):
                take(rooms.table, engine, PREFILL)
                rooms.work.begin_prefill(engine, 100, 0, draw(st.sampled_from([0.0, 0.25, 0.5])), now=0.0)
        if engines[engine].role != "prefill":
            for _ in range(draw(st.integers(0, engines[engine].decode_concurrency))):
                rooms.work.begin_decode(engine, draw(st.sampled_from([100, 300])), 0, now=0.0)
                take(rooms.table, engine, DECODE)
    return rooms


def obvious_price(rooms: Rooms, engine: int, phase: Phase, tokens: int) -> Fraction | float:
    table, models = rooms.table, rooms.models
    peers = [e for e in table.serving[phase] if models.prefill_sure[e]] if phase is PREFILL else [
        e for e in range(len(table)) if models.interval_sure[e]
    ]  # fmt: skip
    if not peers:
        shares = [Fraction(table.seats[p][engine], table.limit[p][engine]) for p in table.needs(engine)]
        return max(shares)
    if phase is PREFILL:
        costs = [models.prefill_s(e, tokens).seconds for e in ([engine] if engine in peers else peers)]
        return sum(costs) / len(costs) + (table.head_us[engine] + table.queued_us[engine]) / 1e6
    running, kv = table.decode_seats[engine] + 1, table.kv_tokens[engine] + tokens
    costs = [models.interval_s(e, running, kv).seconds for e in ([engine] if engine in peers else peers)]
    return sum(costs) / len(costs)


@settings(max_examples=150, deadline=None)
@given(busy_fleets(), st.sampled_from(Phase), st.frozensets(st.integers(0, 5), max_size=3))
def test_the_choice_is_that_of_sorting_all_engines_by_price_and_id(
    rooms: Rooms, phase: Phase, avoid: frozenset[int]
) -> None:
    table, waiter = rooms.table, prompt(200, avoid)
    waiter.kv = 400
    able = [e for e in table.serving[phase] if table.available[e] and e not in avoid]
    if not able:
        with pytest.raises(NoEligibleEngine):
            place(rooms, phase, waiter)
        return
    prices = {e: obvious_price(rooms, e, phase, 200) for e in able}
    free = [e for e in able if table.has_room(e)]
    lacking = {e: phase is DECODE and table.kv_reserved[e] + 400 > 1000 for e in able}
    chosen = place(rooms, phase, waiter)
    if free:
        assert chosen in free
        least = min((lacking[e], prices[e]) for e in free)
        assert lacking[chosen] == least[0]
        assert math.isclose(prices[chosen], least[1])
        equals = [e for e in free if lacking[e] == least[0] and math.isclose(prices[e], least[1])]
        assert table.ids[chosen] == min(table.ids[e] for e in equals)
    else:
        assert chosen is None
    rows = rooms.placement.offer(phase).rows()
    unit = "share" if rooms.board.by_share else "price_s"
    assert {name: row[unit] for name, row in rows.items()} == {
        table.ids[e]: pytest.approx(float(prices[e]), abs=1e-6) for e in able
    }
    assert {name for name, row in rows.items() if row["room"]} == {table.ids[e] for e in free}
