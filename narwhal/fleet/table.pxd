# Types of the hot path; see docs/design.md.

from cpython.array cimport array

from narwhal._fast.columns cimport add_to, whole

cdef class FleetTable:
    cdef readonly tuple ids, serving, limit, seats
    cdef readonly dict index
    cdef readonly array role, available, prefill_limit, decode_limit, prefill_seats, decode_seats
    cdef readonly array head_us, head_due_us, queued_us, squares_us2, coming_kv
    cdef readonly array kv_tokens, kv_reserved, kv_capacity, depth_us

    cpdef asked_for(self, Py_ssize_t engine)
    cpdef tuple needs(self, Py_ssize_t engine)
    cpdef take(self, Py_ssize_t engine, int phase)
    cpdef give(self, Py_ssize_t engine, int phase)
