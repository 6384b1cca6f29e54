"""Server-sent events (WHATWG HTML, section 9.2), framed in place.

A relay needs to know where each event ends before it needs to know what it says. A block is everything up to
and including the blank line that dispatches an event; blocks put one after another are the stream, byte for
byte. Comments with a blank line after them are a block too, so that a keep-alive passes when it comes.

Line endings are LF, CRLF and CR. A CR at the end of a read is the hard case: the LF that may follow must not
hold the event back, nor count as a blank line when it comes.
"""

from libc.string cimport memchr, memcmp


cdef enum:
    AT_A_TIME = 512     # bytes


cdef inline Py_ssize_t line_end(const unsigned char* p, Py_ssize_t i, Py_ssize_t n) noexcept nogil:
    # Where the first CR or LF of p[i:n] is, or n. Each is searched for by memchr, which takes 32 bytes at a
    # time; piece by piece, or in a stream of one ending the search for the other would go to the end of the
    # buffer for each line.
    cdef Py_ssize_t size
    cdef const unsigned char* found
    cdef const unsigned char* earlier
    while i < n:
        size = n - i if n - i < AT_A_TIME else AT_A_TIME
        found = <const unsigned char*>memchr(p + i, c'\n', size)
        if found != NULL:
            size = found - (p + i)
        earlier = <const unsigned char*>memchr(p + i, c'\r', size)
        if earlier != NULL:
            return earlier - p
        if found != NULL:
            return found - p
        i += size
    return n


cdef inline bint has_bom(const unsigned char* p, Py_ssize_t n) noexcept nogil:
    return n >= 3 and p[0] == 0xEF and p[1] == 0xBB and p[2] == 0xBF


cdef void sse_reset(Sse* s) noexcept nogil:
    s.at = 0
    s.line = 0
    s.after_cr = False
    s.filled = False
    s.only = -1
    s.first = True


cdef SseStep sse_next(Sse* s, const unsigned char* p, Py_ssize_t n, Py_ssize_t* end) noexcept nogil:
    cdef Py_ssize_t i = s.at, end_of_line
    cdef bint blank
    if i >= n:
        return SSE_MORE
    if s.after_cr:
        s.after_cr = False
        if p[i] == c'\n':
            if i == 0:
                end[0] = 1
                return SSE_TAIL
            i += 1
            s.line = i
    while True:
        i = line_end(p, i, n)
        if i == n:
            s.at = n
            return SSE_MORE
        blank = i == s.line or (i == 3 and s.line == 0 and s.first and has_bom(p, n))
        end_of_line = i
        i += 1
        if p[i - 1] == c'\r':
            if i == n:
                s.after_cr = True
            elif p[i] == c'\n':
                i += 1
        if blank and s.filled:
            s.at = s.line = 0
            s.filled = s.first = False
            end[0] = i
            return SSE_EVENT
        if not blank:
            s.only = end_of_line if s.line == 0 else -1
            s.filled = True
        s.line = i


cdef inline Py_ssize_t past_line(const unsigned char* p, Py_ssize_t n, Py_ssize_t end) noexcept nogil:
    if end + 1 < n and p[end] == c'\r' and p[end + 1] == c'\n':
        return end + 2
    return end + 1


cdef inline bint read_field(
    const unsigned char* p, Py_ssize_t start, Py_ssize_t end, const char* name, Py_ssize_t length, Line* value
) noexcept nogil:
    # Whether the line p[start:end] is a field of this name, and its value.
    if end - start < length or memcmp(p + start, name, length) != 0:
        return False
    start += length
    if start < end:
        if p[start] != c':':
            return False
        start += 1
        if start < end and p[start] == c' ':
            start += 1
    value.start = start
    value.end = end
    return True


cdef bint sse_one_data(const unsigned char* p, Py_ssize_t only, Line* value) noexcept nogil:
    return only > 0 and read_field(p, 0, only, b"data", 4, value)


cdef void sse_fields(const unsigned char* p, Py_ssize_t n, bint first_block, Event* event) noexcept nogil:
    cdef Py_ssize_t i = 3 if first_block and has_bom(p, n) else 0
    cdef Py_ssize_t end
    cdef Line value
    event.data_lines = 0
    event.first.start = event.first.end = 0
    event.is_error = False
    event.only_comments = True
    while i < n:
        end = line_end(p, i, n)
        if end > i and p[i] != c':':
            event.only_comments = False
            if read_field(p, i, end, b"data", 4, &value):
                if event.data_lines == 0:
                    event.first = value
                event.data_lines += 1
            elif read_field(p, i, end, b"event", 5, &value):
                event.is_error = value.end - value.start == 5 and memcmp(p + value.start, b"error", 5) == 0
        i = past_line(p, n, end)


cdef bint sse_next_data(
    const unsigned char* p, Py_ssize_t n, bint first_block, Py_ssize_t* at, Line* line
) noexcept nogil:
    cdef Py_ssize_t i = at[0]
    cdef Py_ssize_t end
    if i == 0 and first_block and has_bom(p, n):
        i = 3
    while i < n:
        end = line_end(p, i, n)
        at[0] = past_line(p, n, end)
        if read_field(p, i, end, b"data", 4, line):
            return True
        i = at[0]
    return False


cdef class SseDecoder:
    """Cuts a stream into blocks, fed in any pieces, the way the relay does."""

    cdef Sse s
    cdef bytearray held

    def __cinit__(self):
        sse_reset(&self.s)
        self.held = bytearray()

    @property
    def rest(self):
        """The bytes of the block that is not complete yet."""
        return bytes(self.held)

    def feed(self, const unsigned char[::1] data not None):
        """Return the blocks that `data` completes. A block b"\\n" is the LF of the CRLF that ended the block
        before it (no other block is that short)."""
        cdef list blocks = []
        cdef Py_ssize_t start = 0, end = 0, n
        cdef const unsigned char* p
        self.held += data
        p = self.held
        n = len(self.held)
        while sse_next(&self.s, p + start, n - start, &end) != SSE_MORE:
            blocks.append(p[start:start + end])
            start += end
        del self.held[:start]
        return blocks


def parse_fields(const unsigned char[::1] block not None, bint first_block=False):
    """Read a block's fields. Returns (the value of its first data line or None, those of all its data lines,
    is_error, only_comments)."""
    cdef Event event
    cdef Line line
    cdef Py_ssize_t n = block.shape[0], at = 0
    cdef const unsigned char* p = &block[0] if n else NULL
    cdef list data = []
    sse_fields(p, n, first_block, &event)
    while sse_next_data(p, n, first_block, &at, &line):
        data.append(p[line.start:line.end])
    first = p[event.first.start:event.first.end] if event.data_lines else None
    return first, data, event.is_error, event.only_comments
