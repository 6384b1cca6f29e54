"""The fleet's table keeps the balance of seats, and refuses what would upset it."""

from __future__ import annotations

import pytest

from narwhal.fleet.table import Phase
from tests.unit.fleets import Engine, fleet

PREFILL, DECODE = Phase.PREFILL, Phase.DECODE


def test_a_new_fleet_is_idle_and_available() -> None:
    table = fleet(Engine("p0", "prefill", 8, 256), Engine("d0", "decode", 8, 128))
    assert table.idle
    assert list(table.available) == [1, 1]
    assert list(table.prefill_limit) == [8, 8]
    assert list(table.decode_limit) == [256, 128]
    assert [table.index[name] for name in table.ids] == [0, 1]


def test_a_seat_taken_shows_in_its_column_until_it_is_given_back() -> None:
    table = fleet(Engine("p0", "prefill", 2), Engine("d0", "decode"))
    table.take(0, PREFILL)
    table.take(1, DECODE)
    assert (list(table.prefill_seats), list(table.decode_seats)) == ([1, 0], [0, 1])
    assert not table.idle
    table.give(1, DECODE)
    assert not table.idle
    table.give(0, PREFILL)
    assert table.idle


def test_no_seat_is_taken_beyond_the_limit() -> None:
    table = fleet(Engine("p0", "prefill", 1))
    table.take(0, PREFILL)
    with pytest.raises(RuntimeError, match="p0 has no free prefill seat"):
        table.take(0, PREFILL)
    assert table.prefill_seats[0] == 1


def test_no_seat_is_given_back_twice() -> None:
    table = fleet(Engine("d0", "decode"))
    table.take(0, DECODE)
    table.give(0, DECODE)
    with pytest.raises(RuntimeError, match="d0 has no taken decode seat"):
        table.give(0, DECODE)
    assert table.idle


def test_asks_for_a_phase_are_answered_by_its_own_role_and_whole_requests_by_prefill_asks() -> None:
    table = fleet(Engine("b", "both"), Engine("p", "prefill"), Engine("d", "decode"))
    assert table.serving == ((0, 1), (2,))


def test_a_both_engine_has_room_only_with_a_seat_free_in_each_phase() -> None:
    table = fleet(Engine("b", "both", 2, 1))
    assert table.needs(0) == (PREFILL, DECODE)
    assert table.has_room(0)
    table.take(0, DECODE)
    assert not table.has_room(0)
    table.give(0, DECODE)
    table.take(0, PREFILL)
    assert table.has_room(0)
    table.take(0, PREFILL)
    assert not table.has_room(0)


def test_a_lowered_limit_lets_legs_finish_and_takes_no_more_until_there_is_room() -> None:
    table = fleet(Engine("p0", "prefill", 2))
    table.take(0, PREFILL)
    table.take(0, PREFILL)
    table.set_limit(0, PREFILL, 1)
    assert table.prefill_seats[0] == 2
    table.give(0, PREFILL)
    assert not table.has_room(0)
    table.give(0, PREFILL)
    assert table.has_room(0)


def test_a_limit_below_one_is_refused_with_the_engine_and_the_value() -> None:
    table = fleet(Engine("p0", "prefill", 2))
    with pytest.raises(ValueError, match="p0: a limit of 0 seats; at least 1"):
        table.set_limit(0, PREFILL, 0)
    assert table.prefill_limit[0] == 2
