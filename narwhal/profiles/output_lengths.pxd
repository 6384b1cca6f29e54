# Types of the hot path; see docs/design.md.

import cython

cdef class _Histogram:
    cdef list counts
    cdef readonly double total
    cdef long long added
    cdef dict _found

    cpdef add(self, int bucket)
    cpdef double quantile(self, double share)

    @cython.locals(left=double, count=double)
    cdef double _quantile(self, double share)

cdef class OutputLengths:
    cdef list _histograms

    @cython.locals(histogram=_Histogram, index=Py_ssize_t, place=int)
    cpdef learn(self, long long prompt_tokens, max_tokens, long long output_tokens)

    @cython.locals(histogram=_Histogram, most=double, place=int)
    cpdef double expect(self, long long prompt_tokens, max_tokens, double quantile=*)

cdef int _LARGEST, _LIMITS, _ROWS, _STEPS, _BUCKETS


@cython.locals(limit=int, row=int)
cdef Py_ssize_t _index(int place, long long prompt_tokens, max_tokens)


@cython.locals(left=cython.longlong, found=int)
cdef int _power(long long tokens)
