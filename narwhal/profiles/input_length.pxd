# Types of the hot path; see docs/design.md.

import cython


@cython.locals(start=Py_ssize_t, least=double, sample=bytes)
cpdef script_of(bytes body)

cdef class _Learned:
    cdef readonly double tokens_per_byte, weight, error, observed

    @cython.locals(sample=double)
    cdef learn(self, double weight, double error, double prompt_bytes, double prompt_tokens)

cdef class InputLengths:
    cdef dict _learned

    cpdef long long estimate(self, route, double prompt_bytes, script=*)

    @cython.locals(learned=_Learned, weight=double, error=double)
    cpdef learn(self, route, double prompt_bytes, double prompt_tokens, script=*)

    @cython.locals(learned=_Learned)
    cpdef double bytes_per_token(self, route, script=*)
