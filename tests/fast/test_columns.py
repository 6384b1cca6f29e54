"""A column's cells are those of the array, and what can't be written to it is not."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal._fast.columns import add_to, set_real, set_whole, whole

LONG = st.integers(-(2**63), 2**63 - 1)
FITS = range(-(2**63), 2**63)


@given(st.lists(LONG, min_size=1, max_size=5), st.data())
def test_integers_are_read_written_and_added_to_in_their_row(cells: list[int], data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(cells) - 1))
    number, more = data.draw(LONG), data.draw(LONG)
    column = array("q", cells)
    assert whole(column, row) == cells[row]
    set_whole(column, row, number)
    cells[row] = number
    assert column.tolist() == cells
    if number + more in FITS:
        add_to(column, row, more)
        cells[row] += more
    else:
        with pytest.raises(OverflowError, match=f"row {row} "):
            add_to(column, row, more)
    assert column.tolist() == cells


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=5), st.data())
def test_doubles_are_written_to_their_row(cells: list[float], data: st.DataObject) -> None:
    row, number = data.draw(st.integers(0, len(cells) - 1)), data.draw(st.floats(allow_nan=False))
    column = array("d", cells)
    set_real(column, row, number)
    cells[row] = number
    assert column.tolist() == cells


@given(st.integers(0, 5), st.integers(-(2**40), 2**40))
def test_there_is_no_row_beyond_the_column(rows: int, row: int) -> None:
    if 0 <= row < rows:
        return
    integers, doubles = array("q", [0] * rows), array("d", [0.0] * rows)
    for call in (
        lambda: whole(integers, row),
        lambda: set_whole(integers, row, 1),
        lambda: add_to(integers, row, 1),
        lambda: set_real(doubles, row, 1.0),
    ):
        with pytest.raises(IndexError, match=f"no row {row}"):
            call()
    assert not any(integers)
    assert not any(doubles)
