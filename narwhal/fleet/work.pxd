# Types of the hot path; see docs/design.md.

import cython

from narwhal._fast.columns cimport add_to, set_real, set_whole, whole
from narwhal.fleet.table cimport FleetTable
from narwhal.profiles.models cimport FleetModels

cdef class PrefillLeg:
    cdef readonly Py_ssize_t engine
    cdef readonly long long tokens, kv, cost_us
    cdef readonly double sent

cdef class DecodeLeg:
    cdef readonly Py_ssize_t engine
    cdef readonly long long tokens, kv_most, kv_mean
    cdef readonly double sent
    cdef readonly object first
    cdef double running_then, kv_then

cdef class _Sums:
    cdef double running, kv, up_to, freed

cdef class Work:
    cdef FleetTable _table
    cdef FleetModels _models
    cdef list _legs
    cdef readonly tuple shown
    cdef list _sums

    cpdef PrefillLeg begin_prefill(
        self, Py_ssize_t engine, long long tokens, long long kv, double cost_s, double now
    )

    @cython.locals(sums=_Sums)
    cpdef end_prefill(self, PrefillLeg leg, double now)

    @cython.locals(sums=_Sums)
    cpdef double prefilled(self, PrefillLeg leg, long long tokens, double now)
    cdef _lead(self, PrefillLeg leg, double now)
    cpdef DecodeLeg begin_decode(
        self, Py_ssize_t engine, long long tokens, long long output_tokens, double now
    )

    @cython.locals(sums=_Sums)
    cpdef first_token(self, DecodeLeg leg, double now, bint handed_over)

    @cython.locals(sums=_Sums)
    cpdef decoded(self, DecodeLeg leg, long long output_tokens, double now)
    cpdef end_decode(self, DecodeLeg leg, double now)

    @cython.locals(lasted=double, sums=_Sums)
    cdef _sum_up(self, Py_ssize_t engine, double now)

cdef long long _LEAST_TOKENS, _MOST_US
