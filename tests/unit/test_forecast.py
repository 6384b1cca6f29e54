"""The line played forward: who gets its turn when, and where, as the engines will take the work."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal._fast.price import Waiter
from narwhal.profiles.model import EngineModel
from tests.unit.fleets import Engine, Rooms, paced

FAST, SLOW = 0.001, 0.002


def waiter(
    tokens: float,
    target: float = math.inf,
    avoid: frozenset[int] = frozenset(),
    *,
    refusable: bool = True,
    caution: float = 0.0,
) -> Waiter:
    one = Waiter()
    one.tokens, one.target, one.avoid, one.refusable, one.caution = tokens, target, avoid, refusable, caution
    return one


def rooms_of(*paces: float, busy: tuple[float, ...] = ()) -> Rooms:
    """Prefill engines of these seconds per token, with so much to do at 0."""
    rooms = Rooms([Engine(f"p{n}", "prefill", 8) for n in range(len(paces))], [paced(pace) for pace in paces])
    for engine, left_s in enumerate(busy):
        rooms.work.begin_prefill(engine, 1, 0, left_s, now=0.0)
    return rooms


def play(rooms: Rooms, line: list[Waiter], newcomer: Waiter | None = None, now: float = 0.0) -> int:
    return rooms.board.forecast([(0.0, n, one) for n, one in enumerate(line)], newcomer, now)


def test_each_goes_in_order_to_the_engine_that_is_free_first() -> None:
    rooms = rooms_of(FAST, SLOW, busy=(1.0, 0.5))
    line = [waiter(1000), waiter(1000), waiter(1000)]
    newcomer = waiter(100)
    assert play(rooms, line, newcomer) == 0
    assert [one.engine for one in (*line, newcomer)] == [1, 0, 0, 1]
    assert [one.wait_s for one in (*line, newcomer)] == pytest.approx([0.5, 1.0, 2.0, 2.5])
    assert [one.prefill_s for one in (*line, newcomer)] == pytest.approx([2.0, 1.0, 1.0, 0.2])
    assert rooms.board.line_s == pytest.approx(2.5)


def test_one_who_would_miss_on_the_engine_that_is_free_first_waits_for_another() -> None:
    rooms = rooms_of(FAST, SLOW, busy=(1.0, 0.5))
    long = waiter(1000, target=2.1)
    assert play(rooms, [long]) == 0
    assert long.engine == 0
    assert long.wait_s == pytest.approx(1.0)


def test_one_who_would_miss_on_each_is_lost_and_does_not_count_for_those_behind() -> None:
    rooms = rooms_of(FAST, SLOW, busy=(1.0, 0.5))
    lost, behind = waiter(1000, target=1.9), waiter(100)
    assert play(rooms, [lost], behind) == 1
    assert (lost.lost, behind.lost) == (True, False)
    assert lost.engine == 0  # it came closest there
    assert lost.wait_s + lost.prefill_s == pytest.approx(2.0)
    assert behind.engine == 1
    assert behind.wait_s == pytest.approx(0.5)


def test_one_who_may_not_be_refused_is_never_lost() -> None:
    rooms = rooms_of(FAST, busy=(1.0,))
    late = waiter(1000, target=0.5, refusable=False)
    assert play(rooms, [late]) == 0


def test_caution_sets_aside_more_the_more_work_is_ahead() -> None:
    rooms = rooms_of(FAST, busy=(1.0,))
    spread = rooms.models.prefill_spread[0]
    near, far = (waiter(1000, caution=2.0, refusable=False, target=100.0) for _ in range(2))
    play(rooms, [near, far])
    assert near.spread_s == pytest.approx(2 * spread * math.sqrt(2))
    assert far.spread_s == pytest.approx(2 * spread * math.sqrt(3))


def test_forecast_waits_are_corrected_by_what_was_learned_of_them() -> None:
    rooms = rooms_of(FAST, busy=(1.0,))
    rooms.board.wait_factor = 1.5
    one = waiter(1000)
    play(rooms, [one])
    assert one.wait_s == pytest.approx(1.5)


def test_while_nothing_is_known_nobody_is_lost() -> None:
    rooms = Rooms([Engine("p", "prefill")], [EngineModel()])
    assert play(rooms, [waiter(10**6, target=0.0)]) == 0


# Long lines, which are not played forward each time.


def long_line(count: int = 4000) -> tuple[Rooms, list[Waiter]]:
    rooms = rooms_of(FAST, SLOW, busy=(1.0, 0.5))
    line = [waiter(100 + n % 7) for n in range(count)]
    play(rooms, line)
    return rooms, line


def test_a_newcomer_stands_behind_all_of_a_long_line_that_is_not_played_again() -> None:
    rooms, line = long_line()
    line[0].tokens = 10**6  # not noticed yet
    newcomer, last, oracle = waiter(100), waiter(100), waiter(100)
    play(rooms, line, newcomer, now=1e-5)
    play(rooms, line, last, now=2e-5)
    line[0].tokens = 100
    fresh = rooms_of(FAST, SLOW, busy=(1.0, 0.5))
    play(fresh, [*line, newcomer], oracle)
    assert last.wait_s == pytest.approx(oracle.wait_s, abs=1e-3)
    assert last.wait_s > 270


def test_a_long_line_is_played_again_when_that_costs_little_of_the_time_that_has_passed() -> None:
    rooms, line = long_line()
    line[0].tokens = 10**6
    play(rooms, line, now=1e-5)
    assert line[0].prefill_s < 1
    play(rooms, line, now=0.01)
    assert line[0].prefill_s >= 1000


def test_an_engine_that_left_is_given_nobody_and_one_that_came_back_is() -> None:
    rooms, line = long_line()
    newcomer, other = waiter(100), waiter(100)
    rooms.table.set_available(0, False)
    play(rooms, line, newcomer, now=1e-5)
    assert newcomer.engine == 1
    rooms.table.set_available(0, True)
    play(rooms, line, other, now=2e-5)
    assert other.engine == 0  # it has none of the line's work
    assert other.wait_s == pytest.approx(1.0, abs=1e-3)


def test_one_who_is_found_lost_is_told_of_once_whoever_had_the_line_played() -> None:
    rooms = rooms_of(FAST, busy=(1.0,))
    lost = waiter(1000, target=1.5)
    entries = [(0.0, 0, lost), (0.0, 1, waiter(10))]
    assert rooms.board.forecast(entries, waiter(10), 0.0) == 1
    assert rooms.board.take_lost(entries) == [lost]
    assert rooms.board.take_lost(entries) == []


def test_of_very_many_who_are_lost_at_once_some_are_told_at_a_time() -> None:
    rooms = rooms_of(FAST, busy=(1.0,))
    entries = [(0.0, n, waiter(1000, target=1.5)) for n in range(700)]
    assert rooms.board.forecast(entries, None, 0.0) == 700
    first = rooms.board.take_lost(entries)
    assert first == [entry[2] for entry in entries[:500]]
    assert rooms.board.take_lost(entries[500:]) == [entry[2] for entry in entries[500:]]


def test_the_work_of_playing_a_line_is_bounded_though_each_would_be_tried_on_every_engine() -> None:
    engines, count = 200, 2000
    rooms = rooms_of(*[1.0] * (engines - 1), FAST)
    line = [waiter(1, target=0.5) for _ in range(count)]  # only the last engine will do, and only for 500
    play(rooms, line)
    assert rooms.board.effort <= 50_000 + 2 * engines + 2 * count
    assert all(one.engine == engines - 1 for one in line[:200])
    assert not any(one.lost for one in line[:200])


WAITERS = st.tuples(
    st.sampled_from([100, 500, 1000]),
    st.sampled_from([math.inf, 1.02, 2.02, 3.02]),  # never just met
    st.frozensets(st.integers(0, 3), max_size=1),
    st.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(
    paces=st.lists(st.sampled_from([FAST, SLOW, 0.0035]), min_size=1, max_size=4),
    busy=st.lists(st.sampled_from([0.0, 0.3, 1.1]), min_size=4, max_size=4),
    line=st.lists(WAITERS, max_size=12),
)
def test_the_forecast_is_that_of_handing_out_the_work_one_by_one(
    paces: list[float], busy: list[float], line: list[tuple[int, float, frozenset[int], bool]]
) -> None:
    rooms = rooms_of(*paces, busy=tuple(busy[: len(paces)]))
    waiters = [waiter(tokens, target, avoid, refusable=can) for tokens, target, avoid, can in line]
    lost = play(rooms, waiters)
    free, count = busy[: len(paces)], 0
    for one in waiters:
        able = [e for e in range(len(paces)) if e not in one.avoid]
        good = [e for e in able if not one.refusable or free[e] + paces[e] * one.tokens <= one.target]
        assert one.lost == (one.refusable and not good)
        count += one.lost
        if good:
            # Of engines that are free at the same moment, either will do.
            assert free[one.engine] == pytest.approx(min(free[e] for e in good), abs=1e-5)
            assert one.engine in good
            assert one.wait_s == pytest.approx(free[one.engine], abs=1e-5)
            free[one.engine] += paces[one.engine] * one.tokens
        elif able:
            closest = min(free[e] + paces[e] * one.tokens for e in able)
            assert one.wait_s + one.prefill_s == pytest.approx(closest, abs=1e-5)
        else:
            assert one.engine == -1
    assert lost == count
