# One connection to an engine. See link.pyx.

from narwhal._fast.chunked cimport Chunked
from narwhal._fast.heads cimport ResponseHead
from narwhal._fast.outlet cimport Outlet
from narwhal._fast.reactor cimport Receiver
from narwhal._fast.relay cimport Relay

cdef enum Phase:
    IDLE = 0        # in the pool
    HEAD = 1        # a request was sent; the reply's head is awaited
    SIZED = 2       # in a body of known length
    CHUNKS = 3      # in a chunked body
    TO_CLOSE = 4    # in a body that ends with the connection
    CLOSED = 5

cdef class EngineLink(Receiver):
    # Looked at for each event.
    cdef object leg             # told of a whole reply, or that none will come; None once told
    cdef Relay relay            # takes a streamed reply; None for collected ones
    cdef bytearray buffer       # an incomplete head, or the collected body
    cdef Phase phase
    cdef bint streaming         # this reply goes to the relay
    cdef Chunked chunked
    cdef double defer_at        # when to look after this stream's acknowledgements

    cdef Outlet outlet
    cdef object pool            # told when the connection is free again, or gone
    cdef ResponseHead reply
    cdef long long left         # bytes of a sized body still to come
    cdef Py_ssize_t limit       # bytes of a collected body
    cdef Py_ssize_t surplus     # bytes read after the answer was complete
    cdef Relay tail             # has its whole answer; events that still come are counted
    cdef long long tail_counted  # of those, what the relay's owner has been told
    cdef double patience        # seconds until the next look after acknowledgements
    cdef readonly bint heard    # a byte of this reply came
    cdef bint paused            # reading has stopped
    cdef readonly bint reused   # it has served a request before this one
    cdef readonly double freed_at   # when its last answer was complete

    cdef Py_ssize_t read_head(self, const unsigned char* p, Py_ssize_t n)
    cdef bint payload(self, const unsigned char* p, Py_ssize_t n, double at)
    cdef void defer_acks(self, double at)
    cdef void complete(self, bint reusable)
    cdef void broken(self, str why)
    cdef void after_flush(self)
    cdef void give_up(self)
    cdef void count_tail(self)
    cdef void tell_lost(self, str why, bint stale)
