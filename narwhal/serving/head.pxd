# Types of the hot path; see docs/design.md.

cdef class RequestHead:
    cdef readonly str method, path
    cdef readonly dict headers
    cdef readonly bint http11, chunked
    cdef public bint keep_alive
    cdef readonly long long content_length
