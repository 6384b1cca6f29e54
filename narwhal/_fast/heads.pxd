# Heads of HTTP/1 messages: an engine's response read, a client's request checked. See heads.pyx.

cdef struct ResponseHead:
    int status
    int minor_version           # of HTTP/1
    long long content_length    # -1: none given
    bint chunked
    bint keep_alive             # the connection may be used again after this response
    bint event_stream           # its Content-Type is text/event-stream
    long retry_after            # seconds; -1: none given, or a date

# Read the head at p[0:n]. Returns its length with the empty line that ends it, 0 if more is needed (call
# again with all of it), or -1 if it is malformed or longer than 64 KiB, and `error` says what is wrong. A 1xx
# head is read like any other; the final one follows it.
cdef Py_ssize_t read_response_head(
    const unsigned char* p, Py_ssize_t n, ResponseHead* head, const char** error
) noexcept nogil
