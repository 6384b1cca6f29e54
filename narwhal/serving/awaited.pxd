# Types of the hot path; see docs/design.md.

cdef class Awaited:
    cdef object _loop, _resume, _result, _error
    cdef bint _done, _awaited, _at_once

    cpdef bint done(self)
    cpdef set_result(self, result)
    cpdef set_exception(self, error)
    cdef _settle(self, bint at_once)
