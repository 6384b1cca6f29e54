"""One answer's way from an engine's event stream to a client, or to the assembler.

A read's payload is cut into blocks (sse), each block's JSON is walked once (scan), and what the client may
see is copied to one scratch buffer, which goes out as one write at the end of the read. Before the first
output nothing is sent, so that a failure still gets its status and a retry still can happen: what comes
earlier is held. Nothing here makes a Python object or calls Python per event; the owner is told twice, of the
first output and of the end.

What is sent, and what is seen, depends on the stream alone and not on how reads cut it: limits are on blocks
and on what comes before the first output, and a failure takes nothing back of what came before it. One thing
is sooner said than read: at [DONE] the answer ends, without waiting for the LF of its last CRLF.

The scratch buffer is shared by all relays: a read is consumed and flushed in one go, with no Python in
between, and whatever becomes of a flush, nothing is left in it.
"""

from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE, PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.string cimport memcmp, memcpy, memmove

from narwhal._fast.assemble cimport Assembler
from narwhal._fast.clock cimport now
from narwhal._fast.epoll cimport fetch
from narwhal._fast.outlet cimport Outlet
from narwhal._fast.recall cimport Recall
from narwhal._fast.scan cimport IDS_MALFORMED, IDS_VALID, MAX_SPANS, Facts, forget, scan_event
from narwhal._fast.sse cimport (
    SSE_EVENT, SSE_MORE, Event, Line, SseStep, sse_fields, sse_next, sse_next_data, sse_one_data, sse_reset,
)

# The scratch buffer: ROOM bytes for a chunk's size line, then what is to be sent, then its closing bytes.
cdef enum:
    ROOM = 24
    TAIL_ROOM = 16
    MOST_TOKENS = 0x7FFFFFFF    # what an engine's usage may claim and be believed
    MOST_KEPT = 1 << 20     # bytes; a rare huge event shall not hold more for ever

cdef unsigned char* scratch = NULL
cdef Py_ssize_t scratch_size = 0
cdef Py_ssize_t scratch_used = 0


cdef int reserve(Py_ssize_t more) except -1:
    global scratch, scratch_size
    cdef Py_ssize_t need = ROOM + scratch_used + more + TAIL_ROOM
    cdef unsigned char* grown
    if need > scratch_size:
        need += need // 2 + 65536
        grown = <unsigned char*>PyMem_Realloc(scratch, need)
        if grown == NULL:
            raise MemoryError
        scratch = grown
        scratch_size = need
    return 0


cdef void empty_scratch() noexcept:
    global scratch, scratch_size, scratch_used
    scratch_used = 0
    if scratch_size > MOST_KEPT:
        PyMem_Free(scratch)
        scratch = NULL
        scratch_size = 0


cdef inline bint is_longer(const unsigned char* p, Py_ssize_t n, Py_ssize_t limit) noexcept nogil:
    # A block's final LF after a CR does not count, for it may come later.
    return n > limit and not (n == limit + 1 and n >= 2 and p[n - 1] == c'\n' and p[n - 2] == c'\r')


cdef inline bint has_mark(const unsigned char* p, Py_ssize_t n) noexcept nogil:
    return n >= 3 and p[0] == 0xEF and p[1] == 0xBB and p[2] == 0xBF


cdef inline void put(const unsigned char* p, Py_ssize_t n) noexcept:
    # The room was reserved for the whole block.
    global scratch_used
    memcpy(scratch + ROOM + scratch_used, p, n)
    scratch_used += n


cdef void put_edited(
    const unsigned char* p, Py_ssize_t n, Py_ssize_t offset, Edit* edits, int count, bytes figure
) noexcept:
    # Copy p[:n], a line whose first byte is at `offset` in the text that the edits speak of. What is cut may
    # span lines; the figure is a number, and lies in one.
    cdef Py_ssize_t at = 0, start, end
    cdef int i
    for i in range(count):
        start = edits[i].start - offset
        end = edits[i].end - offset
        if end <= at:
            continue
        if start >= n:
            break
        if start > at:
            put(p + at, start - at)
        if edits[i].put:
            put(<const unsigned char*>PyBytes_AS_STRING(figure), edits[i].put)
        at = end if end < n else n
    if at < n:
        put(p + at, n - at)


cdef class Relay:
    def __init__(
        self,
        owner,
        *,
        Outlet outlet=None,
        bytes head=b"",
        bint framed=True,
        bint keep_ids=False,
        bint keep_usage=False,
        Py_ssize_t limit=16777216,
        Recall recall=None,
    ):
        """`owner` has `on_output()` and `on_end()`; with `outlet` the answer is streamed there, after `head`.

        `framed`: the client takes chunked transfer coding. `limit` bounds one event, and what is held before
        the first output, in bytes. `recall` takes note of every event that is accepted.
        """
        self.owner = owner
        self.outlet = outlet
        self.head = head
        self.framed = framed
        self.keep_ids = keep_ids
        self.keep_usage = keep_usage
        self.limit = limit
        self.recall = recall
        self.stage = FAILED

    def begin(self, bint need_ids, Assembler assembler=None, join=None) -> None:
        """Get ready for an attempt's stream: nothing of an earlier attempt is left.

        `need_ids`: the engine supplies token IDs, so output without them is an error. `assembler` takes the
        events where there is no outlet. With `join` the attempt goes on with the answer that the one before
        began, in the same assembler if there is one: `join.event(data)` gives an event's JSON as the
        answer's first engine would have sent it, or None to leave it out, and raises ValueError if it does
        not fit. Raises TypeError if the answer has nowhere to go.
        """
        if assembler is None and self.outlet is None:
            raise TypeError("a relay needs an outlet or an assembler")
        self.assembler = assembler
        self.need_ids = need_ids
        self.cached_figure = None
        self.stage = HOLDING
        self.first_block = True
        self.kept_last = True
        self.announced = False
        self.settled = False
        self.pending = None
        self.held = None
        self.held_size = 0
        self.first_at = 0
        self.last_at = 0
        self.heard_at = 0
        self.join = join
        self.unjoinable = False
        if join is None:
            self.tokens = 0
            self.output_events = 0
            if self.recall is not None:
                self.recall.clear()
        self.carried = self.tokens
        self.dropped_after_done = 0
        self.prompt_tokens = -1
        self.completion_tokens = -1
        self.finished = False
        self.usage_told = False
        self.failure = None
        self.failure_message = None
        self.error_object = None
        self.started_at = now()
        sse_reset(&self.sse)
        forget(&self.memo)

    def set_cached_tokens(self, cached_tokens) -> None:
        """So many of the prompt's were found cached by its producer; None: it did not say."""
        self.cached_figure = None if cached_tokens is None else str(int(cached_tokens)).encode()

    @property
    def done(self) -> bool:
        """Whether [DONE] came."""
        return self.stage == DONE

    @property
    def under_way(self) -> bool:
        """Whether the client has been sent a status."""
        return self.head_sent

    @property
    def output_sent(self) -> bool:
        """Whether the client has been sent output: another attempt can only go on with it."""
        return (self.announced or self.join is not None) and self.outlet is not None

    def output_tokens(self) -> tuple:
        """The count of output tokens and how it is known: `token_ids`, `usage` or `events`."""
        if self.need_ids:
            return self.tokens, "token_ids"
        if self.completion_tokens >= 0:
            return self.completion_tokens, "usage"
        return self.output_events, "events"

    # ---- reading

    cdef void fetch_ahead(self, int step) noexcept:
        """Fetch what consume is going to look at; see Receiver."""
        if step == 0:
            fetch(<void*>self, 10)
        elif self.outlet is not None:
            if step == 1:
                fetch(<void*>self.outlet, 1)
            else:
                fetch(<void*>self.outlet.direct, 2)

    cdef void consume(self, const unsigned char* p, Py_ssize_t n, double at):
        """Take the next payload bytes. What is to be sent waits in the scratch buffer for flush."""
        cdef Py_ssize_t used, size
        cdef bytearray whole = self.pending     # a failure drops the relay's own reference
        self.heard_at = at
        if self.stage == FAILED or (self.settled and self.stage != DONE):
            return  # after [DONE] events are still counted, though not passed on
        try:
            if whole is None:
                used = self.blocks(p, n, at)
                if used < n and self.stage != FAILED:
                    self.pending = PyByteArray_FromStringAndSize(<const char*>p + used, n - used)
            else:
                size = PyByteArray_GET_SIZE(whole)
                PyByteArray_Resize(whole, size + n)
                memcpy(PyByteArray_AS_STRING(whole) + size, p, n)
                size += n
                used = self.blocks(<const unsigned char*>PyByteArray_AS_STRING(whole), size, at)
                if used == size:
                    self.pending = None
                elif used > 0:
                    memmove(PyByteArray_AS_STRING(whole), PyByteArray_AS_STRING(whole) + used, size - used)
                    PyByteArray_Resize(whole, size - used)
            if (
                self.pending is not None
                and PyByteArray_GET_SIZE(self.pending) > self.limit
                and self.stage != DONE
            ):
                self.too_large()
        except MemoryError:
            self.fail("internal_error", "out of memory")

    cdef Py_ssize_t blocks(self, const unsigned char* p, Py_ssize_t n, double at):
        # Handle every whole block in p[:n]; returns the bytes used.
        cdef Py_ssize_t used = 0, end = 0
        cdef SseStep step
        while used < n:
            step = sse_next(&self.sse, p + used, n - used, &end)
            if step == SSE_MORE:
                break
            if step == SSE_EVENT:
                if self.stage != DONE and is_longer(p + used, end, self.limit):
                    self.too_large()
                else:
                    if self.join is None:
                        self.kept_last = self.block(p + used, end, self.sse.only, at)
                    else:
                        self.kept_last = self.joined_block(p + used, end, at)
                    self.first_block = False
            elif self.kept_last and self.assembler is None and self.stage != DONE:
                reserve(end)
                put(p + used, end)
            if self.first_at == 0 and self.stage == HOLDING and self.held_size + scratch_used > self.limit:
                self.fail(
                    "broken_stream", f"the engine sent more than {self.limit} bytes without any output"
                )
            if self.stage == FAILED:
                return n
            used += end
        return used

    cdef bint block(self, const unsigned char* p, Py_ssize_t n, Py_ssize_t only, double at):
        # One event block, of which one line may be all there is (see Sse); returns whether it was passed on.
        cdef Event fields
        cdef Facts facts
        cdef Line line
        cdef Edit edits[MAX_SPANS + 1]
        cdef Py_ssize_t cursor = 0, offset = 0, copied = 0, figure_size = 0
        cdef const unsigned char* data
        cdef Py_ssize_t size
        cdef bytes joined
        cdef int count = 0, i
        cdef bint done

        if sse_one_data(p, only, &fields.first):
            fields.data_lines = 1
            fields.is_error = False
        else:
            sse_fields(p, n, self.first_block, &fields)
        if self.stage == DONE:
            if fields.data_lines > 0:
                self.dropped_after_done += 1
            return False
        if fields.data_lines == 0 or (
            fields.data_lines == 1 and fields.first.start == fields.first.end and not fields.is_error
        ):
            # Nothing to read: comments, or an event with empty data, as some servers send to be heard.
            if self.assembler is None:
                reserve(n)
                put(p, n)
            return True
        if fields.data_lines == 1:
            data = p + fields.first.start
            size = fields.first.end - fields.first.start
        else:
            joined = self.lines_of(p, n)
            data = <const unsigned char*>PyBytes_AS_STRING(joined)
            size = PyBytes_GET_SIZE(joined)
        done = size == 6 and memcmp(data, b"[DONE]", 6) == 0
        if done:
            if self.first_at == 0 and not self.finished:
                self.fail("broken_stream", "the engine sent [DONE] without output or a finish reason")
                return False
            self.stage = DONE
            if self.assembler is None:
                reserve(n + 1)
                put(p, n)
                if n >= 2 and p[n - 1] == c'\r' and p[n - 2] == c'\n':
                    # The LF of this CRLF comes with the next read, which the client shall not wait for.
                    put(b"\n", 1)
            return True
        if not self.event(data, size, at, fields.is_error, &facts):
            return False
        if self.assembler is not None:
            return True

        # Collect the edits in order, then copy the block with them.
        if not self.keep_ids:
            for i in range(facts.span_count):
                edits[count].start = facts.spans[i].start
                edits[count].end = facts.spans[i].end
                edits[count].put = 0
                count += 1
        if self.cached_figure is not None and facts.cached_tokens >= 0:
            figure_size = PyBytes_GET_SIZE(self.cached_figure)
            i = count
            while i > 0 and edits[i - 1].start > facts.cached_value.start:
                edits[i] = edits[i - 1]
                i -= 1
            edits[i].start = facts.cached_value.start
            edits[i].end = facts.cached_value.end
            edits[i].put = figure_size
            count += 1
        reserve(n + figure_size)
        if count == 0:
            put(p, n)
            return True
        if fields.data_lines == 1:
            put(p, fields.first.start)
            put_edited(data, size, 0, edits, count, self.cached_figure)
            put(p + fields.first.end, n - fields.first.end)
            return True
        cursor = 0
        while sse_next_data(p, n, self.first_block, &cursor, &line):
            put(p + copied, line.start - copied)
            put_edited(p + line.start, line.end - line.start, offset, edits, count, self.cached_figure)
            offset += line.end - line.start + 1
            copied = line.end
        put(p + copied, n - copied)
        return True

    cdef bint joined_block(self, const unsigned char* p, Py_ssize_t n, double at):
        # One event block of an attempt that goes on with an answer.
        cdef Event fields
        cdef bytes data
        sse_fields(p, n, self.first_block, &fields)
        data = self.lines_of(p, n)
        if self.stage == DONE or fields.is_error or not data or data == b"[DONE]":
            return self.block(p, n, self.sse.only, at)
        try:
            data = self.join.event(data)
        except Exception as error:  # an event of a shape that nobody thought of; the answer must not skip it
            self.unjoinable = True
            self.fail("broken_stream", f"the answer can't be gone on with: {error}")
            return False
        if data is None:
            return False
        data = b"data: %b\n\n" % data.replace(b"\n", b" ")  # white space, where it stands between values
        n = PyBytes_GET_SIZE(data)
        return self.block(<const unsigned char*>PyBytes_AS_STRING(data), n, n - 2, at)

    cdef bytes lines_of(self, const unsigned char* p, Py_ssize_t n):
        # A block's data, its lines joined.
        cdef Py_ssize_t cursor = 0
        cdef Line line
        cdef list lines = []
        while sse_next_data(p, n, self.first_block, &cursor, &line):
            lines.append(PyBytes_FromStringAndSize(<const char*>p + line.start, line.end - line.start))
        return b"\n".join(lines)

    cdef bint event(self, const unsigned char* data, Py_ssize_t size, double at, bint is_error, Facts* facts):
        # Account for one event's JSON; returns whether it may be passed on.
        scan_event(data, size, facts, &self.memo)
        if facts.error != NULL:
            if is_error:
                self.error_object = PyBytes_FromStringAndSize(<const char*>data, size)
                self.fail("engine_error", "the engine sent an error event")
            else:
                self.fail(
                    "broken_stream",
                    f"an event of the engine's can't be read: {facts.error.decode()} "
                    f"(byte {facts.error_at} of its data)",
                )
            return False
        if facts.has_error or is_error:
            if facts.has_error:
                self.error_object = PyBytes_FromStringAndSize(
                    <const char*>data + facts.error_object.start,
                    facts.error_object.end - facts.error_object.start,
                )
            else:
                self.error_object = PyBytes_FromStringAndSize(<const char*>data, size)
            self.fail("engine_error", "the engine sent an error in its stream")
            return False
        if self.need_ids:
            if facts.ids == IDS_MALFORMED:
                self.fail(
                    "token_ids",
                    f"event {self.output_events + 1} with output: `token_ids` holds "
                    f"{facts.ids_error.decode()}",
                )
                return False
            if facts.has_output and facts.ids != IDS_VALID:
                self.fail(
                    "token_ids", f"event {self.output_events + 1} with output carries no `token_ids` list"
                )
                return False
            self.tokens += facts.id_count
        if facts.has_output:
            self.output_events += 1
        if facts.has_output or facts.id_count > 0:
            self.last_at = at
            if self.first_at == 0:
                self.first_at = at
        if facts.finished:
            self.finished = True
        if facts.has_usage:
            if 0 <= facts.prompt_tokens <= MOST_TOKENS:
                self.prompt_tokens = facts.prompt_tokens
            if 0 <= facts.completion_tokens <= MOST_TOKENS:
                self.completion_tokens = facts.completion_tokens
        if self.recall is not None:
            self.recall.note(data, size)
        if self.assembler is not None:
            if self.assembler.add(data, size) < 0:
                self.fail(
                    "response_too_large" if self.assembler.too_large else "assembly", self.assembler.error
                )
                return False
            return True
        if facts.has_usage and facts.choices <= 0:
            self.usage_told = True
            return self.keep_usage
        return True

    cdef void fail(self, str name, str message):
        if self.stage == FAILED or self.settled:
            return
        self.stage = FAILED
        self.failure = name
        self.failure_message = message
        self.pending = None

    cdef void too_large(self):
        self.fail("broken_stream", f"an event of the engine's is larger than {self.limit} bytes")

    cdef void end_of_body(self, str why):
        """The engine's reply is over: fine after [DONE], a broken stream before."""
        if self.stage != DONE:
            self.fail("broken_stream", why)
        self.flush()
        self.settle()

    # ---- writing

    cdef void flush(self):
        """Send what the read has brought, as one write."""
        try:
            self.send_read()
        finally:
            empty_scratch()
        if self.first_at != 0 and not self.announced and not self.settled:
            self.announced = True
            self.owner.on_output()

    cdef void send_read(self):
        cdef bint last = self.stage == DONE
        cdef Py_ssize_t skipped = 0
        if self.settled or self.closed_out or self.assembler is not None:
            return
        if self.first_at == 0 and not last:
            if self.stage == HOLDING:
                self.hold()
            else:
                self.held = None
            return
        # After a failure too: what came before it is whole, and was produced.
        if self.held is not None:
            self.release_held()
        if self.stage == HOLDING:
            self.stage = FLOWING
        if self.head_sent and not self.announced and has_mark(scratch + ROOM, scratch_used):
            # Comments went before it, where it would be part of a field's name.
            skipped = 3
        self.send_chunk(scratch + ROOM + skipped, scratch_used - skipped, last)

    cdef void hold(self):
        if scratch_used == 0:
            return
        if self.held is None:
            self.held = []
        self.held.append(PyBytes_FromStringAndSize(<const char*>scratch + ROOM, scratch_used))
        self.held_size += scratch_used

    cdef void release_held(self):
        # Put what was held in front of what the read has brought.
        global scratch_used
        cdef bytes early = b"".join(self.held)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(early)
        self.held = None
        self.held_size = 0
        reserve(n)
        memmove(scratch + ROOM + n, scratch + ROOM, scratch_used)
        memcpy(scratch + ROOM, PyBytes_AS_STRING(early), n)
        scratch_used += n

    cdef void send_chunk(self, const unsigned char* p, Py_ssize_t n, bint last):
        # p is in the scratch buffer, with ROOM bytes before it and TAIL_ROOM behind.
        cdef unsigned char* start = <unsigned char*>p
        cdef unsigned char* end = start + n
        cdef Py_ssize_t left = n
        if n == 0 and not last:
            return
        self.closed_out = last
        if self.framed:
            if n > 0:
                start -= 2
                start[0] = c'\r'
                start[1] = c'\n'
                while left:
                    start -= 1
                    start[0] = b"0123456789abcdef"[left & 15]
                    left >>= 4
                end[0] = c'\r'
                end[1] = c'\n'
                end += 2
            if last:
                memcpy(end, b"0\r\n\r\n", 5)
                end += 5
        if not self.head_sent:
            self.head_sent = True
            self.outlet.write_bytes(
                self.head + PyBytes_FromStringAndSize(<const char*>start, end - start)
            )
        else:
            self.outlet.write(start, end - start)

    cdef void settle(self):
        """Tell the owner once that the answer is over, if it is."""
        if self.stage >= DONE and not self.settled:
            self.settled = True
            self.pending = None
            self.owner.on_end()

    def comment(self) -> None:
        """Send a comment, and the head before it, so that a silent connection is not taken for dead.

        Nothing is sent when assembling, or after the end of the reply.
        """
        self.append(b": keep-alive\n\n", False)

    def end_with(self, bytes event not None) -> None:
        """End a stream that is under way with this last event."""
        self.append(event, True)

    cdef void append(self, bytes block, bint last):
        if self.outlet is None or self.closed_out:
            return
        try:
            reserve(PyBytes_GET_SIZE(block))
            put(<const unsigned char*>PyBytes_AS_STRING(block), PyBytes_GET_SIZE(block))
            self.send_chunk(scratch + ROOM, scratch_used, last)
        finally:
            empty_scratch()

    def release(self) -> None:
        """The owner has no more use for it: let go of each other, so that neither waits for the collector."""
        self.owner = None
        self.assembler = None
        self.recall = None
        self.join = None
        self.settled = True

    def abandon(self) -> None:
        """The attempt is over: its stream's rest is dropped, and nobody told."""
        self.settled = True
        self.pending = None
        self.held = None
        if self.stage < DONE:
            self.stage = FAILED

    def feed(self, bytes payload not None) -> None:
        """Consume and flush one read's payload, as the engine's connection does."""
        self.consume(<const unsigned char*>PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), now())
        self.flush()
        self.settle()

    def end_feed(self) -> None:
        """The engine's reply is over."""
        self.end_of_body("the engine's stream ended without [DONE]")
