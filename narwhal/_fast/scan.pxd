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

cdef enum:
    MEMO_SIZE = 256     # bytes; more than events have before their output

cdef struct Members:    # an object that has been entered, and what is known of its members so far
    int depth           # of the members' values
    bint first          # the cursor's own: no member yet
    int cut_names       # the names to cut here
    int seen            # names read or cut so far
    bint kept           # some member so far stays
    Py_ssize_t cut_at   # where the cut under way begins, or -1

cdef struct Memo:       # how an event began, and what a walk knew there
    Py_ssize_t size     # bytes of it; 0: nothing is remembered
    bint in_delta       # the output that follows is the delta's
    Members top
    Members choice
    Members delta
    unsigned char text[MEMO_SIZE]

cdef void forget(Memo* memo) noexcept nogil
# Read the event p[0:n]. What `memo` remembers of an earlier one saves reading it again, and changes nothing
# else; it may be NULL.
cdef void scan_event(const unsigned char* p, Py_ssize_t n, Facts* facts, Memo* memo) noexcept nogil
