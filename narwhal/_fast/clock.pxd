# The one clock of the hot path: CLOCK_MONOTONIC in seconds, the same as time.monotonic().

from libc.time cimport time_t

cdef extern from "<time.h>" nogil:
    ctypedef int clockid_t
    cdef struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(clockid_t clock, timespec* out)
    clockid_t CLOCK_MONOTONIC

cdef inline double now() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <double>t.tv_sec + <double>t.tv_nsec * 1e-9
