# One whole response out of one engine's event stream. See assemble.pyx.

from narwhal._fast.json cimport Cursor, Kind, Value

cdef struct Text:           # bytes that grow: the inside of a string, the inside of a list, or one raw value
    unsigned char* data
    Py_ssize_t size
    Py_ssize_t room
    bint given              # a list was there, be it an empty one

cdef struct Ids:            # the token-ID fields of one place
    Text token_ids
    Text prompt_token_ids
    Text prompt_text

cdef struct Call:           # one tool call, or the legacy function call (which has no ID)
    long long index
    Text id
    Text name
    Text arguments

cdef struct Member:         # a top-level member that is no part of the answer itself
    Text name               # the key, escapes resolved
    Text key                # the key as it came, without quotes
    Text value
    int worth               # 0 null, 1 empty, 2 a value
    long long event         # the last event it was in

cdef struct Name:
    const char* text
    Py_ssize_t size

cdef enum:
    MAX_FIELDS = 10
    MAX_MEMBERS = 64

cdef struct Table:          # the supported fields of one kind of object
    const char* path        # what stands before a name in a message; * is a tool call's place
    int depth               # brackets open around a field's value
    bint open               # other fields are kept too
    int count
    Name[MAX_FIELDS] names

cdef class Assembler:
    cdef bint chat
    cdef bint keep_ids
    cdef object shape                   # a Shape
    cdef Py_ssize_t limit
    cdef long long events
    cdef bint chosen                    # some event had a choice
    cdef Member* members
    cdef Py_ssize_t member_count, member_room
    cdef Py_ssize_t member_next         # the member that comes next if members keep their order
    cdef Ids[3] ids                     # of the event, the choice, and the delta
    cdef Text role, text, reasoning, reasoning_content, refusal
    cdef Text[4] logprobs               # in the order of their table
    cdef bint logprobs_refusal          # a logprobs object had `refusal`, be it null
    cdef Text finish_reason, stop_reason, usage
    cdef bint stop_reason_seen
    cdef Call function_call
    cdef Call* calls
    cdef Py_ssize_t call_count, call_room
    cdef Py_ssize_t call_last           # the call that the last fragment was for
    cdef Py_ssize_t call_place          # of the fragment being read, in its event's list
    cdef dict call_at                   # tool call index -> place in `calls`
    cdef readonly bint finished         # a finish_reason came
    cdef readonly Py_ssize_t size       # bytes kept so far
    cdef readonly str error             # after add gave -1: what is wrong, for people
    cdef readonly str error_field       # the path of the field that is wrong, "" for the event itself
    cdef readonly bint too_large        # what is wrong is that the response would be larger than the limit

    # Take in one event's JSON text: 0, or -1 with the three attributes above set (then and ever after).
    cdef int add(self, const unsigned char* p, Py_ssize_t n) except -2

    cdef int fail(self, str field, str message) except -2
    cdef int broken(self, Cursor* c) except -2
    cdef str path(self, Table* table, int field)
    cdef int malformed(self, str field, Value* value, str allowed) except -2
    cdef int grow(self, Py_ssize_t by) except -2
    cdef int put(self, Text* text, const unsigned char* p, Py_ssize_t n) except -2
    cdef int put_string(self, Text* text, Cursor* c, Value* value) except -2
    cdef int replace(self, Text* text, Cursor* c, Value* value) except -2
    cdef int next_field(
        self, Cursor* c, Table* table, bint* first, unsigned int* seen, int* field, Value* key
    ) except -2
    cdef int expect(self, Cursor* c, Table* table, int field, Kind kind, str allowed) except -2
    cdef int take_span(
        self, Cursor* c, Table* table, int field, Value* value, int kinds, str allowed
    ) except -2
    cdef int take_string(self, Cursor* c, Table* table, int field, Text* text) except -2
    cdef int take_list(
        self, Cursor* c, Table* table, int field, Text* text, int kinds, str allowed
    ) except -2
    cdef int take_ids(self, Cursor* c, Table* table, int field, int first_field, Ids* ids) except -2
    cdef int take_member(self, Cursor* c, Value* key) except -2
    cdef int take_event(self, Cursor* c) except -2
    cdef int take_choices(self, Cursor* c) except -2
    cdef int take_choice(self, Cursor* c) except -2
    cdef int take_delta(self, Cursor* c) except -2
    cdef int take_logprobs(self, Cursor* c) except -2
    cdef int take_tool_calls(self, Cursor* c) except -2
    cdef int take_tool_call(self, Cursor* c) except -2
    cdef int take_function(self, Cursor* c, Table* table, Value* name, Value* arguments) except -2
    cdef Call* call_for(self, long long index) except NULL
    cdef bytes message(self)
    cdef bytes choice(self)
    cdef bytes tool_calls(self)
    cdef bytes logprobs_object(self)
    cdef bytes usage_object(
        self, long long prompt_tokens, long long completion_tokens, long long cached_tokens
    )
