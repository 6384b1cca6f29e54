# Types of the hot path; see docs/design.md.

import cython

from narwhal._fast.body cimport Body

cdef class Usage:
    cdef readonly object cached_tokens, prompt_tokens


@cython.locals(usage=Body, prompt=cython.longlong, cached=cython.longlong)
cpdef Usage read_usage(Body reply)
