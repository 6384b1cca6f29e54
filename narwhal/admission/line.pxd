# Types of the hot path; see docs/design.md.

from narwhal._fast.price cimport Waiter

cdef class SeatRequest(Waiter):
    cdef public object phase, stage, on_grant, on_ending, decided, projected_ttft_s
    cdef public bint again
    cdef public long long output_tokens, order
    cdef public double asked_at, forecast_s

cdef class Line:
    cdef readonly list entries
    cdef list _picky
    cdef readonly double kv
    cdef readonly long long refusable
