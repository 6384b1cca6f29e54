"""Chunked transfer coding (RFC 9112, section 7.1), decoded in place.

A state machine over the framing bytes; payload is never copied or looked at, only pointed to. It is strict,
since two parsers that differ on where a body ends are how requests are smuggled: lines end in CRLF, a size
is bare hex digits, every line and the trailers as a whole are bounded. Extensions and trailers say nothing
the router reads; they are checked and skipped.
"""

from libc.stdint cimport uint64_t

cdef enum:
    MAX_SIZE_LINE = 1024        # bytes, without its CRLF
    MAX_TRAILERS = 16 * 1024    # bytes, with the CRLF that ends them

cdef uint64_t MAX_SIZE = <uint64_t>1 << 62

# What the next byte is.
cdef enum:
    AT_SIZE
    IN_SIZE
    IN_SPACE
    IN_EXTENSION
    AT_SIZE_LF
    IN_DATA
    AT_DATA_CR
    AT_DATA_LF
    AT_TRAILER
    IN_TRAILER_NAME
    IN_TRAILER_VALUE
    AT_TRAILER_LF
    AT_LAST_LF
    AT_END
    AT_ERROR


cdef void chunked_reset(Chunked* c) noexcept nogil:
    c.state = AT_SIZE
    c.length = 0
    c.left = 0
    c.error = NULL


cdef inline int hex_digit(unsigned char b) noexcept nogil:
    if c'0' <= b <= c'9':
        return b - c'0'
    b |= 0x20
    if c'a' <= b <= c'f':
        return b - c'a' + 10
    return -1


cdef inline bint is_control(unsigned char b) noexcept nogil:
    return (b < 0x20 and b != 0x09) or b == 0x7F


cdef inline bint is_name(unsigned char b) noexcept nogil:
    # tchar of RFC 9110, section 5.6.2.
    return (
        c'a' <= (b | 0x20) <= c'z' or c'0' <= b <= c'9' or b == c'-' or b == c'_' or b == c'!' or b == c'.'
        or c'#' <= b <= c"'" or b == c'*' or b == c'+' or b == c'^' or b == c'`' or b == c'|' or b == c'~'
    )


cdef inline ChunkStep fail(Chunked* c, const char* why) noexcept nogil:
    c.state = AT_ERROR
    c.error = why
    return CHUNK_BAD


cdef ChunkStep chunked_next(
    Chunked* c, const unsigned char* p, Py_ssize_t n, Py_ssize_t* used, Py_ssize_t* at, Py_ssize_t* size
) noexcept nogil:
    cdef Py_ssize_t i = 0
    cdef unsigned char b
    cdef int digit
    used[0] = at[0] = size[0] = 0
    if c.state == AT_END:
        return CHUNK_END
    if c.state == AT_ERROR:
        return CHUNK_BAD
    while i < n:
        if c.state == IN_DATA:
            at[0] = i
            size[0] = n - i if c.left > <uint64_t>(n - i) else <Py_ssize_t>c.left
            i += size[0]
            c.left -= <uint64_t>size[0]
            if c.left == 0:
                c.state = AT_DATA_CR
                # Nearly always the end of the chunk has come with it; taking it here saves a call.
                if n - i >= 2 and p[i] == c'\r' and p[i + 1] == c'\n':
                    i += 2
                    c.state = AT_SIZE
            used[0] = i
            return CHUNK_DATA

        b = p[i]
        i += 1
        if c.state <= IN_EXTENSION:
            if b == c'\r' and (c.state == IN_SIZE or c.state == IN_EXTENSION):
                c.state = AT_SIZE_LF
                continue
            c.length += 1
            if c.length > MAX_SIZE_LINE:
                return fail(c, b"a chunk's size line is longer than 1024 bytes")
            if c.state <= IN_SIZE:
                digit = hex_digit(b)
                if digit >= 0:
                    if c.left > MAX_SIZE >> 4 or (c.left == MAX_SIZE >> 4 and digit > 0):
                        return fail(c, b"a chunk's size is larger than 2**62")
                    c.left = c.left << 4 | <uint64_t>digit
                    c.state = IN_SIZE
                    continue
                if c.state == AT_SIZE:
                    return fail(c, b"a chunk's size must begin with a hex digit")
            if c.state == IN_EXTENSION:
                if is_control(b):
                    return fail(c, b"a control character in a chunk's size line")
            elif b == c';':
                c.state = IN_EXTENSION
            elif b == c' ' or b == c'\t':
                c.state = IN_SPACE
            else:
                return fail(c, b"only CRLF or an extension may follow a chunk's size")
        elif c.state == AT_SIZE_LF:
            if b != c'\n':
                return fail(c, b"a chunk's size line must end in CRLF")
            c.length = 0
            c.state = IN_DATA if c.left else AT_TRAILER
        elif c.state == AT_DATA_CR:
            if b != c'\r':
                return fail(c, b"a chunk must end in CRLF after as many bytes as its size says")
            c.state = AT_DATA_LF
        elif c.state == AT_DATA_LF:
            if b != c'\n':
                return fail(c, b"a chunk must end in CRLF after as many bytes as its size says")
            c.state = AT_SIZE
        else:
            c.length += 1
            if c.length > MAX_TRAILERS:
                return fail(c, b"the trailers are longer than 16384 bytes")
            if c.state == AT_TRAILER:
                if b == c'\r':
                    c.state = AT_LAST_LF
                elif is_name(b):
                    c.state = IN_TRAILER_NAME
                else:
                    return fail(c, b"a trailer must begin with a field name")
            elif c.state == IN_TRAILER_NAME:
                if b == c':':
                    c.state = IN_TRAILER_VALUE
                elif not is_name(b):
                    return fail(c, b"a trailer must be a field name, a colon and a value")
            elif c.state == IN_TRAILER_VALUE:
                if b == c'\r':
                    c.state = AT_TRAILER_LF
                elif is_control(b):
                    return fail(c, b"a control character in a trailer")
            elif b != c'\n':
                return fail(c, b"a trailer must end in CRLF")
            elif c.state == AT_TRAILER_LF:
                c.state = AT_TRAILER
            else:
                c.state = AT_END
                used[0] = i
                return CHUNK_END
    used[0] = n
    return CHUNK_MORE


cdef class ChunkedDecoder:
    """Decodes one chunked body, fed in any pieces."""

    cdef Chunked c
    cdef bytes after

    def __cinit__(self):
        chunked_reset(&self.c)
        self.after = b""

    @property
    def done(self):
        """Whether the terminal chunk and its trailers have been read."""
        return self.c.state == AT_END

    @property
    def unused(self):
        """The bytes fed that lie after the end of the body."""
        return self.after

    def feed(self, const unsigned char[::1] data not None):
        """Return the payload in `data`. Raises ValueError, saying what is wrong, at the first malformed byte
        and on every call after it."""
        cdef Py_ssize_t left = data.shape[0], used, at, size
        cdef const unsigned char* p = &data[0] if left else NULL
        cdef list spans = []
        cdef ChunkStep step
        while True:
            step = chunked_next(&self.c, p, left, &used, &at, &size)
            if step == CHUNK_DATA:
                spans.append(p[at:at + size])
            elif step == CHUNK_BAD:
                raise ValueError(self.c.error.decode())
            p += used
            left -= used
            if step == CHUNK_END:
                self.after += p[:left]
            if step != CHUNK_DATA:
                return b"".join(spans)
