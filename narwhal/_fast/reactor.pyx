"""The event loop's plain TCP connections, without the event loop in between.

A general loop serves a readable socket by a handle of its own, a bytes object and a Python call, for each
event. Here one epoll instance has all the connections. The router's own loop waits in that instance (see
loop.pyx); any other has only its descriptor. Either way every socket that is ready is read into a buffer they
all share, and the span goes to a Receiver. What a protocol sends goes to the socket from where it lies; what
the socket does not take is kept, and sent when there is room.

A Transport here keeps the contract of asyncio's, so that protocols can be on either: callbacks in the same
order, `connection_lost` once and never from within a call, and the same marks for back-pressure. It does
without what isn't needed: there is no TLS, and none but the loop's thread may touch it.

Streams go first: what is for them is served as it is found. A reply that lets a request go on, or a new
request, takes as long as tens of events, so these have their turn after that, in this order, and for
0.6 ms at most.

To wake a peer costs more than to send to it. So what is written while several connections are served, or in
one turn of the router's own loop, is held in an arena and sent together: who was woken for the first of it is
still awake for the rest. Nobody else can see it: whoever closes, or asks what is unsent, has it sent first.

What is ready in one turn can be closed, paused or replaced by a protocol served before it in the same turn.
So epoll is given no pointers but a descriptor and the generation of its owner, and both are looked at anew.
It tells only of what is new (edge-triggered), which saves asking each socket once more after it was read.
A socket is taken out of the instance before it is closed, since closing does not do that while a forked child
has a copy.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.list cimport PyList_GET_ITEM
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.ref cimport PyObject
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from narwhal._fast.awake cimport EVENTS, REPLIES, REQUESTS
from narwhal._fast.batch cimport Batch, Call
from narwhal._fast.clock cimport now
from narwhal._fast.epoll cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN,
    EPOLLOUT, EPOLLPRI, EPOLLRDHUP, epoll_create1, epoll_ctl, epoll_event, epoll_wait, fetch,
)

import os
import weakref


cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len

cdef extern from "<sys/socket.h>" nogil:
    cdef struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t recv(int fd, void* p, size_t n, int flags)
    ssize_t send(int fd, const void* p, size_t n, int flags)
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    int shutdown(int fd, int how)
    int setsockopt(int fd, int level, int option, const void* value, unsigned int length)
    int getsockopt(int fd, int level, int option, void* value, unsigned int* length)
    int MSG_NOSIGNAL
    int MSG_DONTWAIT
    int SHUT_WR

cdef extern from "<netinet/in.h>" nogil:
    int IPPROTO_TCP

cdef extern from "<netinet/tcp.h>" nogil:
    int TCP_INFO
    int TCP_QUICKACK
    int TCP_ESTABLISHED

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int fd, unsigned long request, int* value)
    unsigned long TIOCOUTQ

cdef extern from "<unistd.h>" nogil:
    int close(int fd)

cdef enum:
    A_TURN = 256                # ready sockets that are served before the loop has its turn again
    BUFFER = 262144             # bytes of one read
    ARENA = 262144              # bytes that are held at most ...
    LARGE = 16384               # ... in writes of so many at most
    PIECES = 64                 # buffers of one write
    MOST_SENT = 1 << 20         # bytes of a queue that are sent in one turn
    SMALL = 65536               # bytes; what is kept in smaller pieces is put together
    HIGH_WATER = 65536          # bytes in a queue from which its protocol is to stop writing ...
    LOW_WATER = 16384           # ... and down to which it is not to begin again

cdef uint32_t ENDS = EPOLLRDHUP | EPOLLHUP | EPOLLERR

cdef double MOST_S = 0.0006

_reactors = weakref.WeakValueDictionary()   # by their loops' identities; a reactor keeps its loop


cdef class Receiver:
    cdef int receive(self, const unsigned char* p, Py_ssize_t n) except -1:
        raise NotImplementedError

    cdef void fetch_ahead(self, int step) noexcept:
        pass

    cdef Rank rank(self) noexcept:
        return STREAM


cdef class Reactor:
    def __cinit__(self):
        self.epoll = -1

    def __init__(self, loop, bint waited_in=False):
        """Use `Reactor.of`. `waited_in`: the loop waits in this instance. Raises OSError."""
        self.loop = loop
        self.waited_in = waited_in
        self.transports = []
        self.replies = []
        self.requests = []
        self.ended = []
        self.batch = Batch()
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise os_error(errno)
        self.buffer = <unsigned char*>PyMem_Malloc(BUFFER)
        self.arena = <unsigned char*>PyMem_Malloc(ARENA)
        if self.buffer == NULL or self.arena == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.epoll >= 0:
            close(self.epoll)
        PyMem_Free(self.buffer)
        PyMem_Free(self.arena)

    @staticmethod
    def of(loop):
        """The loop's reactor; it lives as long as somebody holds it or a connection of it is open.

        Raises OSError if the system has no descriptor left.
        """
        reactor = getattr(loop, "reactor", None) or _reactors.get(id(loop))
        if reactor is None:
            reactor = _reactors[id(loop)] = Reactor(loop)
        return reactor

    @property
    def open(self) -> int:
        """How many connections are open."""
        return self.open_count

    def fileno(self) -> int:
        """The epoll instance: readable while a connection is ready."""
        return self.epoll

    def attach(self, int fd, protocol not None, tuple peer=None):
        """Serve a connected, non-blocking socket of which only `fd` is left, until it is closed.

        `protocol` is an asyncio.Protocol, and is told of its connection before this returns. `peer` is the
        other end's address. Raises OSError, and has closed the socket then.
        """
        cdef Transport transport = Transport.__new__(Transport)
        transport.fd = fd
        transport.reactor = self
        transport.protocol = protocol
        transport.receiver = protocol if isinstance(protocol, Receiver) else None
        transport.rank = REQUEST if transport.receiver is None else transport.receiver.rank()
        transport.peer = peer
        transport.reading = True
        self.generation += 1
        transport.generation = self.generation
        transport.settle_interest()
        while len(self.transports) <= fd:
            self.transports.append(None)
        self.transports[fd] = transport
        self.open_count += 1
        if not self.watched and not self.waited_in:
            self.loop.add_reader(self.epoll, self.serve)
            self.watched = True
        try:
            protocol.connection_made(transport)
        except Exception as error:
            self.report(transport, error)
        return transport

    def serve(self) -> None:
        """Serve what is ready, once each."""
        cdef epoll_event events[A_TURN]
        cdef int count = epoll_wait(self.epoll, events, A_TURN, 0)
        self.serve_all(events, count)
        if self.waiting():
            self.loop.call_soon(self.serve)

    cdef int serve_all(self, epoll_event* events, int count) except -1:
        """Serve those of these that are the reactor's."""
        cdef int served = 0
        cdef double until
        self.holding = count > 1 or self.waiting()
        if count:
            self.served = EVENTS
        try:
            while served < count:
                self.serve_some(events + served, min(AT_ONCE, count - served))
                served += AT_ONCE
            if self.replies or self.requests:
                until = now() + MOST_S
                self.served = REQUESTS if self.requests else REPLIES
                self.serve_later(self.replies, until)
                self.serve_later(self.requests, until)
        finally:
            self.stop_holding()
        return 0

    cdef int stop_holding(self) except -1:
        self.holding = False
        return self.send_held()

    cdef unsigned char* room(self, Transport transport, Py_ssize_t n) except? NULL:
        # Where a write of n bytes is to be put so that it is sent with others, or NULL.
        cdef Held* held
        cdef unsigned char* p
        if not self.holding or n > LARGE or transport.queued:
            return NULL
        if self.held_count == MOST_HELD or self.held_size + n > ARENA:
            self.send_held()
            if transport.fd < 0 or transport.queued:
                return NULL
        held = &self.held[self.held_count]
        held.transport = <PyObject*>transport
        held.start = self.held_size
        held.size = n
        p = self.arena + self.held_size
        self.held_count += 1
        self.held_size += n
        transport.held += n
        return p

    cdef int send_held(self) except -1:
        # In the first two passes nobody is told of anything, so nobody writes meanwhile.
        cdef Transport transport
        cdef Held* held
        cdef Call* call
        cdef Py_ssize_t sent
        cdef int i, code, calls = 0
        cdef list told = None
        for i in range(self.held_count):
            held = &self.held[i]
            transport = <Transport>held.transport
            # A batch goes on where a socket took less, so it must not have another write to the same one.
            held.alone = transport.queued > 0 or transport.held > held.size
            if not held.alone:
                self.batch.add(transport.fd, self.arena + held.start, held.size)
        self.batch.send()
        for i in range(self.held_count):
            held = &self.held[i]
            transport = <Transport>held.transport
            transport.held -= held.size
            sent = code = 0
            if not held.alone:
                call = &self.batch.calls[calls]
                calls += 1
                sent = call.done
                code = call.error
            elif transport.queued == 0:
                sent = send(transport.fd, self.arena + held.start, held.size, MSG_NOSIGNAL | MSG_DONTWAIT)
                code = errno
            if sent == held.size:
                continue
            if transport.queued == 0:
                if told is None:
                    told = []
                told.append((transport, code if sent < 0 and code != EAGAIN and code != EINTR else 0))
            sent = max(sent, 0)
            transport.keep(PyBytes_FromStringAndSize(<char*>self.arena + held.start + sent, held.size - sent))
        self.held_count = 0
        self.held_size = 0
        if told is not None:
            for transport, code in told:
                if code:
                    transport.fail(code)
                else:
                    transport.after_sending()
        return 0

    cdef int serve_some(self, epoll_event* events, int count) except -1:
        # What a read, a look at what it brought and a write need of the processor's cache, the kernel's part
        # included, is more than there is. So several are read, one after the other, before the first is
        # looked at.
        cdef Read reads[AT_ONCE]
        cdef Read* read
        cdef Transport transport
        cdef int i, calls = 0
        if count > 1:
            self.fetch_ahead(events, count)
        for i in range(count):
            read = &reads[i]
            read.events = events[i].events
            read.size = NOBODYS
            transport = self.owner(events[i].data.u64)
            if transport is None:
                continue
            if transport.rank != STREAM:
                if transport.news == 0:
                    (self.replies if transport.rank == REPLY else self.requests).append(transport)
                transport.news |= read.events
            else:
                read.size = NOT_READ
                if transport.wants(read.events):
                    read.size = IN_BATCH
                    read.room = BUFFER // AT_ONCE if count > 1 else BUFFER
                    read.start = self.buffer + i * (BUFFER // AT_ONCE)
                    self.batch.add(transport.fd, read.start, read.room)
        self.batch.receive()
        for i in range(count):
            if reads[i].size == IN_BATCH:
                reads[i].size = self.batch.calls[calls].done
                reads[i].error = self.batch.calls[calls].error
                calls += 1
        for i in range(count):
            if reads[i].size != NOBODYS:
                # It may be another's by now, or closed.
                transport = self.owner(events[i].data.u64)
                if transport is not None:
                    self.ready(transport, &reads[i])
        return 0

    cdef Transport owner(self, uint64_t tag):
        # What others watch in the reactor's instance has generation 0.
        cdef uint32_t generation = <uint32_t>(tag >> 32)
        cdef Transport transport
        if generation == 0:
            return None
        transport = <Transport>self.transports[<int><uint32_t>tag]
        return transport if transport is not None and transport.generation == generation else None

    cdef void fetch_ahead(self, epoll_event* events, int count) noexcept:
        # With hundreds of streams, what belongs to one has left the processor's cache by its next event, and
        # to wait for each piece of it in turn would take longer than all that is done with them. So the
        # pieces of several are fetched at once: what is followed in one step was fetched in the one before.
        cdef PyObject* found[AT_ONCE]
        cdef int i, step, known = 0
        for i in range(min(count, AT_ONCE)):
            if events[i].data.u64 >> 32:
                found[known] = <PyObject*>PyList_GET_ITEM(self.transports, <int><uint32_t>events[i].data.u64)
                fetch(found[known], 2)
                known += 1
        for i in range(known):
            if found[i] == <PyObject*>None or (<Transport>found[i]).receiver is None:
                found[i] = NULL
            else:
                found[i] = <PyObject*>(<Transport>found[i]).receiver
                fetch(found[i], 3)
        for step in range(3):
            for i in range(known):
                if found[i] != NULL:
                    (<Receiver>found[i]).fetch_ahead(step)

    cdef bint waiting(self) noexcept:
        return len(self.replies) > 0 or len(self.requests) > 0

    cdef int serve_later(self, list waiting, double until) except -1:
        # What lets a request go on takes as long as tens of events. A burst of that must not hold up the
        # streams, so they have their turn again when the time is over.
        cdef Transport transport
        cdef Read read
        cdef Py_ssize_t served = 0
        read.start = self.buffer
        read.room = BUFFER
        while served < len(waiting) and (served == 0 or now() < until):
            transport = waiting[served]
            served += 1
            read.events = transport.news
            transport.news = 0
            read.size = NOT_READ
            if transport.wants(read.events):
                read.size = recv(transport.fd, read.start, read.room, MSG_DONTWAIT)
                read.error = errno
            self.ready(transport, &read)
        del waiting[:served]
        return 0

    cdef int ready(self, Transport transport, Read* read) except -1:
        try:
            transport.ready(read)
        except Exception as error:
            self.report(transport, error)
        return 0

    cdef int watch(self, Transport transport, uint32_t interest) except -1:
        cdef epoll_event event
        cdef int operation = EPOLL_CTL_MOD
        if transport.interest == 0:
            operation = EPOLL_CTL_ADD
        elif interest == 0:
            operation = EPOLL_CTL_DEL
        event.events = interest | EPOLLET
        event.data.u64 = <uint64_t>transport.generation << 32 | <uint32_t>transport.fd
        if epoll_ctl(self.epoll, operation, transport.fd, &event) < 0:
            raise os_error(errno)
        transport.interest = interest
        return 0

    cdef void forget(self, Transport transport, exc):
        # Its socket is about to be closed; its protocol is told by a call of the loop's own.
        self.transports[transport.fd] = None
        self.open_count -= 1
        self.ended.append((transport, exc))
        if len(self.ended) == 1:
            self.loop.call_soon(self._tell)

    def _tell(self):
        # Protocols learn that their connections are gone.
        cdef Transport transport
        cdef list ended = self.ended
        self.ended = []
        for transport, exc in ended:
            protocol = transport.protocol
            transport.protocol = transport.receiver = None
            try:
                protocol.connection_lost(exc)
            except Exception as error:
                self.report(transport, error)
        if self.open_count == 0 and self.watched:
            self.watched = False
            self.loop.remove_reader(self.epoll)

    cdef int regulate(self, Transport transport) except -1:
        # Whoever writes is not to blame for what the protocol does when it is told.
        try:
            if transport.full:
                transport.protocol.pause_writing()
            else:
                transport.protocol.resume_writing()
        except Exception as error:
            self.report(transport, error)
        return 0

    cdef int report(self, Transport transport, exc) except -1:
        # A protocol has failed in a call that nobody waits for: the loop says so, and its connection ends.
        self.loop.call_exception_handler(
            {
                "message": "a connection's protocol failed; the connection is closed",
                "exception": exc,
                "transport": transport,
                "protocol": transport.protocol,
            }
        )
        return transport.end(exc)


cdef class Transport:
    """One connection, for a protocol of asyncio's. See asyncio.Transport for what is not said here."""

    def __cinit__(self):
        self.fd = -1

    def __dealloc__(self):
        # Its loop has gone before it was closed.
        if self.fd >= 0:
            close(self.fd)

    # ---- reading

    cdef bint wants(self, uint32_t events) noexcept:
        """Whether these make it worth a read."""
        return self.reading and events & (EPOLLIN | ENDS) != 0

    cdef int ready(self, Read* read) except -1:
        """Something happened to the socket, and this was read from it for that."""
        cdef bint ends = read.events & ENDS
        if read.size > 0:
            if self.receiver is not None:
                self.receiver.receive(read.start, read.size)
            else:
                self.protocol.data_received(PyBytes_FromStringAndSize(<char*>read.start, read.size))
        elif self.reading:
            if read.size == 0:
                self.end_of_file()
            elif read.size == FAILED and read.error != EAGAIN and read.error != EINTR:
                self.fail(read.error)
        # A read that does not fill its room has left nothing, unless it be the end, or what lies behind an
        # urgent byte: a read stops before that, and the next one passes over it.
        if self.reading and (
            ends or read.size == read.room or (read.size == FAILED and read.error == EINTR)
            or (read.size > 0 and read.events & EPOLLPRI)
        ):
            self.look_again()
        if self.queued and read.events & (EPOLLOUT | EPOLLHUP | EPOLLERR):
            self.send_queue()
            self.after_sending()
        return 0

    cdef int end_of_file(self) except -1:
        self.reading = False
        self.at_eof = True
        self.settle_interest()
        if not self.protocol.eof_received():
            self.close()
        return 0

    def pause_reading(self) -> None:
        if self.reading:
            self.reading = False
            self.settle_interest()

    def resume_reading(self) -> None:
        if not self.reading and not self.at_eof and not self.closing and self.fd >= 0:
            self.reading = True
            self.settle_interest()

    def is_reading(self) -> bool:
        return self.reading

    cdef int settle_interest(self) except -1:
        # With nothing to wait for it is not watched at all: a reset would be told again and again.
        cdef uint32_t interest = 0
        if self.fd < 0:
            return 0
        if self.reading:
            interest |= EPOLLIN | EPOLLPRI | EPOLLRDHUP
        if self.queued:
            interest |= EPOLLOUT
        if interest != self.interest:
            self.reactor.watch(self, interest)
        return 0

    cdef int look_again(self) except -1:
        # Be told of what is there now: by itself epoll only tells of what is new.
        if self.interest:
            self.reactor.watch(self, self.interest)
        return 0

    # ---- writing

    cdef int put(self, const unsigned char* p, Py_ssize_t n) except -1:
        """Send these bytes, or copy what the socket does not take."""
        cdef ssize_t sent = 0
        cdef unsigned char* room
        if n == 0 or self.fd < 0 or self.closing or self.half:
            return 0
        room = self.reactor.room(self, n)
        if room != NULL:
            memcpy(room, p, n)
            return 0
        if self.held:
            self.reactor.send_held()
        if self.fd < 0:
            return 0
        if self.queued == 0:
            sent = send(self.fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent == n:
                return 0
            if sent < 0:
                if errno != EAGAIN and errno != EINTR:
                    return self.fail(errno)
                sent = 0
        self.keep(PyBytes_FromStringAndSize(<const char*>p + sent, n - sent))
        return self.after_sending()

    cdef int put_pieces(self, list pieces, Py_ssize_t size) except -1:
        """Send buffers in order, `size` bytes in all, which are not many."""
        cdef unsigned char* room
        cdef Py_buffer view
        if size == 0 or self.fd < 0 or self.closing or self.half:
            return 0
        room = self.reactor.room(self, size)
        if room == NULL:
            joined = b"".join(pieces)
            return self.put(<const unsigned char*>PyBytes_AS_STRING(joined), size)
        for piece in pieces:
            PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE)
            memcpy(room, view.buf, view.len)
            room += view.len
            PyBuffer_Release(&view)
        return 0

    def write(self, const unsigned char[::1] data not None) -> None:
        if data.shape[0]:
            self.put(&data[0], data.shape[0])

    def writelines(self, list pieces not None) -> None:
        """Send these buffers in order. What the socket does not take at once is kept, large ones uncopied."""
        if self.held:
            self.reactor.send_held()
        if self.fd < 0 or self.closing or self.half:
            return
        if self.queued:
            for piece in pieces:
                self.keep(piece)
        else:
            self.queue = pieces[:]
            self.tail = None
            for piece in pieces:
                self.queued += len(piece)
            self.send_queue()
        self.after_sending()

    cdef int keep(self, data) except -1:
        cdef Py_ssize_t n = len(data), size
        cdef Py_buffer view
        if self.queue is None:
            self.queue = []
        self.queued += n
        if n >= SMALL:
            self.tail = None
            self.queue.append(data)
        elif self.tail is None or PyByteArray_GET_SIZE(self.tail) >= SMALL:
            self.tail = bytearray(data)
            self.queue.append(self.tail)
        else:
            size = PyByteArray_GET_SIZE(self.tail)
            PyByteArray_Resize(self.tail, size + n)
            PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
            memcpy(PyByteArray_AS_STRING(self.tail) + size, view.buf, n)
            PyBuffer_Release(&view)
        return 0

    cdef int send_queue(self) except -1:
        # Send until the socket takes no more, or others are due.
        cdef Py_buffer views[PIECES]
        cdef iovec pieces[PIECES]
        cdef msghdr message
        cdef int count, i
        cdef ssize_t sent
        cdef Py_ssize_t total, so_far = 0
        memset(&message, 0, sizeof(message))
        while self.queued and so_far < MOST_SENT:
            count = 0
            total = -self.offset
            try:
                for piece in self.queue:
                    if count == PIECES:
                        break
                    PyObject_GetBuffer(piece, &views[count], PyBUF_SIMPLE)
                    pieces[count].iov_base = views[count].buf
                    pieces[count].iov_len = views[count].len
                    total += views[count].len
                    count += 1
                pieces[0].iov_base = <unsigned char*>pieces[0].iov_base + self.offset
                pieces[0].iov_len -= self.offset
                message.msg_iov = pieces
                message.msg_iovlen = count
                sent = sendmsg(self.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
            finally:
                for i in range(count):
                    PyBuffer_Release(&views[i])
            if sent < 0:
                if errno == EAGAIN or errno == EINTR:
                    return 0
                return self.fail(errno)
            self.drop_sent(sent)
            so_far += sent
            if sent < total:
                return 0
        if self.queued:
            self.look_again()
        return 0

    cdef int drop_sent(self, Py_ssize_t sent) except -1:
        cdef Py_ssize_t whole = 0, size
        self.queued -= sent
        sent += self.offset
        for piece in self.queue:
            size = len(piece)
            if sent < size:
                break
            sent -= size
            whole += 1
        self.offset = sent
        if self.queued == 0:
            self.queue = self.tail = None
        else:
            del self.queue[:whole]
        return 0

    cdef int after_sending(self) except -1:
        # Whatever follows from how much is queued now.
        if self.fd < 0:
            return 0
        self.settle_interest()
        if self.queued > HIGH_WATER and not self.full:
            self.full = True
            self.reactor.regulate(self)
        elif self.full and self.queued <= LOW_WATER:
            self.full = False
            self.reactor.regulate(self)
        if self.queued == 0 and self.fd >= 0:
            if self.closing:
                self.end(None)
            elif self.half:
                shutdown(self.fd, SHUT_WR)
        return 0

    cdef bint defer_acks(self) noexcept:
        """Have what comes acknowledged with what is sent, or every other segment; whether it was not so.

        The system's other way is a packet of its own after each read, which costs half of what the read does.
        It falls back to that when something has waited 40 ms for its acknowledgement.
        """
        cdef int quick = 0
        cdef unsigned int length = sizeof(quick)
        if getsockopt(self.fd, IPPROTO_TCP, TCP_QUICKACK, &quick, &length) < 0 or not quick:
            return False
        quick = 0
        setsockopt(self.fd, IPPROTO_TCP, TCP_QUICKACK, &quick, sizeof(quick))
        return True

    def get_write_buffer_size(self) -> int:
        if self.held:
            self.reactor.send_held()
        return self.queued

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self.held:
            self.reactor.send_held()
        if self.fd >= 0 and not self.closing and not self.half:
            self.half = True
            if self.queued == 0:
                shutdown(self.fd, SHUT_WR)

    # ---- the end

    def is_closing(self) -> bool:
        return self.closing or self.fd < 0

    def close(self) -> None:
        """Close once everything is sent."""
        if self.held:
            self.reactor.send_held()
        if self.fd < 0 or self.closing:
            return
        self.closing = True
        self.reading = False
        if self.queued:
            self.settle_interest()
        else:
            self.end(None)

    def abort(self) -> None:
        """Close now."""
        self.end(None)

    cdef int fail(self, int code) except -1:
        return self.end(os_error(code))

    cdef int end(self, exc) except -1:
        cdef Reactor reactor = self.reactor
        cdef int fd
        if self.held:
            reactor.send_held()
        fd = self.fd
        if fd < 0:
            return 0
        if self.interest:
            reactor.watch(self, 0)
        reactor.forget(self, exc)
        self.fd = -1
        close(fd)
        self.closing = True
        self.reading = False
        self.queue = self.tail = None
        self.queued = 0
        return 0

    # ---- what is known of the connection

    def get_extra_info(self, str name, default=None):
        """`peername`, the other end's address; there is nothing else to be had."""
        return self.peer if name == "peername" and self.peer is not None else default

    def get_protocol(self):
        return self.protocol

    def unsent(self) -> int:
        """Bytes that the peer has not taken: those queued here, and the kernel's."""
        cdef int kernel = 0
        if self.held:
            self.reactor.send_held()
        if self.fd >= 0:
            ioctl(self.fd, TIOCOUTQ, &kernel)
        return self.queued + kernel

    def is_established(self) -> bool:
        """Whether the peer has neither closed its half nor gone, as far as the system knows."""
        # The first byte of struct tcp_info is the connection's state (linux/tcp.h).
        cdef unsigned char state = 0
        cdef unsigned int length = 1
        if self.fd < 0:
            return False
        return getsockopt(self.fd, IPPROTO_TCP, TCP_INFO, &state, &length) < 0 or state == TCP_ESTABLISHED


cdef object os_error(int code):
    return OSError(code, os.strerror(code))
