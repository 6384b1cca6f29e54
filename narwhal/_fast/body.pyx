"""A request body as text: its top-level members found once, read one by one, and replaced by splicing.

The router reads a handful of fields and changes a handful, in bodies of megabytes. So the text is walked
once, checked as a whole, and remembered as spans. An edited body is a list of pieces to write: the stretches
that nobody named are the client's own bytes, with all their numbers, key order, duplicates and white space.

Where a key is given twice, the last one counts when reading: JSON decoders do the same.
"""

import json
from enum import IntEnum

import orjson

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.limits cimport LLONG_MAX
from libc.string cimport memcmp, memcpy

from narwhal._fast.json cimport (
    IS_BAD, IS_INT, IS_OBJECT, Cursor, Value, as_natural, at_end, enter, next_member, open_text, peek,
    read_value, spells,
)
from narwhal._fast.json cimport Kind as JsonKind


# What kind of JSON value stands somewhere. INT is a number without fraction and exponent. (By the functional
# form since NULL is a word of Cython's.)
Kind = IntEnum("Kind", "NULL FALSE TRUE INT FLOAT STRING ARRAY OBJECT", start=0, module=__name__)

cdef tuple KINDS = tuple(Kind)

cdef enum:
    # Pieces from this size on are handed out as views; smaller neighbours are copied together, since a
    # write of one piece costs less than one of ten.
    LARGE = 4096


cdef object kind_of(JsonKind kind):
    return KINDS[<int>kind]


# A stretch of an edit's output: of the original, or of something put in.
cdef struct Stretch:
    const char* text
    Py_ssize_t size
    Py_ssize_t start    # where it stands in the original, or -1
    PyObject* value     # what was put in, if it is that as a whole


cdef class Edit:
    # The output of an edit as it is put together, neighbouring stretches of the original merged.
    cdef Stretch* stretches
    cdef Py_ssize_t count

    def __cinit__(self, Py_ssize_t most):
        self.stretches = <Stretch*>PyMem_Malloc(most * sizeof(Stretch))
        if self.stretches == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.stretches)

    cdef void take(
        self, const char* text, Py_ssize_t size, Py_ssize_t start=-1, PyObject* value=NULL
    ) noexcept:
        cdef Stretch* last
        if size == 0:
            return
        if self.count and start >= 0:
            last = &self.stretches[self.count - 1]
            if last.start >= 0 and last.start + last.size == start:
                last.size += size
                return
        last = &self.stretches[self.count]
        last.text, last.size, last.start, last.value = text, size, start, value
        self.count += 1

    cdef list pieces(self, bytes raw):
        # Large stretches as they are, and what stands between them in one piece.
        cdef list out = []
        cdef Py_ssize_t i, j = 0, k, size
        cdef Stretch* one
        cdef bytes small
        cdef char* text
        while j < self.count:
            one = &self.stretches[j]
            if one.size >= LARGE and one.start >= 0:
                out.append(memoryview(raw)[one.start:one.start + one.size])
                j += 1
                continue
            if one.size >= LARGE and one.value != NULL:
                out.append(<object>one.value)
                j += 1
                continue
            i, size = j, 0
            while j < self.count and self.stretches[j].size < LARGE:
                size += self.stretches[j].size
                j += 1
            if j == i:  # large, and neither: a key
                size, j = one.size, j + 1
            small = PyBytes_FromStringAndSize(NULL, size)
            text = PyBytes_AS_STRING(small)
            for k in range(i, j):
                memcpy(text, self.stretches[k].text, self.stretches[k].size)
                text += self.stretches[k].size
            out.append(small)
        return out


cdef bint is_plain(const char* text, Py_ssize_t size) noexcept:
    # Whether JSON writes these ASCII characters as they are.
    cdef Py_ssize_t i
    for i in range(size):
        if not 0x20 <= text[i] <= 0x7E or text[i] == c'"' or text[i] == c'\\':
            return False
    return True


cdef class Body:
    """The text of a JSON object.

    Raises ValueError, saying what is wrong at which byte, if `raw` is not valid JSON; TypeError, saying what
    it is, if it is not an object or has more than 4,096 members.
    """

    def __cinit__(self, bytes raw not None):
        self.raw = raw
        self.text = <const unsigned char*>PyBytes_AS_STRING(raw)
        self.index()

    def __dealloc__(self):
        PyMem_Free(self.members)

    cdef int index(self) except -1:
        cdef Cursor c
        cdef Value key, value
        cdef bint first = True
        cdef int more
        if self.raw.startswith(b"\xef\xbb\xbf"):
            raise ValueError("byte 0: a byte order mark; JSON is sent without one")
        open_text(&c, self.text, len(self.raw))
        if peek(&c) != IS_OBJECT:
            if read_value(&c, &value, 0) == IS_BAD or not at_end(&c):
                raise ValueError(complaint(&c))
            raise TypeError(describe(value.kind))
        enter(&c)
        self.inside = c.at
        while True:
            more = next_member(&c, &first, &key)
            if more == 0:
                break
            if more < 0 or read_value(&c, &value, 1) == IS_BAD:
                raise ValueError(complaint(&c))
            self.add(&key, &value)
        if not at_end(&c):
            raise ValueError(complaint(&c))
        return 0

    cdef int add(self, Value* key, Value* value) except -1:
        cdef Py_ssize_t room, i
        cdef Member* members
        if self.count == self.room:
            if self.room == MAX_MEMBERS:
                raise TypeError(f"an object with more than {MAX_MEMBERS} members")
            room = 2 * self.room or FEW
            members = <Member*>PyMem_Realloc(self.members, room * sizeof(Member))
            if members == NULL:
                raise MemoryError
            self.members, self.room = members, room
        members = self.members + self.count
        members.key_start, members.key_end = key.start, key.end
        members.value_start, members.value_end = value.start, value.end
        members.kind = value.kind
        if self.last is None and (self.count == FEW or key.escaped):
            self.last = {}
            for i in range(self.count):
                self.last[self.name(i, False)] = i
        if self.last is None:
            members.earlier = self.seek(<const char*>self.text + key.start + 1, key.end - key.start - 2)
        else:
            name = self.name(self.count, key.escaped)
            members.earlier = self.last.get(name, -1)
            self.last[name] = self.count
        self.count += 1
        return 0

    cdef str name(self, Py_ssize_t member, bint escaped):
        cdef Member* one = self.members + member
        if escaped:
            return json.loads(self.raw[one.key_start:one.key_end])  # orjson refuses lone surrogates
        return PyUnicode_DecodeUTF8(
            <const char*>self.text + one.key_start + 1, one.key_end - one.key_start - 2, NULL
        )

    cdef Py_ssize_t seek(self, const char* name, Py_ssize_t size) noexcept:
        # The last of few members that has this key, none of them being written with escapes; or -1.
        cdef Py_ssize_t i
        cdef Member* member
        for i in range(self.count - 1, -1, -1):
            member = self.members + i
            if member.key_end - member.key_start - 2 == size and not memcmp(
                self.text + member.key_start + 1, name, size
            ):
                return i
        return -1

    cdef Py_ssize_t index_of(self, str key) except -2:
        cdef Py_ssize_t size
        cdef const char* utf8
        if self.last is not None:
            return self.last.get(key, -1)
        try:
            utf8 = PyUnicode_AsUTF8AndSize(key, &size)
        except UnicodeEncodeError:
            return -1  # half a surrogate pair is written as an escape, and no key here is
        return self.seek(utf8, size)

    cdef Member* find(self, str key) except? NULL:
        cdef Py_ssize_t i = self.index_of(key)
        return NULL if i < 0 else self.members + i

    cdef bytes text_of(self, Member* member):
        return PyBytes_FromStringAndSize(
            <const char*>self.text + member.value_start, member.value_end - member.value_start
        )

    def keys(self):
        """The keys, escapes resolved, each once, in order of first appearance."""
        if self.last is not None:
            return list(self.last)
        return list(dict.fromkeys([self.name(i, False) for i in range(self.count)]))

    cpdef kind(self, str key):
        """What kind of value `key` has; None if it is absent."""
        cdef Member* member = self.find(key)
        return None if member == NULL else KINDS[<int>member.kind]

    cpdef bytes raw_value(self, str key):
        """The value of `key` as it was sent; None if it is absent."""
        cdef Member* member = self.find(key)
        return None if member == NULL else self.text_of(member)

    cpdef Py_ssize_t value_size(self, str key) except -1:
        """The length of the value of `key`, in bytes as sent; 0 if it is absent."""
        cdef Member* member = self.find(key)
        return 0 if member == NULL else member.value_end - member.value_start

    cpdef value(self, str key):
        """The value of `key` as a Python object; None if it is absent.

        Integers beyond 64 bits become floats. Raises ValueError for one of more than 4,300 digits.
        """
        cdef Member* member = self.find(key)
        if member == NULL:
            return None
        raw = self.text_of(member)
        try:
            return orjson.loads(raw)
        except ValueError:  # a lone surrogate, which orjson refuses and JSON allows
            return json.loads(raw)

    cpdef long long natural(self, str key) except -2:
        """The value of `key` if it is an integer from 0 on (2**63-1 for any beyond that), else -1."""
        cdef Member* member = self.find(key)
        cdef Cursor c
        cdef Value value
        if member == NULL or member.kind != IS_INT:
            return -1
        open_text(&c, self.text + member.value_start, member.value_end - member.value_start)
        read_value(&c, &value, 0)
        return natural_of(&c, &value)

    cpdef long long inner_natural(self, str key, str name) except -2:
        """What `natural` says of the member `name` (ASCII) of the object that `key` has; -1 without one."""
        cdef Cursor c
        cdef Value value
        self.find_inner(key, name, &c, &value)
        return natural_of(&c, &value) if value.kind == IS_INT else -1

    cpdef inner(self, str key, str name):
        """Kind and text of the member `name` (ASCII) of the object that `key` has; None if there is none."""
        cdef Cursor c
        cdef Value value
        self.find_inner(key, name, &c, &value)
        if value.kind == IS_BAD:
            return None
        return (
            KINDS[<int>value.kind],
            PyBytes_FromStringAndSize(<const char*>c.text + value.start, value.end - value.start),
        )

    cdef int find_inner(self, str key, str name, Cursor* c, Value* found) except -1:
        # Of equal ones the last; IS_BAD if there is none.
        cdef Member* member = self.find(key)
        cdef Value inner_key, value
        cdef bint first = True
        cdef Py_ssize_t size
        cdef const char* utf8 = PyUnicode_AsUTF8AndSize(name, &size)
        found.kind = IS_BAD
        if member == NULL or member.kind != IS_OBJECT:
            return 0
        open_text(c, self.text + member.value_start, member.value_end - member.value_start)
        enter(c)
        while next_member(c, &first, &inner_key) == 1:
            read_value(c, &value, 2)
            if spells(c, &inner_key, utf8, size):
                found[0] = value
        return 0

    cpdef list edit(self, drop, dict put):
        """The pieces of this body without the members in `drop` and with those in `put`, in order of writing.

        `put` maps keys to JSON text. A key that is there gets its new value in its place (its first, if there
        are several; the others go); a new one is added at the end. A key in both is put. All else stays as it
        was sent, and large stretches of it are views, not copies.
        """
        # Per member: NULL to keep it, self to drop it, or its new value.
        cdef PyObject** fate = <PyObject**>PyMem_Calloc(self.count + 1, sizeof(PyObject*))
        if fate == NULL:
            raise MemoryError
        try:
            return self.spliced(fate, drop, put)
        finally:
            PyMem_Free(fate)

    cdef list spliced(self, PyObject** fate, drop, dict put):
        cdef list added = []  # keys
        cdef list kept_alive = []
        # At most so many stretches: three for a member, six for what is added, and both ends.
        cdef Edit out = Edit.__new__(Edit, 3 * self.count + 6 * len(put) + 2)
        cdef const char* raw = <const char*>self.text
        cdef const char* name
        cdef Member* member
        cdef Py_ssize_t i, first, size
        cdef Py_ssize_t last = self.inside  # where the member before this one ends
        cdef bint kept = False
        cdef bytes value
        cdef str key
        for key in drop:
            i = self.index_of(key)
            while i >= 0:
                fate[i] = <PyObject*>self
                i = self.members[i].earlier
        for key, value in put.items():
            i = first = self.index_of(key)
            if i < 0:
                added.append(key)
            while i >= 0:
                fate[i] = <PyObject*>self
                first, i = i, self.members[i].earlier
            if first >= 0:
                fate[first] = <PyObject*>value

        # A kept member brings the comma and white space before it along, but for the first.
        out.take(raw, self.members[0].key_start if self.count else self.inside, 0)
        for i in range(self.count):
            member = &self.members[i]
            if fate[i] != <PyObject*>self:
                if kept:
                    out.take(raw + last, member.key_start - last, last)
                kept = True
                if fate[i] == NULL:
                    out.take(raw + member.key_start, member.value_end - member.key_start, member.key_start)
                else:
                    out.take(raw + member.key_start, member.value_start - member.key_start, member.key_start)
                    value = <bytes><object>fate[i]
                    out.take(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value), -1, fate[i])
            last = member.value_end
        for key in added:
            if kept:
                out.take(b",", 1)
            kept = True
            try:
                name = PyUnicode_AsUTF8AndSize(key, &size)
            except UnicodeEncodeError:
                size = -1
            if size >= 0 and is_plain(name, size):
                out.take(b'"', 1)
                out.take(name, size)
                out.take(b'":', 2)
            else:
                value = orjson.dumps(key) + b":"
                kept_alive.append(value)
                out.take(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
            value = put[key]
            out.take(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value), -1, <PyObject*>value)
        out.take(raw + last, PyBytes_GET_SIZE(self.raw) - last, last)
        return out.pieces(self.raw)

    @staticmethod
    def size(list pieces not None):
        """The length of all pieces together, in bytes."""
        cdef Py_ssize_t total = 0
        for piece in pieces:
            total += len(piece)
        return total


cdef long long natural_of(Cursor* c, Value* value) noexcept:
    # Of a value that is IS_INT; see Body.natural.
    cdef long long number
    if c.text[value.start] == c'-':
        return 0 if c.text[value.start + 1] == c'0' else -1
    number = as_natural(c, value)
    return number if number >= 0 else LLONG_MAX


cdef str complaint(Cursor* c):
    if c.error == NULL:
        return f"byte {c.at}: something follows the value"
    if c.at >= c.length == 0:
        return "nothing was sent"
    return f"byte {c.at}: {c.error.decode()}"


cdef str describe(JsonKind kind):
    return ("null", "a Boolean", "a Boolean", "a number", "a number", "a string", "a list")[<int>kind]
