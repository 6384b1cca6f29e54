"""The lists in a request body, checked where they lie.

Messages, tools and prompts make up most of a body. What the router has to know of them (is every message an
object with a role, is every prompt entry a token ID, and how many are there) is read by walking their text,
which the body has found to be well formed; nothing is decoded. So a long string is not looked at again: its
end is searched for.
"""

from typing import NamedTuple

from libc.string cimport memchr

from narwhal._fast.body cimport Body, Member, kind_of
from narwhal._fast.json cimport (
    IS_ARRAY, IS_BAD, IS_NULL, IS_OBJECT, IS_STRING, Cursor, Kind, Value, enter, next_item, next_member,
    open_text, peek, read_value, spells,
)

cdef enum:
    SHOWN = 80  # how much of an offending value is handed out, in bytes
    MAX_TOKEN_ID = 0x7FFFFFFF
    TEXT = -1   # instead of a number of token IDs


class Fault(NamedTuple):
    """What is wrong in a list: where, what is allowed there, and what was seen."""

    path: str
    allowed: str
    kind: object  # a body.Kind; None if a value is missing there
    seen: bytes  # the beginning of the value


cdef int open_list(Body body, str key, Cursor* c) except -1:
    # Put the cursor inside the list that is the value of `key`; False if there is no such list.
    cdef Member* member = body.find(key)
    if member == NULL or member.kind != IS_ARRAY:
        return False
    open_text(c, body.text + member.value_start, member.value_end - member.value_start)
    enter(c)
    return True


cdef object fault(str path, str allowed, Cursor* c, Value* seen):
    if seen.kind == IS_BAD:
        return Fault(path, allowed, None, b"")
    return Fault(path, allowed, kind_of(seen.kind), c.text[seen.start:min(seen.end, seen.start + SHOWN)])


cdef inline Py_ssize_t string_end(const unsigned char* p, Py_ssize_t start, Py_ssize_t n) noexcept nogil:
    # One past the closing quote: the first quote after an even number of backslashes.
    cdef Py_ssize_t i = start, back
    while True:
        i = <const unsigned char*>memchr(p + i + 1, c'"', n - i - 1) - p
        back = i - 1
        while p[back] == c'\\':
            back -= 1
        if (i - back) & 1:
            return i + 1


cdef Kind skip(Cursor* c, Value* out) noexcept nogil:
    # What read_value does, for text that it has been over already.
    cdef const unsigned char* p = c.text
    cdef Py_ssize_t i, n = c.length
    cdef int depth = 0
    out.kind = peek(c)
    if out.kind != IS_STRING and out.kind != IS_ARRAY and out.kind != IS_OBJECT:
        return read_value(c, out, 0)
    out.start = i = c.at
    out.escaped = True  # maybe
    while True:
        if p[i] == c'"':
            i = string_end(p, i, n)
        else:
            if p[i] == c'{' or p[i] == c'[':
                depth += 1
            elif p[i] == c'}' or p[i] == c']':
                depth -= 1
            i += 1
        if depth == 0:
            break
    c.at = out.end = i
    return out.kind


cdef void read_member(Cursor* c, const char* name, Py_ssize_t size, Value* found) noexcept nogil:
    # Read over the object at the cursor for its last member `name`; found.kind is IS_BAD if there is none.
    cdef Value key, value
    cdef bint first = True
    found.kind = IS_BAD
    enter(c)
    while next_member(c, &first, &key) == 1:
        skip(c, &value)
        if spells(c, &key, name, size):
            found[0] = value


cdef object check_items(Body body, str key, Kind kind, str allowed):
    cdef Cursor c
    cdef Value item
    cdef bint first = True
    cdef Py_ssize_t i = 0
    if not open_list(body, key, &c):
        return None
    while next_item(&c, &first) == 1:
        if skip(&c, &item) != kind:
            return fault(f"{key}[{i}]", allowed, &c, &item)
        i += 1
    return None


def check_messages(Body body not None):
    """The first fault of `messages`: it must hold at least one object, each with a string `role`."""
    cdef Cursor c
    cdef Value item, role
    cdef bint first = True
    cdef Py_ssize_t i = 0
    if not open_list(body, "messages", &c):
        return None
    while next_item(&c, &first) == 1:
        if peek(&c) != IS_OBJECT:
            skip(&c, &item)
            return fault(f"messages[{i}]", "an object with a string `role`", &c, &item)
        read_member(&c, b"role", 4, &role)
        if role.kind != IS_STRING:
            return fault(f"messages[{i}].role", "a string", &c, &role)
        i += 1
    if i == 0:
        return Fault("messages", "a list of at least one message", kind_of(IS_ARRAY), b"[]")
    return None


def check_tools(Body body not None):
    """The first fault of `tools`: each must be an object."""
    return check_items(body, "tools", IS_OBJECT, "an object")


def check_modalities(Body body not None):
    """The first fault of `modalities`: each must be a string."""
    return check_items(body, "modalities", IS_STRING, "a string")


def foreign_tool(Body body not None):
    """The first of `tools` that is not a function, as a fault that shows its `type`; None if there is none.

    A tool without a `type` is taken for a function.
    """
    cdef Cursor c
    cdef Value type_
    cdef bint first = True
    cdef Py_ssize_t i = 0
    if not open_list(body, "tools", &c):
        return None
    while next_item(&c, &first) == 1:
        peek(&c)  # an object, as checked before
        read_member(&c, b"type", 4, &type_)
        if type_.kind != IS_BAD and type_.kind != IS_NULL and not (
            type_.kind == IS_STRING and spells(&c, &type_, b"function", 8)
        ):
            return fault(f"tools[{i}]", "a function", &c, &type_)
        i += 1
    return None


def foreign_modality(Body body not None):
    """The first entry of `modalities` other than "text", as a fault; None if there is none."""
    cdef Cursor c
    cdef Value item
    cdef bint first = True
    if not open_list(body, "modalities", &c):
        return None
    while next_item(&c, &first) == 1:
        skip(&c, &item)
        if not spells(&c, &item, b"text", 4):
            return fault("modalities", "text", &c, &item)
    return None


def read_prompt(Body body not None):
    """The number of token IDs in a `prompt` that is a list, -1 if it is text, or its fault.

    It may hold one text or one list of token IDs in another list; or token IDs, which are integers from 0 to
    2**31-1, written without a sign, as they must be in an event (see scan).
    """
    cdef Cursor c
    cdef Value item
    cdef Kind kind
    cdef bint first = True
    if not open_list(body, "prompt", &c):
        return TEXT
    if next_item(&c, &first) == 0:
        return Fault("prompt", "a list that is not empty", kind_of(IS_ARRAY), b"[]")
    kind = peek(&c)
    if kind != IS_STRING and kind != IS_ARRAY:
        return read_ids(&c, "prompt")
    found = TEXT
    if kind == IS_STRING:
        skip(&c, &item)
    else:
        enter(&c)
        first = True
        if next_item(&c, &first) == 0:
            return Fault("prompt[0]", "a list that is not empty", kind_of(IS_ARRAY), b"[]")
        found = read_ids(&c, "prompt[0]")
        if not isinstance(found, int):
            return found
    first = False
    if next_item(&c, &first) == 1:
        return Fault("prompt", "one prompt (each further one asks for a choice of its own)", None, b"")
    return found


cdef object read_ids(Cursor* c, str path):
    # The number of token IDs from the cursor to the end of the list, or the first entry that is none.
    cdef const unsigned char* p = c.text
    cdef Value item
    cdef Py_ssize_t i = c.at, start, count = 0
    cdef long long number
    while True:
        while p[i] <= c' ':
            i += 1
        start = i
        number = 0
        while c'0' <= p[i] <= c'9' and i < start + 10:  # the digits of the largest
            number = 10 * number + (p[i] - c'0')
            i += 1
        if i == start or number > MAX_TOKEN_ID or not (p[i] == c',' or p[i] == c']' or p[i] <= c' '):
            c.at = start
            read_value(c, &item, 0)
            return fault(f"{path}[{count}]", "a token ID, an integer from 0 to 2147483647", c, &item)
        count += 1
        while p[i] <= c' ':
            i += 1
        i += 1  # the comma or the end of the list
        if p[i - 1] == c']':
            c.at = i
            return count
