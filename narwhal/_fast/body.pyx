"""A request body as text: its top-level members found once, read one by one, and replaced by splicing.

The router reads a handful of fields and changes a handful, in bodies of megabytes. So the text is walked
once, checked as a whole, and remembered as spans. An edited body is a list of pieces to write: the stretches
that nobody named are the client's own bytes, with all their numbers, key order, duplicates and white space.

Where a key is given twice, the last one counts when reading: JSON decoders do the same.
"""

import json
from enum import IntEnum

import orjson

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.limits cimport LLONG_MAX

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


cdef class Pieces:
    # The output of an edit, with neighbouring stretches of the original merged.
    cdef bytes raw
    cdef list done, small
    cdef Py_ssize_t start, end  # the stretch not yet added

    def __cinit__(self, bytes raw):
        self.raw = raw
        self.done = []
        self.small = []
        self.start = self.end = 0

    cdef int stretch(self, Py_ssize_t start, Py_ssize_t end) except -1:
        if start != self.end:
            self.settle()
            self.start = start
        self.end = end
        return 0

    cdef int settle(self) except -1:
        if self.end - self.start >= LARGE:
            self.join()
            self.done.append(memoryview(self.raw)[self.start:self.end])
        elif self.end > self.start:
            self.small.append(self.raw[self.start:self.end])
        self.start = self.end
        return 0

    cdef int insert(self, bytes piece) except -1:
        self.settle()
        if len(piece) >= LARGE:
            self.join()
            self.done.append(piece)
        else:
            self.small.append(piece)
        return 0

    cdef int join(self) except -1:
        if self.small:
            self.done.append(b"".join(self.small))
            self.small = []
        return 0

    cdef list finish(self):
        self.settle()
        self.join()
        return self.done


cdef class Body:
    """The text of a JSON object.

    Raises ValueError, saying what is wrong at which byte, if `raw` is not valid JSON; TypeError, saying what
    it is, if it is not an object or has more than 4,096 members.
    """

    def __cinit__(self, bytes raw not None):
        self.raw = raw
        self.last = {}
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
        cdef Py_ssize_t room
        cdef Member* members
        cdef str name
        if self.count == self.room:
            if self.room == MAX_MEMBERS:
                raise TypeError(f"an object with more than {MAX_MEMBERS} members")
            room = 2 * self.room or 16
            members = <Member*>PyMem_Realloc(self.members, room * sizeof(Member))
            if members == NULL:
                raise MemoryError
            self.members, self.room = members, room
        if key.escaped:
            name = json.loads(self.raw[key.start:key.end])  # orjson refuses lone surrogates
        else:
            name = PyUnicode_DecodeUTF8(<const char*>self.text + key.start + 1, key.end - key.start - 2, NULL)
        members = self.members + self.count
        members.key_start, members.value_start, members.value_end = key.start, value.start, value.end
        members.kind = value.kind
        members.earlier = self.last.get(name, -1)
        self.last[name] = self.count
        self.count += 1
        return 0

    cdef Member* find(self, str key) except? NULL:
        found = self.last.get(key)
        return NULL if found is None else self.members + <Py_ssize_t>found

    cdef bytes text_of(self, Member* member):
        return self.raw[member.value_start:member.value_end]

    def keys(self):
        """The keys, escapes resolved, each once, in order of first appearance."""
        return list(self.last)

    def kind(self, str key not None):
        """What kind of value `key` has; None if it is absent."""
        cdef Member* member = self.find(key)
        return None if member == NULL else KINDS[<int>member.kind]

    def raw_value(self, str key not None):
        """The value of `key` as it was sent; None if it is absent."""
        cdef Member* member = self.find(key)
        return None if member == NULL else self.text_of(member)

    def value_size(self, str key not None):
        """The length of the value of `key`, in bytes as sent; 0 if it is absent."""
        cdef Member* member = self.find(key)
        return 0 if member == NULL else member.value_end - member.value_start

    def value(self, str key not None):
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

    def natural(self, str key not None):
        """The value of `key` if it is an integer from 0 on (2**63-1 for any beyond that), else -1."""
        cdef Member* member = self.find(key)
        cdef Cursor c
        cdef Value value
        cdef long long number
        if member == NULL or member.kind != IS_INT:
            return -1
        open_text(&c, self.text + member.value_start, member.value_end - member.value_start)
        read_value(&c, &value, 0)
        if c.text[0] == c'-':
            return 0 if c.text[1] == c'0' else -1
        number = as_natural(&c, &value)
        return number if number >= 0 else LLONG_MAX

    def inner(self, str key not None, str name not None):
        """Kind and text of the member `name` (ASCII) of the object that `key` has; None if there is none."""
        cdef Member* member = self.find(key)
        cdef Cursor c
        cdef Value inner_key, value, found
        cdef bint first = True
        cdef Py_ssize_t size
        cdef const char* utf8 = PyUnicode_AsUTF8AndSize(name, &size)
        found.kind = IS_BAD
        if member == NULL or member.kind != IS_OBJECT:
            return None
        open_text(&c, self.text + member.value_start, member.value_end - member.value_start)
        enter(&c)
        while next_member(&c, &first, &inner_key) == 1:
            read_value(&c, &value, 2)
            if spells(&c, &inner_key, utf8, size):
                found = value
        if found.kind == IS_BAD:
            return None
        return (
            KINDS[<int>found.kind],
            self.raw[member.value_start + found.start:member.value_start + found.end],
        )

    def edit(self, drop, put):
        """The pieces of this body without the members in `drop` and with those in `put`, in order of writing.

        `put` maps keys to JSON text. A key that is there gets its new value in its place (its first, if there
        are several; the others go); a new one is added at the end. A key in both is put. All else stays as it
        was sent, and large stretches of it are views, not copies.
        """
        # Per member: None to keep it, False to drop it, or its new value.
        cdef list fate = [None] * self.count
        cdef list added = []
        cdef Pieces out = Pieces.__new__(Pieces, self.raw)
        cdef Member* member
        cdef Py_ssize_t i, first
        cdef Py_ssize_t last = self.inside  # where the member before this one ends
        cdef bint kept = False
        cdef bytes value
        for key in drop:
            i = self.last.get(key, -1)
            while i >= 0:
                fate[i] = False
                i = self.members[i].earlier
        for key, value in put.items():
            i = first = self.last.get(key, -1)
            if i < 0:
                added.append(orjson.dumps(key) + b":" + value)
            while i >= 0:
                fate[i] = False
                first, i = i, self.members[i].earlier
            if first >= 0:
                fate[first] = value

        # A kept member brings the comma and white space before it along, but for the first.
        out.stretch(0, self.members[0].key_start if self.count else self.inside)
        for i in range(self.count):
            member = &self.members[i]
            if fate[i] is not False:
                if kept:
                    out.stretch(last, member.key_start)
                kept = True
                if fate[i] is None:
                    out.stretch(member.key_start, member.value_end)
                else:
                    out.stretch(member.key_start, member.value_start)
                    out.insert(fate[i])
            last = member.value_end
        for value in added:
            out.insert(b"," + value if kept else value)
            kept = True
        out.stretch(last, len(self.raw))
        return out.finish()

    @staticmethod
    def size(list pieces not None):
        """The length of all pieces together, in bytes."""
        cdef Py_ssize_t total = 0
        for piece in pieces:
            total += len(piece)
        return total


cdef str complaint(Cursor* c):
    if c.error == NULL:
        return f"byte {c.at}: something follows the value"
    if c.at >= c.length == 0:
        return "nothing was sent"
    return f"byte {c.at}: {c.error.decode()}"


cdef str describe(JsonKind kind):
    return ("null", "a Boolean", "a Boolean", "a number", "a number", "a string", "a list")[<int>kind]
