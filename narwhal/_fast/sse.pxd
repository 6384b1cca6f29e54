# Server-sent events: where blocks end, and the fields in one. See sse.pyx.

cdef enum SseStep:
    SSE_MORE = 0        # no complete block yet
    SSE_EVENT = 1       # a block, with its blank line
    SSE_TAIL = 2        # a lone LF, the second half of the CRLF that ended the previous block

cdef struct Sse:
    Py_ssize_t at       # how far the block at hand has been looked through
    Py_ssize_t line     # where its current line begins
    bint after_cr       # the byte before `at` is a CR, so that an LF now ends no line of its own
    bint filled         # the block has a line that is not blank
    Py_ssize_t only     # where the block's only line that is not blank ends, if it begins the block; else -1
    bint first          # the stream's first block, which may begin with a byte order mark

cdef struct Line:       # the value of one data line, without its line ending
    Py_ssize_t start
    Py_ssize_t end

cdef struct Event:
    int data_lines
    Line first          # the value of the first data line, if there is one
    bint is_error       # the `event` field says "error"
    bint only_comments  # no field at all

cdef void sse_reset(Sse* s) noexcept nogil
# Find the first complete block in p[0:n], where p is the first byte not yet returned: after SSE_MORE call
# again with the same start and more bytes, and none is looked at twice. SSE_EVENT: the block is p[0:end], its
# leading blank lines and its final blank line included. A block that ends in a CR that is the last byte here
# is returned at once, and if an LF turns out to follow, the next call gives SSE_TAIL with end 1: it goes
# where the block went. The size of a block is not bounded here: after SSE_MORE it is at least n, and the
# caller knows its bound.
cdef SseStep sse_next(Sse* s, const unsigned char* p, Py_ssize_t n, Py_ssize_t* end) noexcept nogil
# Whether a block, p, is nothing but one data line, as nearly all are, and its value. `only` is the Sse's.
cdef bint sse_one_data(const unsigned char* p, Py_ssize_t only, Line* value) noexcept nogil
# Read the fields of a block. `first_block`: the stream's first, so skip a byte order mark.
cdef void sse_fields(const unsigned char* p, Py_ssize_t n, bint first_block, Event* event) noexcept nogil
# The data lines of a block, one a call: True with `line` set, or False when there are no more. `at` starts at
# 0 and is kept by the function.
cdef bint sse_next_data(
    const unsigned char* p, Py_ssize_t n, bint first_block, Py_ssize_t* at, Line* line
) noexcept nogil
