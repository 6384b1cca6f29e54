"""Cells of the fleet's columns, which are arrays of 64-bit integers or of doubles.

To index an array makes a Python number each time, or reads one: more than all else that is done with a cell
on a request's way. These raise IndexError for a row that is not there.
"""

from cpython.array cimport array
from cpython.object cimport Py_SIZE

cdef extern from * nogil:
    bint overflows "__builtin_saddll_overflow" (long long a, long long b, long long* sum)


cdef inline int check(array column, Py_ssize_t row) except -1:
    if not 0 <= row < Py_SIZE(column):
        raise IndexError(f"a column of {Py_SIZE(column)} rows has no row {row}")
    return 0


cpdef long long whole(array column, Py_ssize_t row) except? -1:
    """What a column of integers has in a row."""
    check(column, row)
    return column.data.as_longlongs[row]


cpdef void set_whole(array column, Py_ssize_t row, long long number) except *:
    """Write an integer."""
    check(column, row)
    column.data.as_longlongs[row] = number


cpdef void add_to(array column, Py_ssize_t row, long long number) except *:
    """Add to an integer. Raises OverflowError."""
    cdef long long total = 0
    check(column, row)
    if overflows(column.data.as_longlongs[row], number, &total):
        raise OverflowError(f"row {row} of a column would leave the range of 64 bits")
    column.data.as_longlongs[row] = total


cpdef void set_real(array column, Py_ssize_t row, double number) except *:
    """Write a double."""
    check(column, row)
    column.data.as_doubles[row] = number
