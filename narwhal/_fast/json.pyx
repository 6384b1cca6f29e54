"""JSON text as structure: where each value begins and ends, and that all of it is well formed.

Engines' events and clients' bodies are read for a few fields and passed on as they came, so nothing here
makes an object. A cursor walks the text once; a caller enters the objects it cares for and has the others
read over, checked all the same. The grammar is RFC 8259: UTF-8 is verified, escapes are verified, a lone
surrogate escape is allowed (Python's json allows it, and engines split pairs over events). Depth is bounded,
so hostile text can't exhaust the stack.
"""

from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #if defined(__SSE2__)
    #include <emmintrin.h>
    #endif

    /* Where the first byte of p[i:n] is that is a quote, a backslash, a control or beyond ASCII, or n. */
    static inline Py_ssize_t plain_end(const unsigned char* p, Py_ssize_t i, Py_ssize_t n) {
    #if defined(__SSE2__)
        const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\\\');
        const __m128i space = _mm_set1_epi8(' ');
        while (i + 16 <= n) {
            const __m128i v = _mm_loadu_si128((const __m128i*)(p + i));
            /* Compared as signed bytes, what is beyond ASCII is less than a space, too. */
            const __m128i either = _mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, backslash));
            const int odd = _mm_movemask_epi8(_mm_or_si128(either, _mm_cmplt_epi8(v, space)));
            if (odd)
                return i + __builtin_ctz(odd);
            i += 16;
        }
    #else
        for (; i + 8 <= n; i += 8) {
            uint64_t w;
            memcpy(&w, p + i, 8);
            if (((w - 0x2020202020202020u) | ((w ^ 0x2222222222222222u) - 0x0101010101010101u)
                 | ((w ^ 0x5C5C5C5C5C5C5C5Cu) - 0x0101010101010101u) | w) & 0x8080808080808080u)
                break;
        }
    #endif
        while (i < n && p[i] != '"' && p[i] != '\\\\' && p[i] >= 0x20 && p[i] < 0x80)
            i++;
        return i;
    }
    """
    Py_ssize_t plain_end(const unsigned char* p, Py_ssize_t i, Py_ssize_t n) noexcept nogil
    int __builtin_ctzll(unsigned long long bits) nogil


cdef void open_text(Cursor* c, const unsigned char* text, Py_ssize_t length) noexcept nogil:
    c.text = text
    c.length = length
    c.at = 0
    c.error = NULL


cdef inline void skip_space(Cursor* c) noexcept nogil:
    cdef unsigned char b
    while c.at < c.length:
        b = c.text[c.at]
        if b > 0x20 or (b != 0x20 and b != 0x0A and b != 0x0D and b != 0x09):
            return
        c.at += 1


cdef inline Kind fail(Cursor* c, const char* why) noexcept nogil:
    if c.error == NULL:
        c.error = why
    return IS_BAD


cdef Kind peek(Cursor* c) noexcept nogil:
    cdef unsigned char b
    skip_space(c)
    if c.at >= c.length:
        return fail(c, b"the text ends where a value should be")
    b = c.text[c.at]
    if b == c'"':
        return IS_STRING
    if b == c'{':
        return IS_OBJECT
    if b == c'[':
        return IS_ARRAY
    if b == c'-' or c'0' <= b <= c'9':
        return IS_INT
    if b == c'n':
        return IS_NULL
    if b == c't':
        return IS_TRUE
    if b == c'f':
        return IS_FALSE
    return fail(c, b"no value begins like this")


cdef void enter(Cursor* c) noexcept nogil:
    c.at += 1


cdef inline bint is_hex(unsigned char b) noexcept nogil:
    return c'0' <= b <= c'9' or c'a' <= b <= c'f' or c'A' <= b <= c'F'


cdef inline Py_ssize_t utf8_length(const unsigned char* p, Py_ssize_t left) noexcept nogil:
    # The length of the well-formed sequence at p (Unicode 15, table 3-7), or 0.
    cdef unsigned char b = p[0]
    if b < 0xC2 or b > 0xF4 or left < 2 or (p[1] & 0xC0) != 0x80:
        return 0
    if b < 0xE0:
        return 2
    if left < 3 or (p[2] & 0xC0) != 0x80:
        return 0
    if b < 0xF0:
        if (b == 0xE0 and p[1] < 0xA0) or (b == 0xED and p[1] > 0x9F):
            return 0
        return 3
    if left < 4 or (p[3] & 0xC0) != 0x80:
        return 0
    if (b == 0xF0 and p[1] < 0x90) or (b == 0xF4 and p[1] > 0x8F):
        return 0
    return 4


cdef Kind read_string(Cursor* c, Value* out) noexcept nogil:
    cdef const unsigned char* p = c.text
    cdef Py_ssize_t i = c.at + 1, n = c.length, step
    cdef unsigned char b
    out.start = c.at
    out.escaped = False
    while True:
        i = plain_end(p, i, n)
        if i >= n:
            c.at = i
            return fail(c, b"a string is not closed")
        b = p[i]
        if b == c'"':
            c.at = out.end = i + 1
            out.kind = IS_STRING
            return IS_STRING
        if b == c'\\':
            out.escaped = True
            if i + 1 >= n:
                c.at = n
                return fail(c, b"a string is not closed")
            b = p[i + 1]
            if b == c'u':
                if i + 6 > n or not (
                    is_hex(p[i + 2]) and is_hex(p[i + 3]) and is_hex(p[i + 4]) and is_hex(p[i + 5])
                ):
                    c.at = i
                    return fail(c, b"\\u needs four hex digits")
                i += 6
            elif (
                b == c'"' or b == c'\\' or b == c'/' or b == c'b' or b == c'f' or b == c'n' or b == c'r'
                or b == c't'
            ):
                i += 2
            else:
                c.at = i
                return fail(c, b"no such escape")
        elif b < 0x20:
            c.at = i
            return fail(c, b"a control character in a string")
        elif b < 0x80:
            i += 1
        else:
            # A script beyond ASCII tends to go on, and many at a time would stop at each of its letters.
            while i < n and p[i] >= 0x80:
                step = utf8_length(p + i, n - i)
                if step == 0:
                    c.at = i
                    return fail(c, b"not UTF-8")
                i += step


cdef inline Py_ssize_t after_digits(const unsigned char* p, Py_ssize_t i, Py_ssize_t n) noexcept nogil:
    # Eight at a time: how many digits a token ID has is hard to predict, for the CPU as well.
    cdef uint64_t w, special
    while i + 8 <= n:
        memcpy(&w, p + i, 8)
        w ^= <uint64_t>0x3030303030303030
        # Marked is what is not 0 to 9 now; as above, the lowest mark is true.
        special = (w | (w + <uint64_t>0x7676767676767676)) & <uint64_t>0x8080808080808080
        if special:
            return i + (__builtin_ctzll(special) >> 3)
        i += 8
    while i < n and c'0' <= p[i] <= c'9':
        i += 1
    return i


cdef Kind read_number(Cursor* c, Value* out) noexcept nogil:
    cdef const unsigned char* p = c.text
    cdef Py_ssize_t i = c.at, n = c.length
    out.start = i
    out.kind = IS_INT
    if p[i] == c'-':
        i += 1
    if i < n and p[i] == c'0':
        i += 1
    elif i < n and c'1' <= p[i] <= c'9':
        i = after_digits(p, i, n)
    else:
        c.at = i
        return fail(c, b"a number needs a digit here")
    if i < n and p[i] == c'.':
        out.kind = IS_FLOAT
        i += 1
        if i >= n or not c'0' <= p[i] <= c'9':
            c.at = i
            return fail(c, b"a number needs a digit here")
        i = after_digits(p, i, n)
    if i < n and (p[i] == c'e' or p[i] == c'E'):
        out.kind = IS_FLOAT
        i += 1
        if i < n and (p[i] == c'+' or p[i] == c'-'):
            i += 1
        if i >= n or not c'0' <= p[i] <= c'9':
            c.at = i
            return fail(c, b"a number needs a digit here")
        i = after_digits(p, i, n)
    c.at = out.end = i
    return out.kind


cdef inline Kind read_word(
    Cursor* c, Value* out, const char* word, Py_ssize_t length, Kind kind
) noexcept nogil:
    if c.at + length > c.length or memcmp(c.text + c.at, word, length) != 0:
        return fail(c, b"no value begins like this")
    out.start = c.at
    c.at += length
    out.end = c.at
    out.kind = kind
    return kind


cdef Kind read_value(Cursor* c, Value* out, int depth) noexcept nogil:
    cdef Kind kind = peek(c)
    cdef Value part
    cdef bint first = True
    cdef int more
    out.kind = IS_BAD
    out.escaped = False
    if kind == IS_STRING:
        return read_string(c, out)
    if kind == IS_INT:
        return read_number(c, out)
    if kind == IS_NULL:
        return read_word(c, out, b"null", 4, IS_NULL)
    if kind == IS_TRUE:
        return read_word(c, out, b"true", 4, IS_TRUE)
    if kind == IS_FALSE:
        return read_word(c, out, b"false", 5, IS_FALSE)
    if kind == IS_BAD:
        return IS_BAD
    if depth >= MAX_DEPTH:
        return fail(c, b"nested too deeply")
    out.start = c.at
    enter(c)
    while True:
        more = next_member(c, &first, &part) if kind == IS_OBJECT else next_item(c, &first)
        if more == 0:
            break
        if more < 0:
            return IS_BAD
        # Long lists are lists of token IDs: their items get the shorter way.
        if c.at < c.length and c'0' <= c.text[c.at] <= c'9':
            if read_number(c, &part) == IS_BAD:
                return IS_BAD
        elif read_value(c, &part, depth + 1) == IS_BAD:
            return IS_BAD
    out.end = c.at
    out.kind = kind
    return kind


cdef int next_member(Cursor* c, bint* first, Value* key) noexcept nogil:
    skip_space(c)
    if c.at >= c.length:
        fail(c, b"an object is not closed")
        return -1
    if c.text[c.at] == c'}':
        c.at += 1
        return 0
    if not first[0]:
        if c.text[c.at] != c',':
            fail(c, b"a comma or } should be here")
            return -1
        c.at += 1
        skip_space(c)
    first[0] = False
    if c.at >= c.length or c.text[c.at] != c'"':
        fail(c, b"a key in quotes should be here")
        return -1
    if read_string(c, key) == IS_BAD:
        return -1
    skip_space(c)
    if c.at >= c.length or c.text[c.at] != c':':
        fail(c, b"a colon should be here")
        return -1
    c.at += 1
    return 1


cdef int next_item(Cursor* c, bint* first) noexcept nogil:
    skip_space(c)
    if c.at >= c.length:
        fail(c, b"an array is not closed")
        return -1
    if c.text[c.at] == c']':
        c.at += 1
        return 0
    if not first[0]:
        if c.text[c.at] != c',':
            fail(c, b"a comma or ] should be here")
            return -1
        c.at += 1
        skip_space(c)
        if c.at < c.length and c.text[c.at] == c']':
            fail(c, b"a value should be here")
            return -1
    first[0] = False
    return 1


cdef bint at_end(Cursor* c) noexcept nogil:
    skip_space(c)
    return c.at == c.length


cdef inline int hex_value(unsigned char b) noexcept nogil:
    if b <= c'9':
        return b - c'0'
    return (b | 0x20) - c'a' + 10


cdef inline int character(const unsigned char* p, Py_ssize_t* i) noexcept nogil:
    # The character at p[i] of a checked string, stepping i over it. Only what is below 0x80 is to be trusted:
    # beyond ASCII it is a byte of UTF-8, or an escape's UTF-16 unit.
    cdef int b = p[i[0]]
    if b != c'\\':
        i[0] += 1
        return b
    b = p[i[0] + 1]
    if b == c'u':
        b = (
            hex_value(p[i[0] + 2]) << 12 | hex_value(p[i[0] + 3]) << 8 | hex_value(p[i[0] + 4]) << 4
            | hex_value(p[i[0] + 5])
        )
        i[0] += 6
        return b
    i[0] += 2
    if b == c'b':
        return 8
    if b == c'f':
        return 12
    if b == c'n':
        return 10
    if b == c'r':
        return 13
    if b == c't':
        return 9
    return b


cdef bint spells(Cursor* c, Value* key, const char* name, Py_ssize_t length) noexcept nogil:
    cdef const unsigned char* p = c.text + key.start + 1
    cdef Py_ssize_t n = key.end - key.start - 2, i = 0, k = 0
    if not key.escaped:
        return n == length and memcmp(p, name, length) == 0
    while i < n:
        if k >= length or character(p, &i) != <unsigned char>name[k]:
            return False
        k += 1
    return k == length


cdef Py_ssize_t unescape(Cursor* c, Value* key, unsigned char* out, Py_ssize_t room) noexcept nogil:
    cdef const unsigned char* p = c.text + key.start + 1
    cdef Py_ssize_t n = key.end - key.start - 2, i = 0, k = 0
    cdef int b
    while i < n:
        b = character(p, &i)
        if k >= room or b >= 0x80:
            return -1
        out[k] = <unsigned char>b
        k += 1
    return k


cdef long long as_natural(Cursor* c, Value* number) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint64_t total = 0
    if number.kind != IS_INT or c.text[number.start] == c'-' or number.end - number.start > 19:
        return -1
    for i in range(number.start, number.end):
        total = total * 10 + (c.text[i] - c'0')
    if total > <uint64_t>0x7FFFFFFFFFFFFFFF:
        return -1
    return <long long>total


def check(const unsigned char[::1] text not None):
    """Check that `text` is one JSON value; its kind's number. Raises ValueError with byte and reason."""
    cdef Cursor c
    cdef Value value
    cdef Kind kind
    if text.shape[0] == 0:
        raise ValueError("byte 0: the text ends where a value should be")
    open_text(&c, &text[0], text.shape[0])
    kind = read_value(&c, &value, 0)
    if kind == IS_BAD:
        raise ValueError(f"byte {c.at}: {c.error.decode()}")
    if not at_end(&c):
        raise ValueError(f"byte {c.at}: something follows the value")
    return int(kind)


def members(const unsigned char[::1] text not None):
    """The members of a JSON object in order: ((start, end) of the key, (start, end) of the value).

    Raises ValueError, with byte and reason, if `text` is not one JSON object.
    """
    cdef Cursor c
    cdef Value key, value
    cdef bint first = True
    cdef int more
    found = []
    if check(text) != IS_OBJECT:
        raise ValueError("byte 0: not an object")
    open_text(&c, &text[0], text.shape[0])
    peek(&c)
    enter(&c)
    while True:
        more = next_member(&c, &first, &key)
        if more == 0:
            return found
        read_value(&c, &value, 1)
        found.append(((key.start, key.end), (value.start, value.end)))
