"""The selector of the router's event loop: it waits for everybody, and serves plain connections itself.

asyncio's loop asks its selector which descriptors are ready and then makes a call for each. A reactor that is
one of those descriptors is waited for twice for each event, and its call goes through the loop's queue. So
here the reactor's epoll instance is the selector's own: its connections are served from within `select`,
which returns only when the loop has something to do: another descriptor is ready, a call was queued, a timer
was set or is due.

To be woken costs as much as to relay an event. So while thousands of events come in a second, and the loop
has nothing else to do, the selector does not wait for the next event but lets a few come: it sleeps 0.4 ms,
then takes what is there. A loop that is busy, or had many events at once just now, does not sleep, and one
that is quiet is woken at once. Nor does one whose events come one by one, however fast, since each answers
what the last one brought about: a single client that asks again and again would only be held up. For that
one the loop does not sleep at all (awake.pyx).
"""

from libc.errno cimport EINTR, errno
from libc.math cimport ceil
from libc.stdint cimport uint32_t

import os
from selectors import SelectorKey

from narwhal._fast.awake cimport AWAKE_S, Expectation
from narwhal._fast.clock cimport now, timespec
from narwhal._fast.epoll cimport (
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, epoll_ctl, epoll_event, epoll_wait,
)
from narwhal._fast.reactor cimport Reactor


cdef enum:
    A_TURN = 256    # ready descriptors that are taken at once
    MANY = 32       # of them at once: there is no need to let more come
    READ = 1        # selectors.EVENT_READ
    WRITE = 2       # selectors.EVENT_WRITE


cdef extern from "<time.h>" nogil:
    int nanosleep(const timespec* length, timespec* rest)

cdef double CROWD = 7000        # events a second, two in a hold, from which they are let come together ...
cdef double WINDOW_S = 0.01     # ... over this time at least
cdef long HOLD_NS = 400_000     # for how long; half of it holds an event up on average
cdef int A_CROWD = 32           # connections: fewer have nothing to bring together
cdef double FEW = 2             # events in a hold that are not worth it
# How long after a hold that was not worth it there is none, at first and at most.
cdef double FIRST_CALM_S = 0.1
cdef double LONGEST_CALM_S = 10


cdef class Selector:
    """A selectors.BaseSelector as far as asyncio's loops use one."""

    def __init__(self, Reactor reactor not None):
        self.reactor = reactor
        self.keys = {}
        self.queue = self.timers = ()
        self.expectation = Expectation()

    def serve_for(self, queue, timers) -> None:
        """`select` is to return when the loop's queue of calls has one, or when it has another timer."""
        self.queue, self.timers = queue, timers

    @property
    def crowded(self) -> bool:
        """Whether so many events come that they are taken together."""
        return self.is_crowded

    def register(self, fileobj, int events, data=None):
        """See BaseSelector. Raises KeyError, OSError."""
        cdef int fd = descriptor(fileobj)
        if fd in self.keys:
            raise KeyError(f"{fd} is registered already")
        self.control(EPOLL_CTL_ADD, fd, events)
        key = self.keys[fd] = SelectorKey(fileobj, fd, events, data)
        return key

    def modify(self, fileobj, int events, data=None):
        """See BaseSelector. Raises KeyError, OSError."""
        cdef int fd = descriptor(fileobj)
        if self.keys[fd].events != events:
            self.control(EPOLL_CTL_MOD, fd, events)
        key = self.keys[fd] = SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj):
        """See BaseSelector. Raises KeyError."""
        cdef epoll_event none
        cdef int fd = descriptor(fileobj)
        key = self.keys.pop(fd)
        # It may have been closed before, and is then in the instance no more.
        epoll_ctl(self.reactor.epoll, EPOLL_CTL_DEL, fd, &none)
        return key

    def get_key(self, fileobj):
        """See BaseSelector. Raises KeyError."""
        return self.keys[descriptor(fileobj)]

    def get_map(self):
        """What is registered, by descriptor."""
        return self.keys

    def close(self) -> None:
        """Forget what was registered; the instance is closed with its reactor."""
        self.keys.clear()

    cdef int control(self, int operation, int fd, int events) except -1:
        cdef epoll_event event
        event.events = (EPOLLIN if events & READ else 0) | (EPOLLOUT if events & WRITE else 0)
        event.data.u64 = <uint32_t>fd   # with no generation: it is not the reactor's
        if epoll_ctl(self.reactor.epoll, operation, fd, &event) < 0:
            raise OSError(errno, os.strerror(errno))
        return 0

    cpdef list select(self, timeout=None):
        """Serve connections until the loop has something to do, or `timeout` seconds are over.

        Returns (key, events) for each descriptor that was registered and is ready. Raises OSError.
        """
        cdef epoll_event events[A_TURN]
        cdef int i, count, wait_ms = -1
        cdef double until = 0, left, began
        cdef bint awake
        cdef Py_ssize_t timers = len(self.timers)
        cdef list found = []
        cdef timespec hold = timespec(tv_sec=0, tv_nsec=HOLD_NS)
        if timeout is not None:
            left = timeout
            wait_ms = in_ms(left)
            until = now() + left
        if self.reactor.waiting():
            wait_ms = 0
        while True:
            if wait_ms == 0:
                count = epoll_wait(self.reactor.epoll, events, A_TURN, 0)
            elif self.is_crowded:
                with nogil:
                    if not self.more:
                        nanosleep(&hold, NULL)
                        self.holds += 1
                    count = epoll_wait(self.reactor.epoll, events, A_TURN, wait_ms)
            else:
                count = 0
                began = now()
                awake = self.expectation.is_short(self.reactor.served)
                with nogil:
                    while awake and count == 0 and now() - began < AWAKE_S:
                        count = epoll_wait(self.reactor.epoll, events, A_TURN, 0)
                    if count == 0:
                        count = epoll_wait(self.reactor.epoll, events, A_TURN, wait_ms)
                self.expectation.learn(self.reactor.served, now() - began, awake)
            if count < 0:
                if errno == EINTR:
                    return found    # for the signal's handler to run
                raise OSError(errno, os.strerror(errno))
            self.watch_rate(count)
            for i in range(count):
                if events[i].data.u64 >> 32 == 0:
                    self.add_ready(found, <int><uint32_t>events[i].data.u64, events[i].events)
            self.reactor.serve_all(events, count)
            if (
                found or count == 0 or wait_ms == 0 or self.queue or len(self.timers) != timers
                or self.reactor.waiting()
            ):
                return found
            if wait_ms > 0:
                left = until - now()
                if left <= 0:
                    return found
                wait_ms = in_ms(left)

    cdef void watch_rate(self, int count) noexcept:
        cdef double at = now()
        self.more = count >= MANY
        self.seen += count
        if at - self.since >= WINDOW_S:
            if self.holds and self.seen < FEW * self.holds:
                self.is_crowded = False
                self.calm_s = min(max(2 * self.calm_s, FIRST_CALM_S), LONGEST_CALM_S)
                self.calm_until = at + self.calm_s
            elif at >= self.calm_until:
                self.is_crowded = (
                    self.reactor.open_count >= A_CROWD and self.seen > CROWD * (at - self.since)
                )
                if self.holds:
                    self.calm_s = 0
            self.since = at
            self.seen = self.holds = 0

    cdef int add_ready(self, list found, int fd, uint32_t events) except -1:
        cdef int mask = 0
        key = self.keys.get(fd)
        if key is None:
            return 0
        # An error or a hang-up is for whoever waits.
        if events & ~EPOLLIN:
            mask |= WRITE
        if events & ~EPOLLOUT:
            mask |= READ
        mask &= <int>key.events
        if mask:
            found.append((key, mask))
        return 0


cdef int descriptor(fileobj) except -1:
    return fileobj if isinstance(fileobj, int) else fileobj.fileno()


cdef int in_ms(double seconds):
    # Rounded up, so that no timer is found not to be due yet.
    return 0 if seconds <= 0 else <int>ceil(seconds * 1000)
