# Types of the hot path; see docs/design.md.

from narwhal._fast.price cimport Board
from narwhal.admission.line cimport Line, SeatRequest
from narwhal.fleet.table cimport FleetTable
from narwhal.fleet.work cimport Work
from narwhal.profiles.correction cimport Correction

cdef class Predictor:
    cdef readonly Correction waits
    cdef FleetTable _table
    cdef Work _work
    cdef Board _board
    cdef double _output_tokens
    cdef long long _requests

    cpdef expect(self, SeatRequest request, Line line, double now)
    cpdef judge(self, SeatRequest request, Line line, engine, double now)

cdef double _CAUTION, _ON_ARRIVAL, _LEAST_FACTOR, _MOST_FACTOR, _WAITS, _STALE_S
