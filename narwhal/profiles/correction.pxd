# Types of the hot path; see docs/design.md.

import cython

cdef class Correction:
    cdef double _memory, _weight, _size_s, _leaning, _variance, _told
    cdef public double factor
    cdef readonly long long samples

    @cython.locals(weight=double, off=double, usual=double, lean=double, share=double)
    cpdef learn(self, double predicted_s, double seen_s)

cdef double _PRIOR, _MEMORY, _RUN, _OUTLIER, _LEAST_S
