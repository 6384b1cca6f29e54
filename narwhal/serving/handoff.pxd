# Types of the hot path; see docs/design.md.

cdef class Handoff:
    cdef readonly bytes params
    cdef public object cached_tokens
    cdef readonly double expires
    cdef readonly Py_ssize_t producer
    cdef object _lifecycle
    cdef long long _generation
    cdef bint _held

    cpdef let_go(self)
