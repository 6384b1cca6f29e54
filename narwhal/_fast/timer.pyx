"""A timer of microseconds on an event loop whose own timers count milliseconds.

A load generator that sends when its loop's timer fires is late by half a millisecond on average, which its
figures would charge to the server. The kernel's timerfd is a descriptor that becomes readable at a given time
of CLOCK_MONOTONIC, so the loop wakes up for it as it does for a socket.
"""

from libc.errno cimport errno
from libc.stdint cimport uint64_t
from libc.time cimport time_t


cdef extern from "<sys/timerfd.h>" nogil:
    cdef struct timespec:
        time_t tv_sec
        long tv_nsec
    cdef struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec* new, itimerspec* old)
    int TFD_NONBLOCK
    int TFD_CLOEXEC
    int TFD_TIMER_ABSTIME

cdef extern from "<time.h>" nogil:
    int CLOCK_MONOTONIC

cdef extern from "<unistd.h>" nogil:
    ssize_t read(int fd, void* p, size_t n)
    int close(int fd)


cdef class Timer:
    cdef object loop
    cdef object call
    cdef int fd

    def __cinit__(self):
        self.fd = -1

    def __init__(self, loop, call):
        """`call` is called in `loop`, without arguments, each time the timer fires. Raises OSError."""
        self.fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self.fd < 0:
            raise OSError(errno, "the system gives no timer")
        self.loop = loop
        self.call = call
        loop.add_reader(self.fd, self.fire)

    def set(self, double at) -> None:
        """Fire once at this reading of time.monotonic(), at once if it is past; in place of what was set."""
        cdef itimerspec when
        if at < 1e-9:
            at = 1e-9  # a zero would disarm it
        when.it_interval.tv_sec = 0
        when.it_interval.tv_nsec = 0
        when.it_value.tv_sec = <time_t>at
        when.it_value.tv_nsec = <long>((at - <time_t>at) * 1e9)
        timerfd_settime(self.fd, TFD_TIMER_ABSTIME, &when, NULL)

    def close(self) -> None:
        """Fire no more; may be called again."""
        if self.fd >= 0:
            self.loop.remove_reader(self.fd)
            close(self.fd)
            self.fd = -1

    def fire(self) -> None:
        """The loop's call: the descriptor is readable."""
        cdef uint64_t times
        if read(self.fd, &times, sizeof(times)) == sizeof(times):
            self.call()
