"""One connection to an engine: HTTP/1.1, client side, one request at a time.

It is a Receiver of the reactor's, so that from a read on the engine's socket to the write on the client's
nothing leaves Cython; under TLS it is the protocol object of the event loop's own transport. A reply that is
an event stream goes to the relay as it comes; any other is collected whole, within a bound, and given to the
leg. After the answer is complete the connection goes back to its pool if the reply ended where its framing
says.

Whoever is told of an answer is told once, and may do anything to the connection from within the call: it is
forgotten first, and the connection's own state looked at again after.
"""

from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE, PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcpy

from narwhal._fast.awake cimport ANSWERS
from narwhal._fast.chunked cimport (
    CHUNK_BAD, CHUNK_DATA, CHUNK_END, ChunkStep, chunked_next, chunked_reset,
)
from narwhal._fast.clock cimport now
from narwhal._fast.heads cimport read_response_head
from narwhal._fast.outlet cimport Outlet
from narwhal._fast.reactor cimport REPLY, STREAM, Receiver
from narwhal._fast.relay cimport DONE, FAILED, Relay

# How long after a stream's acknowledgements were deferred it is looked whether they still are, at first.
cdef double FIRST_PATIENCE_S = 0.5

# How much may follow a complete answer before the connection is given up instead of being read to its end.
cdef Py_ssize_t SURPLUS_LIMIT = 65536


cdef class EngineLink(Receiver):
    def __init__(self, pool, Py_ssize_t limit):
        """`limit` bounds a collected body, in bytes.

        `pool` has `free(link)`, `gone(link)`, and `after_done(events)` for what comes after a whole answer.
        """
        self.pool = pool
        self.limit = limit
        self.outlet = Outlet()
        self.phase = IDLE

    @property
    def idle(self) -> bool:
        """Whether it may be given a request."""
        return self.phase == IDLE

    @property
    def answering(self) -> bool:
        """Whether somebody still waits for its reply."""
        return self.leg is not None

    def start(self, list pieces not None, Py_ssize_t size, leg, Relay relay=None) -> None:
        """Send a request of these pieces, `size` bytes in all.

        `leg` has `on_reply(status, body, retry_after_s)` for a collected reply and `on_lost(why, stale)` when
        none will come; `stale` says that a reused connection had been closed before a byte of reply came.
        A streamed reply ends at the relay's owner instead. On a connection that is gone already, `on_lost` is
        called before this returns.
        """
        if self.outlet.transport is None:
            leg.on_lost("the engine closed the connection before the request was sent", self.reused)
            return
        self.leg = leg
        self.relay = relay
        self.phase = HEAD
        self.streaming = False
        self.heard = False
        self.surplus = 0
        self.buffer = None
        if self.outlet.direct is not None:
            self.outlet.direct.rank = STREAM if relay is not None else REPLY
        self.outlet.write_pieces(pieces, size)
        self.defer_at = 0
        self.patience = FIRST_PATIENCE_S

    def abort(self) -> None:
        """Close now and tell nobody: the engine sees the client's leaving."""
        self.leg = None
        self.relay = None
        self.buffer = None
        self.give_up()

    def pause(self) -> None:
        """Stop reading: the client can't keep up. Nothing happens once the answer is complete."""
        if self.leg is not None and self.outlet.transport is not None and not self.paused:
            self.paused = True
            self.outlet.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self.outlet.transport is not None and self.paused:
            self.paused = False
            self.outlet.transport.resume_reading()

    # ---- the event loop's calls

    def connection_made(self, transport) -> None:
        self.outlet.attach(transport)
        self.freed_at = now()

    def data_received(self, bytes data not None) -> None:
        self.receive(<const unsigned char*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def eof_received(self) -> bool:
        if self.phase == IDLE:
            self.phase = CLOSED
        return False

    def pause_writing(self) -> None:
        """A request waits for its engine to read: it is bounded already, so there is nobody to stop."""

    def resume_writing(self) -> None:
        """See pause_writing."""

    def connection_lost(self, exc) -> None:
        cdef Phase phase = self.phase
        self.outlet.detach()
        self.phase = CLOSED
        self.count_tail()
        try:
            if phase == TO_CLOSE and exc is None:
                self.complete(False)
            elif self.leg is not None:
                if phase == HEAD and not self.heard:
                    self.tell_lost("the engine closed the connection without a reply", self.reused)
                else:
                    self.broken("the engine closed the connection in the middle of its reply")
        finally:
            self.pool.gone(self)

    # ---- reading

    cdef void fetch_ahead(self, int step) noexcept:
        if self.relay is not None:
            self.relay.fetch_ahead(step)

    cdef int receive(self, const unsigned char* p, Py_ssize_t n) except -1:
        cdef double at = now()
        cdef Py_ssize_t i = 0, used = 0, start = 0, size = 0
        cdef ChunkStep step
        cdef bytearray kept
        if self.phase == IDLE or self.phase == CLOSED:
            # Nothing was asked.
            self.give_up()
            return 0
        if self.phase == HEAD:
            self.heard = True
            if self.buffer is not None:
                kept = self.buffer
                kept += <bytes>(<const char*>p)[:n]
                self.buffer = None
                p = <const unsigned char*>PyByteArray_AS_STRING(kept)
                n = PyByteArray_GET_SIZE(kept)
            i = self.read_head(p, n)
            if i < 0:
                return 0
            if i == 0 and self.phase == HEAD:
                self.buffer = PyByteArray_FromStringAndSize(<const char*>p, n)
                return 0
        if self.leg is None:
            self.surplus += n - i
            if self.surplus > SURPLUS_LIMIT:
                self.give_up()
                return 0
        if self.phase == CHUNKS:
            while i < n:
                step = chunked_next(&self.chunked, p + i, n - i, &used, &start, &size)
                if step == CHUNK_DATA:
                    if not self.payload(p + i + start, size, at):
                        return 0
                elif step == CHUNK_END:
                    i += used
                    if self.streaming and self.relay is not None:
                        self.relay.flush()
                    self.complete(i == n)
                    return 0
                elif step == CHUNK_BAD:
                    self.broken(f"its chunked coding is broken: {self.chunked.error.decode()}")
                    return 0
                else:
                    break
                i += used
        elif self.phase == SIZED:
            size = n - i if n - i < self.left else <Py_ssize_t>self.left
            self.left -= size
            if size > 0 and not self.payload(p + i, size, at):
                return 0
            if self.left == 0:
                if self.streaming and self.relay is not None:
                    self.relay.flush()
                self.complete(i + size == n)
                return 0
        elif i < n and not self.payload(p + i, n - i, at):
            return 0
        if self.streaming and self.relay is not None:
            self.relay.flush()
            if at >= self.defer_at:
                self.defer_acks(at)
            self.after_flush()
        return 0

    cdef void defer_acks(self, double at):
        # A stream's acknowledgements need not be quick, unless its engine waits for each before it sends more
        # (Nagle's algorithm). Such a stream stalls, the system falls back, and it is left alone for longer
        # each time.
        self.defer_at = at + self.patience
        if self.outlet.direct is not None and self.outlet.direct.defer_acks():
            self.patience *= 2

    cdef Py_ssize_t read_head(self, const unsigned char* p, Py_ssize_t n):
        # Returns the bytes used, 0 if more are needed, -1 if the connection has been given up.
        cdef const char* error = NULL
        cdef Py_ssize_t used = 0, k
        while True:
            k = read_response_head(p + used, n - used, &self.reply, &error)
            if k < 0:
                self.broken(f"its reply is not HTTP: {error.decode()}")
                return -1
            if k == 0:
                if used:
                    # What is kept must not begin with the interim reply that was just read over.
                    self.buffer = PyByteArray_FromStringAndSize(<const char*>p + used, n - used)
                    return -1
                return 0
            used += k
            if self.reply.status >= 200:
                break
            if self.reply.status == 101:
                self.broken("it switches to a protocol nobody asked for")
                return -1
        self.streaming = self.relay is not None and self.reply.status == 200 and self.reply.event_stream
        if self.reply.status == 204 or self.reply.status == 304:
            self.phase = SIZED
            self.left = 0
        elif self.reply.chunked:
            self.phase = CHUNKS
            chunked_reset(&self.chunked)
        elif self.reply.content_length >= 0:
            self.phase = SIZED
            self.left = self.reply.content_length
        else:
            self.phase = TO_CLOSE
        return used

    cdef bint payload(self, const unsigned char* p, Py_ssize_t n, double at):
        # One span of the body; False when the connection has been given up.
        cdef Py_ssize_t size
        if self.streaming:
            if self.relay is not None:
                self.relay.consume(p, n, at)
            elif self.tail is not None:
                self.tail.consume(p, n, at)
            return True
        if self.leg is None:
            return True
        if self.buffer is None:
            self.buffer = PyByteArray_FromStringAndSize(<const char*>p, n)
        else:
            size = PyByteArray_GET_SIZE(self.buffer)
            PyByteArray_Resize(self.buffer, size + n)
            memcpy(PyByteArray_AS_STRING(self.buffer) + size, p, n)
        if PyByteArray_GET_SIZE(self.buffer) > self.limit:
            self.broken(f"its reply is larger than {self.limit} bytes")
            return False
        return True

    cdef void after_flush(self):
        # The relay may be through before the reply is: its rest is read over, so the connection lives on.
        cdef Relay relay = self.relay
        if relay is None or relay.stage < DONE:
            return
        self.relay = None
        self.leg = None
        self.freed_at = now()
        if relay.stage == FAILED:
            self.give_up()
        else:
            self.tail = relay
            self.tail_counted = relay.dropped_after_done
            self.resume()
        relay.settle()

    cdef void complete(self, bint reusable):
        # The reply has ended as its framing says.
        cdef Relay relay = self.relay
        cdef bytearray body = self.buffer
        leg = self.leg
        self.leg = None
        self.relay = None
        self.buffer = None
        self.freed_at = now()
        reusable = reusable and self.reply.keep_alive and self.phase != TO_CLOSE
        if self.streaming:
            if self.outlet.direct is not None:
                self.outlet.direct.reactor.served = ANSWERS
            if relay is not None:
                relay.end_of_body("the engine's stream ended without [DONE]")
                reusable = reusable and relay.stage != FAILED
        elif leg is not None:
            leg.on_reply(
                self.reply.status, b"" if body is None else bytes(body), self.reply.retry_after
            )
        if self.phase == CLOSED:
            return
        self.count_tail()
        if reusable:
            self.resume()
            self.phase = IDLE
            self.reused = True
            self.pool.free(self)
        else:
            self.give_up()

    cdef void broken(self, str why):
        # The reply can't be read on.
        cdef Relay relay = self.relay
        self.buffer = None
        if self.streaming and relay is not None:
            self.relay = None
            self.leg = None
            self.give_up()
            relay.end_of_body(why)
        else:
            self.give_up()
            self.tell_lost(why, False)

    cdef void give_up(self):
        self.phase = CLOSED
        self.count_tail()
        self.outlet.abort()

    cdef void count_tail(self):
        cdef Relay tail = self.tail
        self.tail = None
        if tail is not None and tail.dropped_after_done > self.tail_counted:
            self.pool.after_done(tail.dropped_after_done - self.tail_counted)

    cdef void tell_lost(self, str why, bint stale):
        leg = self.leg
        self.leg = None
        self.relay = None
        if leg is not None:
            leg.on_lost(why, stale)
