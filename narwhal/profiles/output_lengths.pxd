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
    cdef dict _histograms

    @cython.locals(histogram=_Histogram)
    cpdef learn(self, long long prompt_tokens, max_tokens, long long output_tokens)

    @cython.locals(histogram=_Histogram, most=double)
    cpdef double expect(self, long long prompt_tokens, max_tokens, double quantile=*)

cdef tuple _keys(long long prompt_tokens, max_tokens)
