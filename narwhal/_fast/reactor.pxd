# The loop's own plain TCP connections, served from Cython. See reactor.pyx.

from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

from narwhal._fast.awake cimport Served
from narwhal._fast.batch cimport Batch, Call, MOST_CALLS
from narwhal._fast.epoll cimport epoll_event

cdef enum:
    AT_ONCE = 16        # connections that are read before the first of them is served
    MOST_HELD = MOST_CALLS  # writes that are held before they are sent
    FAILED = -1         # sizes of a Read: it failed
    NOT_READ = -2       # it was not tried: nothing came, or nothing is wanted
    NOBODYS = -3        # the transport has gone
    IN_BATCH = -4       # it is about to be tried

cdef double MOST_S      # seconds of requests, or of the loop's calls, before streams have their turn again

# In what order connections are served.
cdef enum Rank:
    STREAM      # at once
    REPLY       # after streams: a reply in whole, which lets a request go on
    REQUEST     # after those: what may be a new request

cdef struct Read:
    unsigned char* start
    Py_ssize_t room
    Py_ssize_t size     # bytes; 0: the peer's end
    int error           # of the system, if it failed
    uint32_t events     # why it was tried

cdef struct Held:
    PyObject* transport  # not counted: one that has something held is not closed before that is sent
    Py_ssize_t start    # where it lies among what is held
    Py_ssize_t size
    bint alone          # it is sent by itself

cdef class Receiver:
    # A protocol of the event loop's whose bytes need not become an object first. What is at p is good until
    # the method returns. It may still come after reading was paused, if it was read before.
    cdef int receive(self, const unsigned char* p, Py_ssize_t n) except -1
    # Fetch what receive is going to look at, for which the processor would have to wait: 0 what is in the
    # receiver's own reach, 1 what is in the reach of that, and so on.
    cdef void fetch_ahead(self, int step) noexcept
    # The rank that its connection has at first.
    cdef Rank rank(self) noexcept

cdef class Reactor:
    cdef object __weakref__
    cdef object loop
    cdef int epoll              # the instance
    cdef bint waited_in         # the loop waits in it
    cdef bint watched           # the loop watches its descriptor
    cdef list transports        # by descriptor; None where there is none
    cdef int open_count
    cdef uint32_t generation    # tells a descriptor's owner from its earlier ones
    cdef unsigned char* buffer  # what is being read, by one transport at a time
    cdef list replies           # transports of which there is news, of rank REPLY
    cdef list requests          # and of rank REQUEST
    cdef Served served          # last
    cdef bint holding           # what is written now is held, to be sent with what others write
    cdef public Batch batch     # of reads or of held writes
    cdef unsigned char* arena   # what is held
    cdef Py_ssize_t held_size   # bytes of it
    cdef Held held[MOST_HELD]
    cdef int held_count
    cdef list ended             # (transport, exception) whose protocols have not been told yet

    cdef void fetch_ahead(self, epoll_event* events, int count) noexcept
    cdef Transport owner(self, uint64_t tag)
    cdef int serve_all(self, epoll_event* events, int count) except -1
    cdef int serve_some(self, epoll_event* events, int count) except -1
    cdef int serve_later(self, list waiting, double until) except -1
    cdef bint waiting(self) noexcept
    cdef unsigned char* room(self, Transport transport, Py_ssize_t n) except? NULL
    cdef int send_held(self) except -1
    cdef int stop_holding(self) except -1
    cdef int ready(self, Transport transport, Read* read) except -1
    cdef int watch(self, Transport transport, uint32_t interest) except -1
    cdef void forget(self, Transport transport, exc)
    cdef int regulate(self, Transport transport) except -1
    cdef int report(self, Transport transport, exc) except -1

cdef class Transport:
    # Looked at for each event.
    cdef Reactor reactor
    cdef Receiver receiver      # the protocol, if its bytes need not become an object
    cdef int fd                 # -1 once closed
    cdef uint32_t generation
    cdef Py_ssize_t queued      # bytes that the socket did not take yet
    cdef Py_ssize_t held        # bytes that the socket has not been offered yet
    cdef Rank rank
    cdef bint reading           # reading is not paused, and the peer's end has not been seen
    cdef bint closing           # it closes once everything is sent
    cdef bint half              # our half is closed once everything is sent

    cdef object protocol        # None once it knows that the connection is gone
    cdef tuple peer
    cdef uint32_t news          # of epoll, while it is among the reactor's waiting
    cdef uint32_t interest      # what epoll watches it for; 0: it is not watched
    cdef bint at_eof            # the peer has closed its half
    cdef bint full              # the protocol has been told to stop writing
    cdef list queue             # buffers with what is queued, or None
    cdef bytearray tail         # the last of them, if more may be put into it
    cdef Py_ssize_t offset      # bytes of the first one that the socket did take

    cdef int put(self, const unsigned char* p, Py_ssize_t n) except -1
    cdef int put_pieces(self, list pieces, Py_ssize_t size) except -1
    cdef bint defer_acks(self) noexcept
    cdef bint wants(self, uint32_t events) noexcept
    cdef int ready(self, Read* read) except -1
    cdef int look_again(self) except -1
    cdef int end_of_file(self) except -1
    cdef int keep(self, data) except -1
    cdef int send_queue(self) except -1
    cdef int after_sending(self) except -1
    cdef int drop_sent(self, Py_ssize_t sent) except -1
    cdef int settle_interest(self) except -1
    cdef int fail(self, int code) except -1
    cdef int end(self, exc) except -1
