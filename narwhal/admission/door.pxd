# Types of the hot path; see docs/design.md.

import cython

from narwhal.admission.grant cimport Grant
from narwhal.admission.line cimport Line, SeatRequest
from narwhal.admission.predict cimport Predictor
from narwhal.fleet.table cimport FleetTable
from narwhal.fleet.work cimport Work
from narwhal.placement.place cimport Placement

cdef class Door:
    cdef readonly long long held
    cdef readonly Predictor predictor
    cdef FleetTable _table
    cdef object _readiness, _to_tell
    cdef Placement _placement
    cdef Work _work
    cdef long long _retention_limit, _queue_capacity, _asked
    cdef tuple _lines
    cdef bint _telling

    cpdef hold(self)
    cpdef let_go(self)

    @cython.locals(line=Line)
    cpdef Grant ask(self, SeatRequest request, double now)
    cpdef leave(self, SeatRequest request, double now)
    cdef Grant _grant(self, SeatRequest request, Py_ssize_t engine, double now)
    cdef _tell(self)
