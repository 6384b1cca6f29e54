# Types of the hot path; see docs/design.md.

cdef class _Date:
    cdef long long _second
    cdef str _line

    cpdef str line(self)

cpdef bytes head(int status, content_type, length, headers, bint close)
