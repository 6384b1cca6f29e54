# Types of the hot path; see docs/design.md.

cdef class Histogram:
    cdef public tuple bounds
    cdef public object counts
    cdef public double sum

    cpdef observe(self, double value)
