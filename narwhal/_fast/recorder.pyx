"""One streamed answer on the side that put the load: when each of its events came, and what became of it.

It is a relay that passes nothing on, so the load generator reads a stream with the router's own code. Per
event it scans the JSON and appends the time of the read that brought it to an array; no Python object is
made. Events that came in one read have the same time, which is what their client sees.
"""

from cpython cimport array
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free, realloc

from narwhal._fast.outlet cimport Outlet
from narwhal._fast.relay cimport DONE, FAILED, Relay
from narwhal._fast.scan cimport IDS_VALID, Facts

import array

cdef array.array DOUBLES = array.array("d")


cdef class Recorder(Relay):
    def __init__(self, owner, *, on_data=None, Py_ssize_t limit=16777216):
        """`owner` has `on_output()` and `on_end()`, as that of a relay.

        `on_data`, if given, is called with the JSON of each event, for whoever wants to see more than times.
        `limit` bounds one event, in bytes.
        """
        super().__init__(owner, outlet=Outlet(), limit=limit)
        self.on_data = on_data
        self.closed_out = True  # so that flushing drops what a relay would send

    def __dealloc__(self):
        free(self.times)

    def expect(self) -> None:
        """Get ready for a stream; nothing of an earlier one is left."""
        self.begin(False)
        self.count = 0
        self.id_tokens = 0
        self.bare = False
        self.cut = None

    @property
    def ids_counted(self):
        """The number of token IDs, or None unless each event with output carried a valid list of them."""
        return None if self.bare or self.count == 0 else self.id_tokens

    @property
    def cut_short(self):
        """Why the body ended without [DONE], or None."""
        return self.cut

    def gaps(self):
        """Seconds between an event with output and the next, as an array of doubles."""
        cdef Py_ssize_t i, n = self.count - 1 if self.count > 1 else 0
        cdef array.array gaps = array.clone(DOUBLES, n, False)
        for i in range(n):
            gaps.data.as_doubles[i] = self.times[i + 1] - self.times[i]
        return gaps

    cdef bint event(self, const unsigned char* data, Py_ssize_t size, double at, bint is_error, Facts* facts):
        Relay.event(self, data, size, at, is_error, facts)
        if self.stage == FAILED:
            return False
        if facts.ids == IDS_VALID:
            self.id_tokens += facts.id_count
        elif facts.has_output:
            self.bare = True
        if facts.has_output or facts.id_count > 0:
            self.note(at)
        if self.on_data is not None:
            self.on_data(PyBytes_FromStringAndSize(<const char*>data, size))
        return False

    cdef int note(self, double at) except -1:
        cdef double* grown
        if self.count == self.room:
            grown = <double*>realloc(self.times, (2 * self.room + 64) * sizeof(double))
            if grown == NULL:
                raise MemoryError
            self.times = grown
            self.room = 2 * self.room + 64
        self.times[self.count] = at
        self.count += 1
        return 0

    cdef void end_of_body(self, str why):
        if self.stage < DONE:
            self.cut = why
        Relay.end_of_body(self, why)
