"""One pass over an event's JSON: what it says, and where its token-ID fields lie.

The text is walked by structure with the JSON cursor: a name counts only as a key at its own place, never in a
string or in some other object. What is not read is checked all the same, so an event without an `error` is
valid JSON throughout. Nothing is allocated and no Python object is touched.

Places and what is read there:

    top level       choices, usage, error
    choices[*]      delta, message, finish_reason, token_ids, and the output names
    delta           token_ids, and the output names
    usage           prompt_tokens, completion_tokens, prompt_tokens_details (of it: cached_tokens)

The output names are text, content, reasoning, reasoning_content, refusal, tool_calls, function_call: a value
of any type is output unless it is null or an empty string, list or object. To be cut are token_ids,
prompt_token_ids and prompt_text, at the top level and in choices[*], their delta and their message.

Null counts as absent everywhere. These texts are no events, and `error` says so:

- what is not a JSON object, or is nested more deeply than the cursor allows;
- a name that is read or cut, given twice in its object: readers disagree on which of the two holds (other
  names may repeat);
- `choices` that is not a list, a choice, `delta` or `usage` that is not an object, a `finish_reason` that is
  not a string: what such an event says can't be told (`message` and `prompt_tokens_details` of another type
  are read over);
- more than MAX_SPANS places to cut.

A token ID is an integer from 0 to 2**31-1, written without sign, fraction or exponent: `-0`, `1.0` and `1e2`
are malformed. So is a list both in a choice and in its delta: whether it counts twice can't be told.

The events of a stream begin alike, down to the first choice's output: the same ID, time, model and index.
What a walk knows when it stands before that output follows from the bytes before it alone, so it is kept with
them, and an event that begins with the same bytes is read on from there.
"""

from collections.abc import Iterable
from typing import NamedTuple

from libc.string cimport memcmp, memcpy

from narwhal._fast.json cimport (
    IS_ARRAY,
    IS_BAD,
    IS_FLOAT,
    IS_INT,
    IS_NULL,
    IS_OBJECT,
    IS_STRING,
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
    unescape,
)

cdef enum Name:
    NONE = 0                    # a name that is not read, or a closed object
    CHOICES = 1 << 0
    USAGE = 1 << 1
    ERROR = 1 << 2
    DELTA = 1 << 3
    MESSAGE = 1 << 4
    FINISH_REASON = 1 << 5
    TEXT = 1 << 6
    CONTENT = 1 << 7
    REASONING = 1 << 8
    REASONING_CONTENT = 1 << 9
    REFUSAL = 1 << 10
    TOOL_CALLS = 1 << 11
    FUNCTION_CALL = 1 << 12
    TOKEN_IDS = 1 << 13
    PROMPT_TOKEN_IDS = 1 << 14
    PROMPT_TEXT = 1 << 15
    PROMPT_TOKENS = 1 << 16
    COMPLETION_TOKENS = 1 << 17
    PROMPT_TOKENS_DETAILS = 1 << 18
    CACHED_TOKENS = 1 << 19
    BROKEN = 1 << 20            # not a name: the text is bad here

cdef enum:
    OUTPUT = TEXT | CONTENT | REASONING | REASONING_CONTENT | REFUSAL | TOOL_CALLS | FUNCTION_CALL
    CUT = TOKEN_IDS | PROMPT_TOKEN_IDS | PROMPT_TEXT
    AT_TOP = CHOICES | USAGE | ERROR
    IN_CHOICE = DELTA | MESSAGE | FINISH_REASON | TOKEN_IDS | OUTPUT
    IN_DELTA = TOKEN_IDS | OUTPUT
    IN_USAGE = PROMPT_TOKENS | COMPLETION_TOKENS | PROMPT_TOKENS_DETAILS
    LONGEST_NAME = 21
    LARGEST_ID = 0x7FFFFFFF


cdef struct Walk:
    # An event that is being read: the objects that are open, and the choice at hand.
    Cursor c
    Facts* facts
    Memo* memo          # may be NULL
    Members top
    Members choice
    Members delta
    bint had_list       # this choice gave a list of token IDs


cdef inline Name name_of(Cursor* c, Value* key) noexcept nogil:
    cdef const unsigned char* p = c.text + key.start + 1
    cdef Py_ssize_t n = key.end - key.start - 2
    cdef unsigned char plain[LONGEST_NAME]
    if key.escaped:
        n = unescape(c, key, plain, LONGEST_NAME)
        p = plain
    if n == 4:
        return TEXT if memcmp(p, b"text", 4) == 0 else NONE
    elif n == 5:
        if p[0] == c'd':
            return DELTA if memcmp(p, b"delta", 5) == 0 else NONE
        if p[0] == c'u':
            return USAGE if memcmp(p, b"usage", 5) == 0 else NONE
        return ERROR if memcmp(p, b"error", 5) == 0 else NONE
    elif n == 7:
        if p[1] == c'h':
            return CHOICES if memcmp(p, b"choices", 7) == 0 else NONE
        if p[0] == c'c':
            return CONTENT if memcmp(p, b"content", 7) == 0 else NONE
        if p[0] == c'm':
            return MESSAGE if memcmp(p, b"message", 7) == 0 else NONE
        return REFUSAL if memcmp(p, b"refusal", 7) == 0 else NONE
    elif n == 9:
        if p[0] == c't':
            return TOKEN_IDS if memcmp(p, b"token_ids", 9) == 0 else NONE
        return REASONING if memcmp(p, b"reasoning", 9) == 0 else NONE
    elif n == 10:
        return TOOL_CALLS if memcmp(p, b"tool_calls", 10) == 0 else NONE
    elif n == 11:
        return PROMPT_TEXT if memcmp(p, b"prompt_text", 11) == 0 else NONE
    elif n == 13:
        if p[1] == c'i':
            return FINISH_REASON if memcmp(p, b"finish_reason", 13) == 0 else NONE
        if p[0] == c'f':
            return FUNCTION_CALL if memcmp(p, b"function_call", 13) == 0 else NONE
        if p[0] == c'p':
            return PROMPT_TOKENS if memcmp(p, b"prompt_tokens", 13) == 0 else NONE
        return CACHED_TOKENS if memcmp(p, b"cached_tokens", 13) == 0 else NONE
    elif n == 16:
        return PROMPT_TOKEN_IDS if memcmp(p, b"prompt_token_ids", 16) == 0 else NONE
    elif n == 17:
        if p[0] == c'c':
            return COMPLETION_TOKENS if memcmp(p, b"completion_tokens", 17) == 0 else NONE
        return REASONING_CONTENT if memcmp(p, b"reasoning_content", 17) == 0 else NONE
    elif n == 21:
        return PROMPT_TOKENS_DETAILS if memcmp(p, b"prompt_tokens_details", 21) == 0 else NONE
    return NONE


cdef inline bint reject(Cursor* c, Py_ssize_t at, const char* why) noexcept nogil:
    # Always False, so that a reader can end with it.
    c.at = at
    c.error = why
    return False


cdef inline bint add_span(Cursor* c, Facts* facts, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    if facts.span_count == MAX_SPANS:
        return reject(c, start, b"too many token-ID fields")
    facts.spans[facts.span_count].start = start
    facts.spans[facts.span_count].end = end
    facts.span_count += 1
    return True


cdef inline void enter_object(Cursor* c, Members* m, int depth, int cut_names) noexcept nogil:
    enter(c)
    m.depth = depth
    m.first = True
    m.cut_names = cut_names
    m.seen = 0
    m.kept = False
    m.cut_at = -1


cdef Name next_name(Cursor* c, Facts* facts, Members* m, int wanted) noexcept nogil:
    # Go to the next member with one of the `wanted` names, the cursor before its value. Others are read over,
    # and those to cut are noted on the way. NONE: the object has closed. BROKEN: bad text.
    #
    # A run of members to cut takes the comma before it along, or, where no member before it stays, the comma
    # after it: [end of the value before, end of its last value) or [its first key, the next key).
    cdef Value key, value
    cdef Py_ssize_t before
    cdef Name name
    cdef int more
    while True:
        before = c.at
        more = next_member(c, &m.first, &key)
        if more < 0:
            return BROKEN
        if more == 0:
            if m.cut_at >= 0 and not add_span(c, facts, m.cut_at, before):
                return BROKEN
            return NONE
        name = name_of(c, &key)
        if name & (wanted | m.cut_names):
            if m.seen & name:
                reject(c, key.start, b"a key is given twice")
                return BROKEN
            m.seen |= name
        if name & m.cut_names:
            if m.cut_at < 0:
                m.cut_at = before if m.kept else key.start
        else:
            if m.cut_at >= 0:
                if not add_span(c, facts, m.cut_at, before if m.kept else key.start):
                    return BROKEN
                m.cut_at = -1
            m.kept = True
        if name & wanted:
            return name
        if read_value(c, &value, m.depth) == IS_BAD:
            return BROKEN


cdef bint is_empty(Cursor* c, Value* value) noexcept nogil:
    cdef Py_ssize_t i = value.start + 1
    cdef unsigned char b
    if value.kind == IS_NULL:
        return True
    if value.kind == IS_STRING:
        return value.end - value.start == 2
    if value.kind != IS_ARRAY and value.kind != IS_OBJECT:
        return False
    while True:
        b = c.text[i]
        if b != 0x20 and b != 0x0A and b != 0x0D and b != 0x09:
            return i == value.end - 1
        i += 1


cdef inline const char* fault_of_id(Cursor* c, Value* value) noexcept nogil:
    if value.kind == IS_INT:
        if c.text[value.start] == c'-':
            return b"a negative number"
        if not 0 <= as_natural(c, value) <= LARGEST_ID:
            return b"a number beyond 2147483647"
        return NULL
    if value.kind == IS_FLOAT:
        return b"a number with a fraction or an exponent"
    if value.kind == IS_STRING:
        return b"a string"
    if value.kind == IS_ARRAY:
        return b"a nested list"
    if value.kind == IS_OBJECT:
        return b"an object"
    if value.kind == IS_NULL:
        return b"a null in the list"
    return b"a Boolean"


cdef void malformed(Facts* facts, const char* why) noexcept nogil:
    if facts.ids != IDS_MALFORMED:
        facts.ids = IDS_MALFORMED
        facts.ids_error = why


cdef bint read_ids(Cursor* c, Facts* facts, int depth, bint* had_list) noexcept nogil:
    # Read the value of a `token_ids`. had_list: whether the same choice gave a list before; kept up to date.
    cdef Value value
    cdef bint first = True
    cdef int more
    cdef Kind kind = peek(c)
    cdef const char* fault
    cdef const unsigned char* p = c.text
    cdef Py_ssize_t i, stop
    if kind != IS_ARRAY:
        if read_value(c, &value, depth) == IS_BAD:
            return False
        if kind != IS_NULL:
            malformed(facts, b"not a list")
        elif facts.ids == IDS_ABSENT:
            facts.ids = IDS_NULL
        return True
    if had_list[0]:
        malformed(facts, b"two lists for one choice")
    had_list[0] = True
    if facts.ids < IDS_VALID:
        facts.ids = IDS_VALID
    enter(c)
    while True:
        more = next_item(c, &first)
        if more <= 0:
            return more == 0
        # Nearly every item is up to nine digits, so no larger than LARGEST_ID, before a comma or the bracket.
        i = c.at
        stop = min(i + 9, c.length)
        if i < stop and p[i] != c'0':
            while i < stop and c'0' <= p[i] <= c'9':
                i += 1
            if c.at < i < c.length and (p[i] == c',' or p[i] == c']'):
                c.at = i
                facts.id_count += 1
                continue
        if read_value(c, &value, depth + 1) == IS_BAD:
            return False
        fault = fault_of_id(c, &value)
        if fault == NULL:
            facts.id_count += 1
        else:
            malformed(facts, fault)


cdef inline bint read_output(Cursor* c, Facts* facts, int depth) noexcept nogil:
    cdef Value value
    if read_value(c, &value, depth) == IS_BAD:
        return False
    if not is_empty(c, &value):
        facts.has_output = True
    return True


cdef bint delta_members(Walk* w, Name name) noexcept nogil:
    # The rest of the delta at hand, of which the member of this name has been found.
    while True:
        if name == TOKEN_IDS:
            if not read_ids(&w.c, w.facts, w.delta.depth, &w.had_list):
                return False
        elif name & OUTPUT:
            if w.facts.choices == 0:
                remember(w, True)
            if not read_output(&w.c, w.facts, w.delta.depth):
                return False
        else:
            return name == NONE
        name = next_name(&w.c, w.facts, &w.delta, IN_DELTA)


cdef bint choice_members(Walk* w, Name name) noexcept nogil:
    # The rest of the choice at hand, likewise.
    cdef Members message
    cdef Value value
    cdef Kind kind
    while True:
        if name == TOKEN_IDS:
            if not read_ids(&w.c, w.facts, w.choice.depth, &w.had_list):
                return False
        elif name & OUTPUT:
            if w.facts.choices == 0:
                remember(w, False)
            if not read_output(&w.c, w.facts, w.choice.depth):
                return False
        elif name == NONE or name == BROKEN:
            return name == NONE
        else:
            kind = peek(&w.c)
            if kind == IS_OBJECT and name == DELTA:
                enter_object(&w.c, &w.delta, w.choice.depth + 1, CUT)
                if not delta_members(w, next_name(&w.c, w.facts, &w.delta, IN_DELTA)):
                    return False
            elif kind == IS_OBJECT and name == MESSAGE:
                enter_object(&w.c, &message, w.choice.depth + 1, CUT)
                if next_name(&w.c, w.facts, &message, 0) == BROKEN:
                    return False
            else:
                if read_value(&w.c, &value, w.choice.depth) == IS_BAD:
                    return False
                if name == DELTA and kind != IS_NULL:
                    return reject(&w.c, value.start, b"`delta` is not an object")
                if name == FINISH_REASON and kind != IS_NULL:
                    if kind != IS_STRING:
                        return reject(&w.c, value.start, b"`finish_reason` is neither a string nor null")
                    if value.end - value.start > 2:
                        w.facts.finished = True
        name = next_name(&w.c, w.facts, &w.choice, IN_CHOICE)


cdef bint read_choices(Walk* w) noexcept nogil:
    cdef Value value
    cdef Kind kind = peek(&w.c)
    if kind != IS_ARRAY:
        if read_value(&w.c, &value, w.top.depth) == IS_BAD:
            return False
        return kind == IS_NULL or reject(&w.c, value.start, b"`choices` is not a list")
    w.facts.choices = 0
    enter(&w.c)
    return next_choices(w, True)


cdef bint next_choices(Walk* w, bint first) noexcept nogil:
    # The rest of the list of choices; `first`: none has been read.
    cdef int more
    cdef Kind kind
    while True:
        more = next_item(&w.c, &first)
        if more <= 0:
            return more == 0
        kind = peek(&w.c)
        if kind != IS_OBJECT:
            return kind != IS_BAD and reject(&w.c, w.c.at, b"a choice is not an object")
        enter_object(&w.c, &w.choice, w.top.depth + 2, CUT)
        w.had_list = False
        if not choice_members(w, next_name(&w.c, w.facts, &w.choice, IN_CHOICE)):
            return False
        w.facts.choices += 1


cdef bint read_prompt_details(Cursor* c, Facts* facts, int depth) noexcept nogil:
    cdef Members m
    cdef Value value
    cdef Name name
    if peek(c) != IS_OBJECT:
        return read_value(c, &value, depth) != IS_BAD
    enter_object(c, &m, depth + 1, 0)
    while True:
        name = next_name(c, facts, &m, CACHED_TOKENS)
        if name != CACHED_TOKENS:
            return name == NONE
        if read_value(c, &value, m.depth) == IS_BAD:
            return False
        facts.cached_tokens = as_natural(c, &value)
        facts.cached_value.start = value.start
        facts.cached_value.end = value.end


cdef bint read_usage(Cursor* c, Facts* facts, int depth) noexcept nogil:
    cdef Members m
    cdef Value value
    cdef Name name
    cdef Kind kind = peek(c)
    if kind != IS_OBJECT:
        if read_value(c, &value, depth) == IS_BAD:
            return False
        return kind == IS_NULL or reject(c, value.start, b"`usage` is not an object")
    facts.has_usage = True
    enter_object(c, &m, depth + 1, 0)
    while True:
        name = next_name(c, facts, &m, IN_USAGE)
        if name == PROMPT_TOKENS_DETAILS:
            if not read_prompt_details(c, facts, m.depth):
                return False
            continue
        if name == NONE or name == BROKEN:
            return name == NONE
        if read_value(c, &value, m.depth) == IS_BAD:
            return False
        if name == PROMPT_TOKENS:
            facts.prompt_tokens = as_natural(c, &value)
        else:
            facts.completion_tokens = as_natural(c, &value)


cdef bint event_members(Walk* w, Name name) noexcept nogil:
    # The rest of the event, likewise.
    cdef Value value
    while True:
        if name == CHOICES:
            if not read_choices(w):
                return False
        elif name == USAGE:
            if not read_usage(&w.c, w.facts, w.top.depth):
                return False
        elif name == ERROR:
            if read_value(&w.c, &value, w.top.depth) == IS_BAD:
                return False
            if value.kind != IS_NULL:
                w.facts.has_error = True
                w.facts.error_object.start = value.start
                w.facts.error_object.end = value.end
        elif name == BROKEN:
            return False
        else:
            return at_end(&w.c) or reject(&w.c, w.c.at, b"something follows the object")
        name = next_name(&w.c, w.facts, &w.top, AT_TOP)


cdef bint read_event(Walk* w) noexcept nogil:
    cdef Kind kind = peek(&w.c)
    if kind != IS_OBJECT:
        return kind != IS_BAD and reject(&w.c, w.c.at, b"not a JSON object")
    enter_object(&w.c, &w.top, 1, CUT)
    return event_members(w, next_name(&w.c, w.facts, &w.top, AT_TOP))


# ---- what one event shares with the next

cdef inline void remember(Walk* w, bint in_delta) noexcept nogil:
    # The cursor is before the first choice's output. If nothing has been found yet but where it stands, that
    # is all there is to know of the text before it.
    cdef Memo* memo = w.memo
    cdef Facts* facts = w.facts
    if memo == NULL or w.c.at > MEMO_SIZE:
        return
    if (
        facts.has_output or facts.finished or facts.has_error or facts.has_usage or facts.span_count
        or facts.ids != IDS_ABSENT
    ):
        return
    memo.size = w.c.at
    memo.in_delta = in_delta
    memo.top = w.top
    memo.choice = w.choice
    memo.delta = w.delta
    memcpy(memo.text, w.c.text, memo.size)


cdef bint read_on(Walk* w) noexcept nogil:
    # The event begins as the one remembered: read on from there.
    cdef Memo* memo = w.memo
    w.c.at = memo.size
    w.facts.choices = 0
    w.had_list = False
    w.top = memo.top
    w.choice = memo.choice
    w.delta = memo.delta
    if memo.in_delta:
        if not read_output(&w.c, w.facts, w.delta.depth):
            return False
        if not delta_members(w, next_name(&w.c, w.facts, &w.delta, IN_DELTA)):
            return False
    elif not read_output(&w.c, w.facts, w.choice.depth):
        return False
    if not choice_members(w, next_name(&w.c, w.facts, &w.choice, IN_CHOICE)):
        return False
    w.facts.choices = 1
    return next_choices(w, False) and event_members(w, next_name(&w.c, w.facts, &w.top, AT_TOP))


cdef void forget(Memo* memo) noexcept nogil:
    memo.size = 0


cdef void scan_event(const unsigned char* p, Py_ssize_t n, Facts* facts, Memo* memo) noexcept nogil:
    cdef Walk w
    cdef bint whole
    facts.error = NULL
    facts.error_at = -1
    facts.has_output = False
    facts.finished = False
    facts.choices = -1
    facts.ids = IDS_ABSENT
    facts.id_count = 0
    facts.ids_error = NULL
    facts.has_error = False
    facts.error_object.start = facts.error_object.end = -1
    facts.has_usage = False
    facts.prompt_tokens = facts.completion_tokens = facts.cached_tokens = -1
    facts.cached_value.start = facts.cached_value.end = -1
    facts.span_count = 0
    open_text(&w.c, p, n)
    w.facts = facts
    w.memo = memo
    if memo != NULL and 0 < memo.size <= n and memcmp(p, memo.text, memo.size) == 0:
        whole = read_on(&w)
    else:
        whole = read_event(&w)
    if not whole:
        facts.error = w.c.error
        facts.error_at = w.c.at


class Scan(NamedTuple):
    """The facts of one event; see Facts in scan.pxd. Spans are (start, end), ids is an IdsState's number."""

    has_output: bool
    finished: bool
    choices: int
    ids: int
    id_count: int
    ids_error: str | None
    error_object: tuple[int, int] | None
    has_usage: bool
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cached_value: tuple[int, int] | None
    spans: tuple[tuple[int, int], ...]


cdef object span_or_none(Span span):
    return (span.start, span.end) if span.start >= 0 else None


cdef class Beginning:
    """How a stream's events begin, kept from one to the next."""

    cdef Memo memo

    def __cinit__(self):
        forget(&self.memo)

    @property
    def text(self):
        """The bytes that the last event is known to have begun with."""
        return self.memo.text[:self.memo.size]


cdef scan_or_raise(bytes data, Facts* facts, Beginning beginning=None):
    cdef Memo* memo = &beginning.memo if beginning is not None else NULL
    scan_event(<const unsigned char*>data, len(data), facts, memo)
    if facts.error != NULL:
        raise ValueError(f"byte {facts.error_at}: {facts.error.decode()}")


def scan(bytes data not None, Beginning beginning=None):
    """Scan one event's JSON. Raises ValueError, with the byte and the reason, if the text is not an event.

    With `beginning`, kept for all events of a stream, less is read, and the result is the same.
    """
    cdef Facts facts
    cdef int i
    scan_or_raise(data, &facts, beginning)
    return Scan(
        has_output=bool(facts.has_output),
        finished=bool(facts.finished),
        choices=facts.choices,
        ids=int(facts.ids),
        id_count=facts.id_count,
        ids_error=facts.ids_error.decode() if facts.ids_error != NULL else None,
        error_object=span_or_none(facts.error_object),
        has_usage=bool(facts.has_usage),
        prompt_tokens=facts.prompt_tokens,
        completion_tokens=facts.completion_tokens,
        cached_tokens=facts.cached_tokens,
        cached_value=span_or_none(facts.cached_value),
        spans=tuple([(facts.spans[i].start, facts.spans[i].end) for i in range(facts.span_count)]),
    )


def excise(bytes data not None):
    """The event without its token-ID fields, every other byte as it was. Raises ValueError like scan()."""
    cdef Facts facts
    cdef Py_ssize_t at = 0
    cdef int i
    scan_or_raise(data, &facts)
    pieces = []
    for i in range(facts.span_count):
        pieces.append(data[at:facts.spans[i].start])
        at = facts.spans[i].end
    pieces.append(data[at:])
    return b"".join(pieces)


def tally(events: Iterable[bytes]):
    """Scan a stream's events: (events with output, valid token IDs). Raises ValueError like scan()."""
    cdef Facts facts
    cdef Py_ssize_t outputs = 0, ids = 0
    cdef Beginning beginning = Beginning()
    for data in events:
        scan_or_raise(data, &facts, beginning)
        outputs += facts.has_output
        ids += facts.id_count
    return outputs, ids
