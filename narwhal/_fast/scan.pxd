# What an engine's event says, and where its token-ID fields lie. See scan.pyx.

from narwhal._fast.json cimport Cursor, Value

# Ordered by precedence: of several lists in one event the highest state is the event's.
cdef enum IdsState:
    IDS_ABSENT = 0
    IDS_NULL = 1
    IDS_VALID = 2
    IDS_MALFORMED = 3

cdef struct Span:
    Py_ssize_t start
    Py_ssize_t end      # one past the last byte

cdef enum:
    MAX_SPANS = 32

cdef struct Facts:
    const char* error           # NULL, or why the text is not an event; then nothing below holds
    Py_ssize_t error_at         # the byte where that showed
    bint has_output             # some choice, or its delta, carries text, reasoning, a call or a refusal
    bint finished               # some choice has a finish_reason that is not empty
    int choices                 # how many are in the list; -1 when there is no list
    IdsState ids                # of choices[*].token_ids and choices[*].delta.token_ids
    Py_ssize_t id_count         # valid IDs in these
    const char* ids_error       # for IDS_MALFORMED: what was found first, "a Boolean", say
    bint has_error              # a top-level `error` that is not null ...
    Span error_object           # ... and its value
    bint has_usage              # a top-level `usage` that is not null
    long long prompt_tokens     # of it; -1 unless a natural number below 2**63, like the next two
    long long completion_tokens
    long long cached_tokens     # prompt_tokens_details.cached_tokens
    Span cached_value           # the value of that; its start is -1 when there is none
    int span_count
    Span spans[MAX_SPANS]       # what to cut so that the token-ID fields vanish; ascending, apart

# Is it null, or an empty string, list or object?
cdef bint is_empty(Cursor* c, Value* value) noexcept nogil
cdef void scan_event(const unsigned char* p, Py_ssize_t n, Facts* facts) noexcept nogil
