# Types of the hot path; see docs/design.md.

from narwhal.fleet.table cimport FleetTable
from narwhal.fleet.work cimport DecodeLeg, PrefillLeg, Work

cdef class Grant:
    cdef readonly Py_ssize_t engine
    cdef readonly bint both
    cdef readonly tuple held
    cdef readonly object offer
    cdef FleetTable _table
    cdef Work _work
    cdef object _freed
    cdef PrefillLeg _prefill
    cdef DecodeLeg _decode

    cpdef prefilled(self, long long tokens, double now)
    cpdef first_token(self, double now)
    cpdef decoded(self, long long output_tokens, double now)
    cpdef release(self, phase, double now)
    cpdef release_all(self, double now)
    cdef _give(self, phase, double now)
