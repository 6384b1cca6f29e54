"""Heads of HTTP/1 messages (RFC 9112), read line by line and strictly.

Where a body ends must not be a matter of opinion. Whatever two parsers may take in two ways is refused here:
several or odd lengths, a length and a transfer coding together, codings other than chunked, folded lines,
bare CR or LF, white space before a colon, control characters. (A response may give one length twice, as RFC
9110, section 8.6 allows; it has no other message behind it.) An engine's response is read for the few facts
the relay goes by, a client's request for all.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcmp, memset

cdef enum:
    MAX_HEAD = 64 * 1024        # bytes
    IS_NAME = 1                 # may stand in a token: methods and field names
    IS_TEXT = 2                 # may stand in a field's value
    IS_VISIBLE = 4              # visible ASCII: may stand in a request's target

cdef unsigned char CLASSES[256]


cdef void fill_classes() noexcept:
    cdef int b
    for b in range(256):
        CLASSES[b] = 0
        if b in b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz":
            CLASSES[b] |= IS_NAME
        if b == 0x09 or (b >= 0x20 and b != 0x7F):
            CLASSES[b] |= IS_TEXT
        if 0x21 <= b <= 0x7E:
            CLASSES[b] |= IS_VISIBLE


fill_classes()


cdef struct Span:
    Py_ssize_t start
    Py_ssize_t end

cdef enum Step:
    BAD = -1
    MORE = 0        # the line isn't complete
    FIELD = 1
    LAST = 2        # the empty line

# Reads a head from its first line on. What the fields say of the body is kept here for either kind of
# message.
cdef struct Reader:
    const unsigned char* p
    Py_ssize_t n
    Py_ssize_t at               # the byte to read next
    Py_ssize_t line             # where the line at hand begins
    const char* error
    Span name
    Span value                  # without the white space round it
    long long content_length    # -1: none yet
    bint chunked
    bint request                # no length may be given twice, not even the same one


cdef void open_head(Reader* r, const unsigned char* p, Py_ssize_t n) noexcept nogil:
    memset(r, 0, sizeof(Reader))
    r.p = p
    r.n = n
    r.content_length = -1


cdef inline Step fail(Reader* r, const char* why) noexcept nogil:
    r.error = why
    return BAD


cdef inline Step end_line(Reader* r, const char* why) noexcept nogil:
    # Step over the CRLF that should be here; `why` is the error if another byte that ends a text is.
    cdef unsigned char b
    if r.at == r.n:
        return MORE
    b = r.p[r.at]
    if b == c'\r':
        if r.at + 1 == r.n:
            return MORE
        if r.p[r.at + 1] == c'\n':
            r.at += 2
            return FIELD
        return fail(r, b"a bare CR; lines end in CRLF")
    if b == c'\n':
        return fail(r, b"a bare LF; lines end in CRLF")
    return fail(r, why)


cdef inline bint is_word(
    const unsigned char* p, Span* span, const char* word, Py_ssize_t length
) noexcept nogil:
    # Whether the span is this word of lower-case letters and -, in any case. No byte but the two cases of a
    # letter turns into it, and none but - and CR into -.
    cdef Py_ssize_t i
    if span.end - span.start != length:
        return False
    for i in range(length):
        if (p[span.start + i] | 0x20) != <unsigned char>word[i]:
            return False
    return True


cdef inline void trim(const unsigned char* p, Span* span) noexcept nogil:
    while span.start < span.end and (p[span.start] == c' ' or p[span.start] == c'\t'):
        span.start += 1
    while span.end > span.start and (p[span.end - 1] == c' ' or p[span.end - 1] == c'\t'):
        span.end -= 1


cdef inline bint next_element(const unsigned char* p, Span* rest, Span* element) noexcept nogil:
    # Take the first element off a comma-separated list, empty ones included. After the last one `rest` starts
    # beyond its end.
    if rest.start > rest.end:
        return False
    element.start = rest.start
    while rest.start < rest.end and p[rest.start] != c',':
        rest.start += 1
    element.end = rest.start
    rest.start += 1
    trim(p, element)
    return True


cdef long long natural(const unsigned char* p, Span* span) noexcept nogil:
    # A number of 1 to 19 digits and at most 2**63-1, else -1.
    cdef unsigned long long total = 0
    cdef Py_ssize_t i
    if not 1 <= span.end - span.start <= 19:
        return -1
    for i in range(span.start, span.end):
        if not c'0' <= p[i] <= c'9':
            return -1
        total = total * 10 + (p[i] - c'0')
    if total > <unsigned long long>0x7FFFFFFFFFFFFFFF:
        return -1
    return <long long>total


cdef Step read_framing(Reader* r) noexcept nogil:
    # Take from the field at hand what it says of the body, if it does.
    cdef Span rest, element
    cdef long long length
    cdef Py_ssize_t size = r.name.end - r.name.start
    if size == 14 and is_word(r.p, &r.name, b"content-length", 14):
        rest = r.value
        while next_element(r.p, &rest, &element):
            length = natural(r.p, &element)
            if length < 0:
                return fail(r, b"Content-Length must be digits, at most 19 of them and at most 2**63-1")
            if r.content_length >= 0 and r.request:
                return fail(r, b"Content-Length is given twice")
            if r.content_length >= 0 and r.content_length != length:
                return fail(r, b"Content-Length is given twice, with different values")
            r.content_length = length
    elif size == 17 and is_word(r.p, &r.name, b"transfer-encoding", 17):
        if r.chunked or not is_word(r.p, &r.value, b"chunked", 7):
            return fail(r, b"Transfer-Encoding must be chunked, once, and nothing else")
        r.chunked = True
    else:
        return FIELD
    if r.chunked and r.content_length >= 0:
        return fail(r, b"both Content-Length and Transfer-Encoding are given")
    return FIELD


cdef Step read_field(Reader* r) noexcept nogil:
    # Read one field line, or the empty line.
    cdef Step step
    cdef const unsigned char* p = r.p
    cdef Py_ssize_t i = r.at, n = r.n
    r.line = i
    while i < n and CLASSES[p[i]] & IS_NAME:
        i += 1
    r.name.start = r.at
    r.name.end = r.at = i
    if i == n:
        return MORE
    if p[i] != c':':
        if i == r.line:
            if p[i] == c' ' or p[i] == c'\t':
                return fail(r, b"a line begins with white space; a field must be on one line")
            step = end_line(r, b"a field's name may only be letters, digits and !#$%&'*+-.^_`|~")
            return LAST if step == FIELD else step
        if p[i] == c' ' or p[i] == c'\t':
            return fail(r, b"white space in or after a field's name")
        step = end_line(r, b"a field's name may only be letters, digits and !#$%&'*+-.^_`|~")
        return fail(r, b"a line without a colon") if step == FIELD else step
    if i == r.line:
        return fail(r, b"a field without a name")
    i += 1
    r.value.start = i
    while i < n and CLASSES[p[i]] & IS_TEXT:
        i += 1
    r.value.end = r.at = i
    step = end_line(r, b"a control character in a field's value")
    if step != FIELD:
        return step
    trim(p, &r.value)
    return read_framing(r)


cdef Step read_status_line(Reader* r, ResponseHead* head) noexcept nogil:
    cdef const char* form = b"the status line must read HTTP/1.0 or HTTP/1.1, a space, three digits"
    cdef const unsigned char* p = r.p
    cdef Py_ssize_t i = 0
    cdef unsigned char b
    head.status = 0
    while i < 12:
        if i == r.n:
            return MORE
        b = p[i]
        if i < 7:
            if b != <unsigned char>(<const char*>b"HTTP/1.")[i]:
                return fail(r, form)
        elif i == 7:
            if b != c'0' and b != c'1':
                return fail(r, form)
            head.minor_version = b - c'0'
        elif i == 8:
            if b != c' ':
                return fail(r, form)
        else:
            if not (c'1' if i == 9 else c'0') <= b <= c'9':
                return fail(r, form)
            head.status = head.status * 10 + (b - c'0')
        i += 1
    # The reason may be empty, and some leave out the space before it too.
    r.at = 12
    if r.n == 12 or p[12] != c' ':
        return end_line(r, form)
    while r.at < r.n and CLASSES[p[r.at]] & IS_TEXT:
        r.at += 1
    return end_line(r, b"a control character in the status line")


cdef Py_ssize_t read_response_head(
    const unsigned char* p, Py_ssize_t n, ResponseHead* head, const char** error
) noexcept nogil:
    cdef Reader r
    cdef Span rest, element
    cdef bint close = False, keep_alive = False
    cdef Py_ssize_t size
    cdef Step step
    open_head(&r, p, n if n < MAX_HEAD else MAX_HEAD)
    head.event_stream = False
    head.retry_after = -1
    step = read_status_line(&r, head)
    while step == FIELD:
        step = read_field(&r)
        if step != FIELD:
            break
        size = r.name.end - r.name.start
        if size == 10 and is_word(p, &r.name, b"connection", 10):
            rest = r.value
            while next_element(p, &rest, &element):
                close = close or is_word(p, &element, b"close", 5)
                keep_alive = keep_alive or is_word(p, &element, b"keep-alive", 10)
        elif size == 12 and is_word(p, &r.name, b"content-type", 12):
            element.start = r.value.start
            element.end = r.value.start
            while element.end < r.value.end and p[element.end] != c';':
                element.end += 1
            trim(p, &element)
            head.event_stream = is_word(p, &element, b"text/event-stream", 17)
        elif size == 11 and is_word(p, &r.name, b"retry-after", 11):
            head.retry_after = <long>natural(p, &r.value)
    if step == LAST and r.chunked and head.minor_version == 0:
        step = fail(&r, b"Transfer-Encoding in an HTTP/1.0 message")
    if step == MORE and n >= MAX_HEAD:
        step = fail(&r, b"the head is longer than 65536 bytes")
    if step == BAD:
        error[0] = r.error
        return -1
    if step == MORE:
        return 0
    head.content_length = r.content_length
    head.chunked = r.chunked
    head.keep_alive = not close and (head.minor_version == 1 or keep_alive)
    return r.at


cdef struct RequestLine:
    Span method
    Span target
    int minor_version


cdef Step read_request_line(Reader* r, RequestLine* line) noexcept nogil:
    cdef const unsigned char* p = r.p
    cdef Py_ssize_t i, n = r.n
    cdef const char* form = b"the request line must be a method, a target and a version, a space between each"
    # A client may send an empty line after the body before; RFC 9112, section 2.2 asks to skip it.
    if n >= 2 and p[0] == c'\r' and p[1] == c'\n':
        r.at = r.line = 2
    i = r.at
    while i < n and CLASSES[p[i]] & IS_NAME:
        i += 1
    line.method.start, line.method.end = r.at, i
    if i == r.at or i == n or p[i] != c' ':
        return fail(r, form)
    i += 1
    r.at = i
    while i < n and CLASSES[p[i]] & IS_VISIBLE:
        i += 1
    line.target.start, line.target.end = r.at, i
    if i == r.at or i == n or p[i] != c' ':
        return fail(r, form)
    i += 1
    if n - i < 8 or memcmp(p + i, b"HTTP/", 5) != 0:
        return fail(r, form)
    if p[i + 5] != c'1' or p[i + 6] != c'.' or not c'0' <= p[i + 7] <= c'1':
        return fail(r, b"the version must be HTTP/1.0 or HTTP/1.1")
    line.minor_version = p[i + 7] - c'0'
    r.at = i + 8
    return end_line(r, form)


cdef bytes lower(const unsigned char* p, Span* span):
    cdef Py_ssize_t i, size = span.end - span.start
    # Made empty and filled: of one byte there is one object for everybody, which is not to be changed.
    cdef bytes name = PyBytes_FromStringAndSize(NULL, size)
    cdef unsigned char* text = <unsigned char*>PyBytes_AS_STRING(name)
    cdef unsigned char b
    for i in range(size):
        b = p[span.start + i]
        text[i] = b | 0x20 if c'A' <= b <= c'Z' else b
    return name


cdef Step read_request(Reader* r, RequestLine* line, dict headers, bint* close):
    cdef int hosts = 0
    cdef Py_ssize_t size
    cdef Span rest, element
    cdef Step step
    cdef bytes name, value
    r.request = True
    step = read_request_line(r, line)
    while step == FIELD:
        step = read_field(r)
        if step != FIELD:
            break
        size = r.name.end - r.name.start
        name = lower(r.p, &r.name)
        value = PyBytes_FromStringAndSize(<const char*>r.p + r.value.start, r.value.end - r.value.start)
        if size == 4 and is_word(r.p, &r.name, b"host", 4):
            hosts += 1
            if hosts > 1:
                return fail(r, b"Host is given twice")
        elif size == 10 and is_word(r.p, &r.name, b"connection", 10):
            rest = r.value
            while next_element(r.p, &rest, &element):
                close[0] = close[0] or is_word(r.p, &element, b"close", 5)
        headers[name] = value
    if step == MORE:
        return fail(r, b"the head ends before its empty line")
    if step == BAD:
        return BAD
    if r.at != r.n:
        return fail(r, b"something follows the head")
    if r.chunked and line.minor_version == 0:
        return fail(r, b"Transfer-Encoding in an HTTP/1.0 message")
    if hosts == 0 and line.minor_version == 1:
        return fail(r, b"an HTTP/1.1 request needs a Host field")
    return LAST


def read_request_head(bytes head not None):
    """Read a request's raw head, its final CRLF CRLF included, and refuse forms that parsers differ on.

    Returns (method, target, headers, whether it is HTTP/1.1, whether the connection is to be closed,
    Content-Length in bytes or -1, whether the body is chunked). The headers have lower-case names; the last
    of equal ones is kept. Raises ValueError with the reason and the line it was found on.
    """
    cdef Reader r
    cdef RequestLine line
    cdef bint close = False
    cdef dict headers = {}
    cdef const char* text = PyBytes_AS_STRING(head)
    open_head(&r, <const unsigned char*>text, len(head))
    if read_request(&r, &line, headers, &close) == BAD:
        shown = head[r.line:].partition(b"\n")[0].rstrip(b"\r")[:60].decode("latin-1")
        raise ValueError(f"{r.error.decode()}; seen {shown!a}" if shown else r.error.decode())
    return (
        head[line.method.start:line.method.end].decode("ascii"),
        head[line.target.start:line.target.end],
        headers,
        line.minor_version == 1,
        close,
        r.content_length,
        r.chunked,
    )


def parse_response_head(const unsigned char[::1] data not None):
    """Read the response head that `data` begins with.

    Returns None if more is needed, else (its length in bytes, a dict of ResponseHead's fields). Raises
    ValueError with the reason if it is malformed.
    """
    cdef ResponseHead head
    cdef const char* error = NULL
    cdef Py_ssize_t n = data.shape[0]
    cdef Py_ssize_t length = read_response_head(&data[0] if n else NULL, n, &head, &error)
    if length < 0:
        raise ValueError(error.decode())
    return (length, head) if length else None
