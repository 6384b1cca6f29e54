"""Of the eligible engines, a leg goes to the one with the fewest legs against its seats, ties by ID."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.fleet.table import FleetTable, Phase
from narwhal.placement.place import NoEligibleEngine, place
from tests.unit.fleets import Engine, fleet

PREFILL, DECODE = Phase.PREFILL, Phase.DECODE
NONE: frozenset[int] = frozenset()


def take(table: FleetTable, engine: int, phase: Phase, count: int = 1) -> None:
    for _ in range(count):
        table.take(engine, phase)


def test_a_leg_goes_to_the_engine_with_the_smallest_share_of_its_seats_taken() -> None:
    table = fleet(Engine("a", "prefill", 2), Engine("b", "prefill", 8))
    take(table, 0, PREFILL, 1)
    take(table, 1, PREFILL, 3)  # more legs, but 3/8 < 1/2
    assert place(table, PREFILL, NONE) == 1


def test_equals_are_settled_by_the_order_of_ids_not_of_the_file() -> None:
    table = fleet(Engine("p9", "prefill", 3), Engine("p10", "prefill", 6))
    assert place(table, PREFILL, NONE) == 1
    take(table, 0, PREFILL, 1)
    take(table, 1, PREFILL, 2)
    assert place(table, PREFILL, NONE) == 1


def test_a_decode_leg_never_goes_to_a_prefill_or_a_both_engine() -> None:
    table = fleet(Engine("a", "prefill"), Engine("b", "both"), Engine("c", "decode"))
    assert place(table, DECODE, NONE) == 2


def test_a_both_engine_is_priced_by_the_fuller_of_its_phases() -> None:
    table = fleet(Engine("b", "both", 8, 4), Engine("p", "prefill", 8))
    take(table, 0, DECODE, 3)
    take(table, 1, PREFILL, 5)
    assert place(table, PREFILL, NONE) == 1
    take(table, 1, PREFILL, 2)
    assert place(table, PREFILL, NONE) == 0
    take(table, 0, DECODE, 1)
    assert place(table, PREFILL, NONE) == 1


def test_all_full_is_a_wait_and_none_eligible_is_an_error_that_says_why() -> None:
    table = fleet(Engine("p0", "prefill"), Engine("p1", "prefill"))
    take(table, 0, PREFILL)
    take(table, 1, PREFILL)
    assert place(table, PREFILL, NONE) is None
    with pytest.raises(NoEligibleEngine, match=r"prefill leg: 2 of 2 are available.*failed on those"):
        place(table, PREFILL, frozenset({0, 1}))
    table.set_available(0, False)
    table.set_available(1, False)
    with pytest.raises(NoEligibleEngine, match=r"0 of 2 are available$"):
        place(table, PREFILL, NONE)
    with pytest.raises(NoEligibleEngine, match="decode leg: 0 of 0"):
        place(table, DECODE, NONE)


@st.composite
def busy_fleets(draw: st.DrawFn) -> FleetTable:
    names = draw(st.lists(st.text("ab1", min_size=1, max_size=3), min_size=1, max_size=6, unique=True))
    role, limit = st.sampled_from(["prefill", "decode", "both"]), st.integers(1, 4)
    table = fleet(*(Engine(name, draw(role), draw(limit), draw(limit)) for name in names))
    for engine in range(len(table)):
        table.set_available(engine, draw(st.booleans()))
        for phase in Phase:
            take(table, engine, phase, draw(st.integers(0, table.limit[phase][engine])))
    return table


@settings(deadline=None)
@given(busy_fleets(), st.sampled_from(Phase), st.frozensets(st.integers(0, 5), max_size=3))
def test_the_choice_is_that_of_sorting_all_engines_by_share_and_id(
    table: FleetTable, phase: Phase, avoid: frozenset[int]
) -> None:
    roles = {PREFILL: (0, 2), DECODE: (1,)}[phase]
    able = [e for e in range(len(table)) if table.role[e] in roles and table.available[e] and e not in avoid]
    ranked = []
    for engine in able:
        prefill = Fraction(table.prefill_seats[engine], table.prefill_limit[engine])
        decode = Fraction(table.decode_seats[engine], table.decode_limit[engine])
        share = (prefill, decode, max(prefill, decode))[table.role[engine]]
        if share < 1:
            ranked.append((share, table.ids[engine], engine))
    if able:
        assert place(table, phase, avoid) == (min(ranked)[2] if ranked else None)
    else:
        with pytest.raises(NoEligibleEngine):
            place(table, phase, avoid)
