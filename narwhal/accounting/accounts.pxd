# Types of the hot path; see docs/design.md.

import cython

from narwhal.accounting.counters cimport Counters, EngineCounters
from narwhal.accounting.histogram cimport Histogram
from narwhal.accounting.record cimport Attempt, Record

cdef class Accounts:
    cdef object _journal, _slo
    cdef readonly Counters counters
    cdef readonly EngineCounters engines
    cdef readonly Histogram ttft, tpot, body_bytes, loop_lag
    cdef readonly tuple waits
    cdef readonly dict duration
    cdef readonly object good

    cpdef _copy(self, Accounts other)

    @cython.locals(histogram=Histogram, attempt=Attempt)
    cdef _measure(self, Record record, counter, double now)
