# Types of the hot path; see docs/design.md.

from narwhal._fast.price cimport Board, Waiter
from narwhal.fleet.table cimport FleetTable

cdef class Offer:
    cdef tuple _ids, _engines
    cdef bytes _prices, _outside
    cdef bint _by_share

cdef class Placement:
    cdef readonly Board board
    cdef readonly list unserved
    cdef FleetTable _table

    cpdef place(self, Waiter request, phase, double now)
    cpdef Offer offer(self, phase)
