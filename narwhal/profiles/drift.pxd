# Types of the hot path; see docs/design.md.

import cython

cdef class _Engine:
    cdef public object state, score
    cdef public double baseline, seen_s, predicted_s
    cdef public long long windows, high, low, samples

cdef class Drift:
    cdef list _engines
    cdef double _closes_at

    @cython.locals(row=_Engine)
    cpdef observe(self, Py_ssize_t engine, double predicted_s, double seen_s)

    @cython.locals(row=_Engine)
    cpdef bint calm(self, Py_ssize_t engine)
