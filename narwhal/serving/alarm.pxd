# Types of the hot path; see docs/design.md.

cdef class Alarm:
    cdef object _loop, _ring, _handle
    cdef double _when, _armed_for

    cpdef set(self, double when)
