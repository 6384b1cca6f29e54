# Types of the hot path; see docs/design.md.

cdef class Counters:
    cdef public long long offered, unsized_offered, in_flight, retries, continuations, within_slo
    cdef public dict endings

    cpdef arrive(self)

cdef class EngineCounters:
    cdef public tuple legs
    cdef public object tokens, usage_disagreements, output_after_done
    cdef public list ttft_ratio
    cdef public dict failures

    cpdef leg_started(self, Py_ssize_t engine, phase)
    cpdef projected(self, Py_ssize_t engine, double ratio)
