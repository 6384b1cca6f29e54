# Types of the hot path; see docs/design.md.

from narwhal._fast.link cimport EngineLink
from narwhal._fast.relay cimport Relay

cdef class Reply:
    cdef readonly int status, retry_after_s
    cdef readonly bytes body

cdef class Leg:
    cdef readonly object future
    cdef object _pool
    cdef list _pieces
    cdef Py_ssize_t _size
    cdef Relay _relay
    cdef bint _paused
    cdef EngineLink _link
