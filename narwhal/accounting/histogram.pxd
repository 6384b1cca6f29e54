# Types of the hot path; see docs/design.md.

import cython

cdef class Histogram:
    cdef public tuple bounds
    cdef public list counts
    cdef public double sum

    @cython.locals(bound=double, bucket=Py_ssize_t)
    cpdef observe(self, double value)
