"""One whole response put together from one engine's event stream, for clients that don't stream.

Nothing is decoded: a string's fragments are joined as they stand between their quotes, escapes and all, so a
surrogate pair split over two events is whole again by being next to its half; lists are joined as the text
between their brackets; everything else is kept as it came. Each event is read once and what came before is
never looked at again, so the cost is linear and the memory is the text's.

What the response looks like is a table for each kind of engine (shapes.py): which fields it has, in which
order, and which are null when nothing came. What may come is a table for each kind of object: a choice or
delta field that is in none of them and carries a value can't be put together, and is an error that names it.
Null, the empty string, list and object carry no value wherever they stand.
"""

import json

from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.string cimport memcmp, memcpy, memset

from narwhal._fast.json cimport (
    IS_ARRAY,
    IS_BAD,
    IS_FALSE,
    IS_FLOAT,
    IS_INT,
    IS_NULL,
    IS_OBJECT,
    IS_STRING,
    IS_TRUE,
    Cursor,
    Kind,
    Value,
    as_natural,
    at_end,
    enter,
    next_item,
    next_member,
    open_text,
    peek,
    read_value,
    spells,
)

from narwhal._fast.shapes import SHAPES


class AssemblyError(ValueError):
    """The stream can't be put together: `field` is the path of what is wrong in an event ("" for the event
    itself), `too_large` whether it is the size of the whole."""

    def __init__(self, message, field, too_large=False):
        super().__init__(message)
        self.field = field
        self.too_large = too_large


cdef Table table(const char* path, int depth, names, bint open=False):
    # The names are literals of this module, so their bytes live as long as it does.
    cdef Table t
    cdef bytes name
    memset(&t, 0, sizeof(Table))
    t.path = path
    t.depth = depth
    t.open = open
    for name in names:
        t.names[t.count].text = name
        t.names[t.count].size = len(name)
        t.count += 1
    return t


cdef enum:  # fields of Event
    EVENT_CHOICES, EVENT_USAGE, EVENT_OBJECT, EVENT_IDS

cdef enum:  # fields of Choice
    CHOICE_ANSWER, CHOICE_INDEX, CHOICE_LOGPROBS, CHOICE_FINISH_REASON, CHOICE_STOP_REASON, CHOICE_IDS

cdef enum:  # fields of Delta
    DELTA_CONTENT, DELTA_ROLE, DELTA_REASONING, DELTA_REASONING_CONTENT, DELTA_REFUSAL, DELTA_TOOL_CALLS
    DELTA_FUNCTION_CALL, DELTA_IDS

cdef enum:  # fields of Call
    CALL_INDEX, CALL_ID, CALL_TYPE, CALL_FUNCTION

cdef enum:  # fields of Function
    FUNCTION_NAME, FUNCTION_ARGUMENTS

cdef enum:  # fields of Ids
    IDS_TOKEN_IDS, IDS_PROMPT_TOKEN_IDS, IDS_PROMPT_TEXT

cdef enum:  # places in `ids`
    IN_EVENT, IN_CHOICE, IN_DELTA

cdef tuple ID_NAMES = (b"token_ids", b"prompt_token_ids", b"prompt_text")
cdef tuple CHOICE_NAMES = (b"index", b"logprobs", b"finish_reason", b"stop_reason", *ID_NAMES)
cdef tuple DELTA_NAMES = (
    b"content", b"role", b"reasoning", b"reasoning_content", b"refusal", b"tool_calls", b"function_call",
    *ID_NAMES,
)
cdef tuple CHAT_LOGPROBS_NAMES = (b"content", b"refusal")
cdef tuple TEXT_LOGPROBS_NAMES = (b"tokens", b"token_logprobs", b"top_logprobs", b"text_offset")

cdef Table EVENT = table(b"", 1, (b"choices", b"usage", b"object", *ID_NAMES), open=True)
cdef Table CHOICES = table(b"choices", 2, (b"[0]",))
cdef Table CHAT_CHOICE = table(b"choices[0].", 3, (b"delta", *CHOICE_NAMES))
cdef Table TEXT_CHOICE = table(b"choices[0].", 3, (b"text", *CHOICE_NAMES))
cdef Table CHAT_LOGPROBS = table(b"choices[0].logprobs.", 4, CHAT_LOGPROBS_NAMES)
cdef Table TEXT_LOGPROBS = table(b"choices[0].logprobs.", 4, TEXT_LOGPROBS_NAMES)
cdef Table DELTA = table(b"choices[0].delta.", 4, DELTA_NAMES)
cdef Table FUNCTION_CALL = table(b"choices[0].delta.function_call.", 5, (b"name", b"arguments"))
cdef Table TOOL_CALLS = table(b"choices[0].delta.tool_calls", 5, (b"[*]",))
cdef Table CALL = table(b"choices[0].delta.tool_calls[*].", 6, (b"index", b"id", b"type", b"function"))
cdef Table CALL_FUNCTION_TABLE = table(
    b"choices[0].delta.tool_calls[*].function.", 7, (b"name", b"arguments")
)

# What the items of each list of logprobs may be, in the order of their tables: a text completion's, a chat's.
cdef int[6] ITEM_KINDS = [
    1 << IS_STRING,
    1 << IS_INT | 1 << IS_FLOAT | 1 << IS_NULL,
    1 << IS_OBJECT | 1 << IS_NULL,
    1 << IS_INT,
    1 << IS_OBJECT,
    1 << IS_OBJECT,
]
cdef tuple ITEMS_ALLOWED = (
    "a list of strings", "a list of numbers and nulls", "a list of objects and nulls",
    "a list of whole numbers", "a list of objects", "a list of objects",
)

# What a tool call without any text in it has in a response.
cdef Py_ssize_t CALL_BYTES = len(b'{"id":"","type":"function","function":{"name":"","arguments":""}}')

cdef dict KIND_NAMES = {
    IS_NULL: "null", IS_FALSE: "a Boolean", IS_TRUE: "a Boolean", IS_INT: "a number", IS_FLOAT: "a number",
    IS_STRING: "a string", IS_ARRAY: "a list", IS_OBJECT: "an object",
}

cdef bytes write(tuple shape, dict members):
    """The object with these members (name -> (key as written, value)), in the order and with the defaults of
    the shape."""
    cdef list out = []
    cdef dict rest = dict(members)
    cdef bytes name, key, value
    for name, default, inner in shape:
        _, value = rest.pop(name, (name, default))
        if value is None:
            continue
        if inner and value.startswith(b"{"):
            value = write(inner, members_of(value))
        out += (b',"', name, b'":', value)
    for key, value in rest.values():
        out += (b',"', key, b'":', value)
    if not out:
        return b"{}"
    out[0] = b'{"'
    out.append(b"}")
    return b"".join(out)


cdef bytes resolve(bytes key):
    # A key with escapes, in the form that two spellings of it share.
    return json.loads(b'"' + key + b'"').encode("utf-8", "surrogatepass")


cdef str shown(Cursor* c, Value* key):
    # A key for a message, which has to be short and to be text: half a surrogate pair stays an escape.
    name = json.loads((<const char*>c.text)[key.start:key.end]).encode("utf-8", "backslashreplace").decode()
    return name if len(name) <= 100 else name[:100] + "..."


cdef dict members_of(bytes text):
    # The members of an object that an event held, so it is well formed.
    cdef dict members = {}
    cdef Cursor c
    cdef Value key, value
    cdef bint first = True
    cdef bytes name
    open_text(&c, text, len(text))
    enter(&c)
    while next_member(&c, &first, &key) == 1:
        name = text[key.start + 1:key.end - 1]
        read_value(&c, &value, 1)
        members[resolve(name) if key.escaped else name] = (name, text[value.start:value.end])
    return members


cdef inline bint carries(Cursor* c, Value* value) noexcept nogil:
    # Does it carry a value: is it neither null nor an empty string, list or object?
    cdef Py_ssize_t i
    cdef unsigned char b
    if value.kind == IS_NULL:
        return False
    if value.kind == IS_STRING:
        return value.end - value.start > 2
    if value.kind == IS_ARRAY or value.kind == IS_OBJECT:
        for i in range(value.start + 1, value.end - 1):
            b = c.text[i]
            if b != 0x20 and b != 0x0A and b != 0x0D and b != 0x09:
                return True
        return False
    return True


cdef inline bint same(Text* text, const unsigned char* p, Py_ssize_t n) noexcept nogil:
    return text.size == n and (n == 0 or memcmp(text.data, p, n) == 0)


cdef inline bytes whole(Text* text):
    return (<char*>text.data)[:text.size] if text.size else b""


cdef inline bytes quoted(Text* text):
    return b'"%b"' % whole(text)


cdef inline bytes listed(Text* text):
    return b"[%b]" % whole(text)


cdef void* room_for_one(void* items, Py_ssize_t count, Py_ssize_t* room, size_t size) except NULL:
    # Where the items lie, with room for one more of `size` bytes, and that one cleared.
    cdef Py_ssize_t wanted
    if count == room[0]:
        wanted = max(4, 2 * count)
        items = PyMem_Realloc(items, wanted * size)
        if items == NULL:
            raise MemoryError
        room[0] = wanted
    memset(<char*>items + count * size, 0, size)
    return items


cdef void free_ids(Ids* ids) noexcept:
    PyMem_Free(ids.token_ids.data)
    PyMem_Free(ids.prompt_token_ids.data)
    PyMem_Free(ids.prompt_text.data)


cdef void free_call(Call* call) noexcept:
    PyMem_Free(call.id.data)
    PyMem_Free(call.name.data)
    PyMem_Free(call.arguments.data)


cdef class Assembler:
    """Puts one response together.

    `chat`: a chat completion, else a text completion. `keep_ids`: the client asked for token IDs; else they
    are dropped wherever they lie. `limit`: the largest response, in bytes. `shape`: "vllm" or "openai", whose
    fields it has.
    """

    def __cinit__(self, bint chat, bint keep_ids, Py_ssize_t limit, str shape="vllm"):
        self.chat = chat
        self.keep_ids = keep_ids
        self.limit = limit
        if shape not in SHAPES:
            raise ValueError(f"no shape is called {shape!r}; there are {', '.join(SHAPES)}")
        self.shape = SHAPES[shape][0 if chat else 1]
        self.call_at = {}

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.member_count):
            PyMem_Free(self.members[i].name.data)
            PyMem_Free(self.members[i].key.data)
            PyMem_Free(self.members[i].value.data)
        PyMem_Free(self.members)
        for i in range(self.call_count):
            free_call(&self.calls[i])
        PyMem_Free(self.calls)
        free_call(&self.function_call)
        for i in range(3):
            free_ids(&self.ids[i])
        for i in range(4):
            PyMem_Free(self.logprobs[i].data)
        PyMem_Free(self.role.data)
        PyMem_Free(self.text.data)
        PyMem_Free(self.reasoning.data)
        PyMem_Free(self.reasoning_content.data)
        PyMem_Free(self.refusal.data)
        PyMem_Free(self.finish_reason.data)
        PyMem_Free(self.stop_reason.data)
        PyMem_Free(self.usage.data)

    # Errors

    cdef int fail(self, str field, str message) except -2:
        self.error = message
        self.error_field = field
        return -1

    cdef int broken(self, Cursor* c) except -2:
        return self.fail("", f"the event isn't well-formed JSON: byte {c.at}: {c.error.decode()}")

    cdef str path(self, Table* table, int field):
        cdef bytes path = table.path + table.names[field].text[:table.names[field].size]
        return path.decode().replace("*", str(self.call_place))

    cdef int malformed(self, str field, Value* value, str allowed) except -2:
        return self.fail(field, f"{field} is {KIND_NAMES[value.kind]}, where {allowed} or null is allowed")

    # Keeping bytes

    cdef int grow(self, Py_ssize_t by) except -2:
        # Account for bytes that the response will have.
        self.size += by
        if self.size <= self.limit:
            return 0
        self.too_large = True
        return self.fail(
            "",
            f"the response is larger than {self.limit} bytes (serving.max_response_bytes): ask for fewer"
            " tokens, or for a stream",
        )

    cdef int put(self, Text* text, const unsigned char* p, Py_ssize_t n) except -2:
        cdef Py_ssize_t room
        cdef void* data
        if self.grow(n) < 0:
            return -1
        if text.room - text.size < n:
            room = max(text.size + n, 2 * text.room, 32)
            data = PyMem_Realloc(text.data, room)
            if data == NULL:
                raise MemoryError
            text.data = <unsigned char*>data
            text.room = room
        if n:
            memcpy(text.data + text.size, p, n)
            text.size += n
        return 0

    cdef int put_string(self, Text* text, Cursor* c, Value* value) except -2:
        return self.put(text, c.text + value.start + 1, value.end - value.start - 2)

    cdef int replace(self, Text* text, Cursor* c, Value* value) except -2:
        if same(text, c.text + value.start, value.end - value.start):
            return 0
        self.size -= text.size
        text.size = 0
        return self.put(text, c.text + value.start, value.end - value.start)

    # Reading

    cdef int next_field(
        self, Cursor* c, Table* table, bint* first, unsigned int* seen, int* field, Value* key
    ) except -2:
        # Like next_member: 1 with the cursor before the value of the table's `field` (or of any other, -1,
        # in an open table). In a closed table others are read over, if they carry no value.
        cdef int more, i
        cdef Value value
        while True:
            more = next_member(c, first, key)
            if more < 0:
                return self.broken(c)
            if more == 0:
                return 0
            for i in range(table.count):
                if spells(c, key, table.names[i].text, table.names[i].size):
                    field[0] = i
                    if seen[0] & (1U << i):
                        return self.fail(self.path(table, i), f"{self.path(table, i)} is there twice")
                    seen[0] |= 1U << i
                    return 1
            if table.open:
                field[0] = -1
                return 1
            if read_value(c, &value, table.depth) == IS_BAD:
                return self.broken(c)
            if carries(c, &value):
                path = table.path.decode().replace("*", str(self.call_place)) + shown(c, key)
                return self.fail(
                    path, f"{path} carries a value and can't be put into a whole response; ask for a stream"
                )

    cdef int expect(self, Cursor* c, Table* table, int field, Kind kind, str allowed) except -2:
        # 1 with the cursor before a value of this kind; 0 past one that carries nothing.
        cdef Value value
        cdef Kind found = peek(c)
        if found == kind:
            return 1
        if found == IS_BAD or read_value(c, &value, table.depth) == IS_BAD:
            return self.broken(c)
        if carries(c, &value):
            return self.malformed(self.path(table, field), &value, allowed)
        return 0

    cdef int take_span(
        self, Cursor* c, Table* table, int field, Value* value, int kinds, str allowed
    ) except -2:
        # Read a value of one of these kinds (a set of bits): 1, or 0 if it carries nothing.
        if read_value(c, value, table.depth) == IS_BAD:
            return self.broken(c)
        if not carries(c, value):
            return 0
        if not kinds & (1 << value.kind):
            return self.malformed(self.path(table, field), value, allowed)
        return 1

    cdef int take_string(self, Cursor* c, Table* table, int field, Text* text) except -2:
        cdef Value value
        cdef int got = self.take_span(c, table, field, &value, 1 << IS_STRING, "a string")
        if got <= 0:
            return got
        return self.put_string(text, c, &value)

    cdef int take_list(
        self, Cursor* c, Table* table, int field, Text* text, int kinds, str allowed
    ) except -2:
        # Join the items of a list to those before.
        cdef Value item
        cdef Py_ssize_t start = -1, end = -1, place = 0
        cdef bint first = True
        cdef int more = self.expect(c, table, field, IS_ARRAY, allowed)
        if more <= 0:
            return more
        enter(c)
        while True:
            more = next_item(c, &first)
            if more == 0:
                break
            if more < 0 or read_value(c, &item, table.depth + 1) == IS_BAD:
                return self.broken(c)
            if not kinds & (1 << item.kind):
                path = f"{self.path(table, field)}[{place}]"
                return self.fail(path, f"{path} is {KIND_NAMES[item.kind]} in what has to be {allowed}")
            if start < 0:
                start = item.start
            end = item.end
            place += 1
        text.given = True
        if start < 0:
            return 0
        if text.size and self.put(text, b",", 1) < 0:
            return -1
        return self.put(text, c.text + start, end - start)

    cdef int take_ids(self, Cursor* c, Table* table, int field, int first_field, Ids* ids) except -2:
        cdef Value value
        cdef int got, which = field - first_field
        if not self.keep_ids:
            return 0 if read_value(c, &value, table.depth) != IS_BAD else self.broken(c)
        if which == IDS_TOKEN_IDS:
            return self.take_list(c, table, field, &ids.token_ids, 1 << IS_INT, "a list of whole numbers")
        if which == IDS_PROMPT_TEXT:
            got = self.take_span(c, table, field, &value, 1 << IS_STRING, "a string")
            return got if got <= 0 else self.replace(&ids.prompt_text, c, &value)
        got = self.take_span(c, table, field, &value, 1 << IS_ARRAY, "a list of whole numbers")
        return got if got <= 0 else self.replace(&ids.prompt_token_ids, c, &value)

    cdef int take_member(self, Cursor* c, Value* key) except -2:
        # The last value counts, but null never takes a value's place, nor does an empty one.
        cdef const unsigned char* name = c.text + key.start + 1
        cdef Py_ssize_t size = key.end - key.start - 2
        cdef bytes resolved
        cdef Value value
        cdef Member* member = NULL
        cdef int worth
        cdef Py_ssize_t i, at
        if key.escaped:
            resolved = resolve((<const char*>name)[:size])
            name = resolved
            size = len(resolved)
        for i in range(self.member_count):
            at = (self.member_next + i) % self.member_count
            if same(&self.members[at].name, name, size):
                member = &self.members[at]
                self.member_next = at + 1
                break
        if member == NULL:
            if self.member_count == MAX_MEMBERS:
                return self.fail("", f"there are more than {MAX_MEMBERS} different fields at the top level")
            self.members = <Member*>room_for_one(
                self.members, self.member_count, &self.member_room, sizeof(Member)
            )
            member = &self.members[self.member_count]
            self.member_count += 1
            self.member_next = self.member_count
            if self.put(&member.name, name, size) < 0:
                return -1
            self.size -= size  # the key is what the response has, not the name
            if self.put(&member.key, c.text + key.start + 1, key.end - key.start - 2) < 0 or self.grow(4) < 0:
                return -1
        if member.event == self.events:
            field = shown(c, key)
            return self.fail(field, f"{field} is there twice")
        member.event = self.events
        if read_value(c, &value, EVENT.depth) == IS_BAD:
            return self.broken(c)
        worth = 2 if carries(c, &value) else 0 if value.kind == IS_NULL else 1
        if worth < member.worth:
            return 0
        member.worth = worth
        return self.replace(&member.value, c, &value)

    cdef int take_function(self, Cursor* c, Table* table, Value* name, Value* arguments) except -2:
        # Spans of the two strings, IS_NULL where nothing came, as the caller has set them.
        cdef bint first = True
        cdef unsigned int seen = 0
        cdef int field = 0, more
        cdef Value key
        cdef Value* value
        enter(c)
        while True:
            more = self.next_field(c, table, &first, &seen, &field, &key)
            if more <= 0:
                return more
            value = name if field == FUNCTION_NAME else arguments
            if self.take_span(c, table, field, value, 1 << IS_STRING, "a string") < 0:
                return -1

    cdef Call* call_for(self, long long index) except NULL:
        if self.call_count and self.calls[self.call_last].index == index:
            return &self.calls[self.call_last]
        place = self.call_at.get(index)
        if place is None:
            self.calls = <Call*>room_for_one(self.calls, self.call_count, &self.call_room, sizeof(Call))
            place = self.call_count
            self.calls[self.call_count].index = index
            self.call_at[index] = place
            self.call_count += 1
        self.call_last = place
        return &self.calls[self.call_last]

    cdef int take_tool_call(self, Cursor* c) except -2:
        cdef bint first = True
        cdef unsigned int seen = 0
        cdef int field = 0, more
        cdef Value key, value, call_id, name, arguments
        cdef long long index = -1
        cdef Py_ssize_t count = self.call_count
        cdef Call* call
        call_id.kind = name.kind = arguments.kind = IS_NULL
        enter(c)
        while True:
            more = self.next_field(c, &CALL, &first, &seen, &field, &key)
            if more < 0:
                return -1
            if more == 0:
                break
            if field == CALL_INDEX:
                if read_value(c, &value, CALL.depth) == IS_BAD:
                    return self.broken(c)
                index = as_natural(c, &value)
                if index < 0:
                    path = self.path(&CALL, CALL_INDEX)
                    return self.fail(
                        path, f"{path} is {KIND_NAMES[value.kind]}, where a whole number from 0 is needed"
                    )
            elif field == CALL_ID:
                if self.take_span(c, &CALL, CALL_ID, &call_id, 1 << IS_STRING, "a string") < 0:
                    return -1
            elif field == CALL_TYPE:
                more = self.take_span(c, &CALL, CALL_TYPE, &value, 1 << IS_STRING, '"function"')
                if more < 0:
                    return -1
                if more and not spells(c, &value, b"function", 8):
                    path = self.path(&CALL, CALL_TYPE)
                    return self.fail(path, f'{path} is not "function", and no other type is supported')
            else:
                more = self.expect(c, &CALL, CALL_FUNCTION, IS_OBJECT, "an object")
                if more < 0 or (more and self.take_function(c, &CALL_FUNCTION_TABLE, &name, &arguments) < 0):
                    return -1
        if index < 0:
            path = self.path(&CALL, CALL_INDEX)
            return self.fail(path, f"{path} is missing: it says which tool call a fragment belongs to")
        call = self.call_for(index)
        if self.call_count > count and self.grow(CALL_BYTES) < 0:
            return -1
        if call_id.kind == IS_STRING and self.put_string(&call.id, c, &call_id) < 0:
            return -1
        if name.kind == IS_STRING and self.put_string(&call.name, c, &name) < 0:
            return -1
        if arguments.kind == IS_STRING and self.put_string(&call.arguments, c, &arguments) < 0:
            return -1
        return 0

    cdef int take_tool_calls(self, Cursor* c) except -2:
        cdef bint first = True
        cdef int more
        enter(c)
        self.call_place = -1
        while True:
            more = next_item(c, &first)
            if more < 0:
                return self.broken(c)
            if more == 0:
                return 0
            self.call_place += 1
            more = self.expect(c, &TOOL_CALLS, 0, IS_OBJECT, "an object")
            if more < 0 or (more and self.take_tool_call(c) < 0):
                return -1

    cdef int take_delta(self, Cursor* c) except -2:
        cdef bint first = True
        cdef unsigned int seen = 0
        cdef int field = 0, more
        cdef Value key, name, arguments
        enter(c)
        while True:
            more = self.next_field(c, &DELTA, &first, &seen, &field, &key)
            if more <= 0:
                return more
            if field == DELTA_CONTENT:
                more = self.take_string(c, &DELTA, field, &self.text)
            elif field == DELTA_ROLE:
                more = self.take_span(c, &DELTA, field, &key, 1 << IS_STRING, "a string")
                if more > 0:
                    more = self.replace(&self.role, c, &key)
            elif field == DELTA_REASONING:
                more = self.take_string(c, &DELTA, field, &self.reasoning)
            elif field == DELTA_REASONING_CONTENT:
                more = self.take_string(c, &DELTA, field, &self.reasoning_content)
            elif field == DELTA_REFUSAL:
                more = self.take_string(c, &DELTA, field, &self.refusal)
            elif field == DELTA_TOOL_CALLS:
                more = self.expect(c, &DELTA, field, IS_ARRAY, "a list")
                if more > 0:
                    more = self.take_tool_calls(c)
            elif field == DELTA_FUNCTION_CALL:
                name.kind = arguments.kind = IS_NULL
                more = self.expect(c, &DELTA, field, IS_OBJECT, "an object")
                if more > 0:
                    more = self.take_function(c, &FUNCTION_CALL, &name, &arguments)
                if more >= 0 and name.kind == IS_STRING:
                    more = self.put_string(&self.function_call.name, c, &name)
                if more >= 0 and arguments.kind == IS_STRING:
                    more = self.put_string(&self.function_call.arguments, c, &arguments)
            else:
                more = self.take_ids(c, &DELTA, field, DELTA_IDS, &self.ids[IN_DELTA])
            if more < 0:
                return -1

    cdef int take_logprobs(self, Cursor* c) except -2:
        cdef Table* table = &CHAT_LOGPROBS if self.chat else &TEXT_LOGPROBS
        cdef int lists = 4 if self.chat else 0
        cdef bint first = True
        cdef unsigned int seen = 0
        cdef int field = 0, more
        cdef Value key
        enter(c)
        while True:
            more = self.next_field(c, table, &first, &seen, &field, &key)
            if more <= 0:
                self.logprobs_refusal = self.logprobs_refusal or (self.chat and seen & 2)
                return more
            more = lists + field
            if self.take_list(
                c, table, field, &self.logprobs[field], ITEM_KINDS[more], ITEMS_ALLOWED[more]
            ) < 0:
                return -1

    cdef int take_choice(self, Cursor* c) except -2:
        cdef Table* table = &CHAT_CHOICE if self.chat else &TEXT_CHOICE
        cdef bint first = True
        cdef unsigned int seen = 0
        cdef int field = 0, more
        cdef Value key, value
        self.chosen = True
        enter(c)
        while True:
            more = self.next_field(c, table, &first, &seen, &field, &key)
            if more <= 0:
                return more
            if field == CHOICE_ANSWER:
                if not self.chat:
                    more = self.take_string(c, table, field, &self.text)
                else:
                    more = self.expect(c, table, field, IS_OBJECT, "an object")
                    if more > 0:
                        more = self.take_delta(c)
            elif field == CHOICE_INDEX:
                more = self.take_span(c, table, field, &value, 1 << IS_INT, "0")
                if more > 0 and as_natural(c, &value) != 0:
                    more = self.fail(
                        "choices[0].index",
                        "choices[0].index is not 0: a response of one choice was asked for",
                    )
            elif field == CHOICE_LOGPROBS:
                more = self.expect(c, table, field, IS_OBJECT, "an object")
                if more > 0:
                    more = self.take_logprobs(c)
            elif field == CHOICE_FINISH_REASON:
                more = self.take_span(c, table, field, &value, 1 << IS_STRING, "a string")
                if more > 0:
                    self.finished = True
                    more = self.replace(&self.finish_reason, c, &value)
            elif field == CHOICE_STOP_REASON:
                self.stop_reason_seen = True
                more = self.take_span(
                    c, table, field, &value, 1 << IS_STRING | 1 << IS_INT, "a string, a whole number"
                )
                if more > 0:
                    more = self.replace(&self.stop_reason, c, &value)
            else:
                more = self.take_ids(c, table, field, CHOICE_IDS, &self.ids[IN_CHOICE])
            if more < 0:
                return -1

    cdef int take_choices(self, Cursor* c) except -2:
        cdef bint first = True
        cdef int more
        enter(c)
        more = next_item(c, &first)
        if more <= 0:
            return more if more == 0 else self.broken(c)
        more = self.expect(c, &CHOICES, 0, IS_OBJECT, "an object")
        if more < 0 or (more and self.take_choice(c) < 0):
            return -1
        more = next_item(c, &first)
        if more < 0:
            return self.broken(c)
        if more > 0:
            return self.fail(
                "choices[1]", "choices[1] is a second choice: a response of one choice was asked for"
            )
        return 0

    cdef int take_event(self, Cursor* c) except -2:
        cdef bint first = True
        cdef unsigned int seen = 0
        cdef int field = 0, more
        cdef Value key, value
        self.member_next = 0
        enter(c)
        while True:
            more = self.next_field(c, &EVENT, &first, &seen, &field, &key)
            if more <= 0:
                return more
            if field == EVENT_CHOICES:
                more = self.expect(c, &EVENT, field, IS_ARRAY, "a list")
                if more > 0:
                    more = self.take_choices(c)
            elif field == EVENT_USAGE:
                more = self.take_span(c, &EVENT, field, &value, 1 << IS_OBJECT, "an object")
                if more > 0:
                    more = self.replace(&self.usage, c, &value)
            elif field == EVENT_OBJECT:
                # The name of a chunk, where the response has its own.
                if read_value(c, &value, EVENT.depth) == IS_BAD:
                    more = self.broken(c)
            elif field >= EVENT_IDS:
                more = self.take_ids(c, &EVENT, field, EVENT_IDS, &self.ids[IN_EVENT])
            else:
                more = self.take_member(c, &key)
            if more < 0:
                return -1

    cdef int add(self, const unsigned char* p, Py_ssize_t n) except -2:
        cdef Cursor c
        cdef Kind kind
        if self.error is not None:
            return -1
        self.events += 1
        open_text(&c, p, n)
        kind = peek(&c)
        if kind == IS_BAD:
            return self.broken(&c)
        if kind != IS_OBJECT:
            return self.fail("", "the event is not a JSON object")
        if self.take_event(&c) < 0:
            return -1
        if not at_end(&c):
            return self.fail("", "something follows the event's JSON object")
        return 0

    def add_event(self, bytes text not None):
        """Take in one event's JSON text. Raises AssemblyError."""
        if self.add(text, len(text)) < 0:
            raise AssemblyError(self.error, self.error_field, self.too_large)

    # Writing

    cdef bytes tool_calls(self):
        cdef list out = []
        cdef Call* call
        for index in sorted(self.call_at):
            call = &self.calls[<Py_ssize_t>self.call_at[index]]
            for name, given in (("id", call.id.size), ("function.name", call.name.size)):
                if not given:
                    raise AssemblyError(
                        f"the tool call with index {index} has no {name}",
                        f"choices[0].message.tool_calls[{len(out)}].{name}",
                    )
            out.append(
                b'{"id":%b,"type":"function","function":{"name":%b,"arguments":%b}}'
                % (quoted(&call.id), quoted(&call.name), quoted(&call.arguments))
            )
        return b"[%b]" % b",".join(out)

    cdef bytes message(self):
        cdef dict members = {b"role": (b"role", whole(&self.role) or b'"assistant"')}
        cdef tuple shape = self.shape.message
        for name, given, value in (
            (b"reasoning", self.reasoning.size, quoted(&self.reasoning)),
            (b"reasoning_content", self.reasoning_content.size, quoted(&self.reasoning_content)),
            (b"refusal", self.refusal.size, quoted(&self.refusal)),
        ):
            if given:
                members[name] = (name, value)
        if self.call_count:
            members[b"tool_calls"] = (b"tool_calls", self.tool_calls())
        if self.function_call.name.size or self.function_call.arguments.size:
            members[b"function_call"] = (
                b"function_call",
                b'{"name":%b,"arguments":%b}'
                % (quoted(&self.function_call.name), quoted(&self.function_call.arguments)),
            )
        if self.text.size or len(members) == 1:
            members[b"content"] = (b"content", quoted(&self.text))
        if b"reasoning_content" in members and b"reasoning" not in members:
            # An engine has one name for it, and some have both; null stands under its own name only.
            shape = tuple(field for field in shape if field[0] != b"reasoning")
        add_ids(members, &self.ids[IN_DELTA])
        return write(shape, members)

    cdef bytes logprobs_object(self):
        # None if no list came.
        cdef tuple names = CHAT_LOGPROBS_NAMES if self.chat else TEXT_LOGPROBS_NAMES
        cdef dict members = {}
        cdef int i
        cdef bint given = False
        for i in range(len(names)):
            if self.logprobs[i].given:
                given = True
                members[names[i]] = (names[i], listed(&self.logprobs[i]))
            elif not self.chat or (i == 1 and self.logprobs_refusal):
                members[names[i]] = (names[i], b"null")
        return write(self.shape.logprobs, members) if given else None

    cdef bytes choice(self):
        cdef dict members = {b"index": (b"index", b"0")}
        if self.chat:
            members[b"message"] = (b"message", self.message())
        else:
            members[b"text"] = (b"text", quoted(&self.text))
        logprobs = self.logprobs_object()
        if logprobs is not None:
            members[b"logprobs"] = (b"logprobs", logprobs)
        if self.finish_reason.size:
            members[b"finish_reason"] = (b"finish_reason", whole(&self.finish_reason))
        if self.stop_reason.size:
            members[b"stop_reason"] = (b"stop_reason", whole(&self.stop_reason))
        elif self.stop_reason_seen:
            members[b"stop_reason"] = (b"stop_reason", b"null")
        add_ids(members, &self.ids[IN_CHOICE])
        return write(self.shape.choice, members)

    cdef bytes usage_object(
        self, long long prompt_tokens, long long completion_tokens, long long cached_tokens
    ):
        if not self.usage.size:
            return (
                b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}'
                % (prompt_tokens, prompt_tokens + completion_tokens, completion_tokens)
            )
        usage = whole(&self.usage)
        return usage if cached_tokens < 0 else with_cached_tokens(usage, cached_tokens)

    def finish(self, long long prompt_tokens, long long completion_tokens, long long cached_tokens=-1):
        """The response's JSON text.

        `prompt_tokens` and `completion_tokens` make the usage if the engine gave none. `cached_tokens`,
        unless it is negative, is what the usage says was cached, where it says anything of that. Raises
        AssemblyError.
        """
        cdef dict members = {}
        cdef Member* member
        cdef int i
        cdef bytes response
        if self.error is not None:
            raise AssemblyError(self.error, self.error_field, self.too_large)
        if not self.chosen:
            raise AssemblyError(
                "the stream had no choice: choices was empty or absent in every event", "choices"
            )
        for i in range(self.member_count):
            member = &self.members[i]
            members[whole(&member.name)] = (whole(&member.key), whole(&member.value))
        members[b"object"] = (b"object", b'"chat.completion"' if self.chat else b'"text_completion"')
        members[b"choices"] = (b"choices", b"[%b]" % self.choice())
        members[b"usage"] = (b"usage", self.usage_object(prompt_tokens, completion_tokens, cached_tokens))
        add_ids(members, &self.ids[IN_EVENT])
        response = write(self.shape.response, members)
        self.size = 0
        if self.grow(len(response)) < 0:
            raise AssemblyError(self.error, self.error_field, self.too_large)
        return response


cdef add_ids(dict members, Ids* ids):
    if ids.token_ids.given:
        members[b"token_ids"] = (b"token_ids", listed(&ids.token_ids))
    if ids.prompt_token_ids.size:
        members[b"prompt_token_ids"] = (b"prompt_token_ids", whole(&ids.prompt_token_ids))
    if ids.prompt_text.size:
        members[b"prompt_text"] = (b"prompt_text", whole(&ids.prompt_text))


cdef bytes with_cached_tokens(bytes usage, long long cached_tokens):
    # Put the figure in place of the one that is there, and leave every other byte alone.
    cdef Cursor c
    cdef Value key, value
    cdef bint outer_first = True, inner_first = True
    cdef list out = []
    cdef Py_ssize_t done = 0
    open_text(&c, usage, len(usage))
    enter(&c)
    while next_member(&c, &outer_first, &key) == 1:
        if not spells(&c, &key, b"prompt_tokens_details", 21) or peek(&c) != IS_OBJECT:
            read_value(&c, &value, 1)
            continue
        enter(&c)
        inner_first = True
        while next_member(&c, &inner_first, &key) == 1:
            read_value(&c, &value, 2)
            if spells(&c, &key, b"cached_tokens", 13):
                out += (usage[done:value.start], b"%d" % cached_tokens)
                done = value.end
    out.append(usage[done:])
    return b"".join(out)
