# What the router's event loop waits in. See selector.pyx.

from libc.stdint cimport uint32_t

from narwhal._fast.awake cimport Expectation
from narwhal._fast.reactor cimport Reactor

cdef class Selector:
    cdef Reactor reactor
    cdef dict keys              # by descriptor: those that are not the reactor's connections
    cdef object queue, timers   # the loop's
    cdef double since           # when the present count of events began
    cdef long seen              # events since then
    cdef long holds             # sleeps since then
    cdef double calm_s          # how long there is no sleep after one that was not worth it
    cdef double calm_until
    cdef bint is_crowded        # in the count before
    cdef bint more              # so many were taken at once that more may wait
    cdef public Expectation expectation

    cdef void watch_rate(self, int count) noexcept
    cdef int control(self, int operation, int fd, int events) except -1
    cdef int add_ready(self, list found, int fd, uint32_t events) except -1
    cpdef list select(self, timeout=*)
