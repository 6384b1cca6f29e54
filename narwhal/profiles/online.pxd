# Types of the hot path; see docs/design.md.

from narwhal.profiles.nonnegative cimport NormalEquations

cdef class OnlineFit:
    cdef NormalEquations _equations
    cdef double _growth
    cdef long long _solved_at
    cdef readonly (double, double, double) coefficients
    cdef readonly long long samples
    cdef readonly double weight, error

    cpdef double predict(self, (double, double, double) x)
    cpdef learn(self, (double, double, double) x, double seen_s)
    cpdef bint is_sure(self)

cdef double _NEWS, _MOST_GROWTH
