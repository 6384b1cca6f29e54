# Types of the hot path; see docs/design.md.

from narwhal.profiles.correction cimport Correction
from narwhal.profiles.online cimport OnlineFit

cdef class Range:
    cdef readonly double lo, hi, kv_hi

    cpdef take_in(self, double size, double kv_tokens)

cdef class Candidate:
    cdef readonly Correction correction
    cdef readonly double error
    cdef readonly long long tried

    cpdef learn(self, double predicted_s, double seen_s)

cdef class Work:
    cdef object _measured       # a triple, or None
    cdef readonly object anchor  # likewise
    cdef long long _anchor_due
    cdef OnlineFit _learned
    cdef Range _measured_range, _seen
    cdef Candidate _of_learned, _of_profile
    cdef readonly Correction correction
    cdef readonly Range range
    cdef readonly bint superseded

    cpdef (double, double, double) bare(self)
    cpdef bint by_profile(self)
    cpdef (double, double, double) corrected(self)
    cpdef bint is_sure(self)
    cpdef double shift(self)
    cpdef double edge(self)
    cpdef (double, double) reach(self)
    cpdef double past(self, double tokens)
    cpdef learn(self, (double, double, double) terms, double size, double kv_tokens, double seen_s)
    cdef _compare(self)
    cdef _use(self)
    cpdef bint renew_anchor(self)

cdef class EngineModel:
    cdef readonly Work prefill, handoff, interval

cpdef double value((double, double, double) coefficients, (double, double, double) terms)
