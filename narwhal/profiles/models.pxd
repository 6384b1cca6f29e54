# Types of the hot path; see docs/design.md.

import cython
from cpython.array cimport array

from narwhal._fast.columns cimport set_real, set_whole
from narwhal.profiles.drift cimport Drift
from narwhal.profiles.model cimport EngineModel, Work

cdef class FleetModels:
    cdef readonly list engines
    cdef readonly tuple drift, surcharge
    cdef readonly array prefill_a, prefill_b, prefill_c, prefill_edge, prefill_hi
    cdef readonly array prefill_lo, prefill_shift, prefill_spread, prefill_sure
    cdef readonly array interval_c, interval_hi, interval_kv_hi, interval_kv_reach, interval_n_reach
    cdef readonly array interval_p, interval_q, interval_sure
    cdef readonly array handoff_b, handoff_c, handoff_edge, handoff_hi, handoff_shift
    cdef readonly array handoff_sure

    @cython.locals(model=EngineModel, work=Work)
    cpdef learn_prefill(self, Py_ssize_t engine, double tokens, double seen_s)

    @cython.locals(model=EngineModel, work=Work)
    cpdef learn_interval(self, Py_ssize_t engine, double running, double kv_tokens, double seen_s)

    @cython.locals(model=EngineModel)
    cpdef learn_handoff(self, Py_ssize_t engine, double tokens, double seen_s)

    @cython.locals(drift=Drift)
    cdef _watch(self, Py_ssize_t engine, int phase, Work work, (double, double, double) terms, double seen_s)

    @cython.locals(model=EngineModel, work=Work, a=double, b=double, c=double)
    cdef _refresh_prefill(self, Py_ssize_t engine)

    @cython.locals(model=EngineModel, work=Work, p=double, q=double, c=double)
    cdef _refresh_interval(self, Py_ssize_t engine)

    @cython.locals(model=EngineModel, work=Work, b=double, c=double)
    cdef _refresh_handoff(self, Py_ssize_t engine)
