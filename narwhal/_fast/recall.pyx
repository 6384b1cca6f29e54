"""What has been delivered of an answer, kept so that another engine can go on with it.

Of each event that passes the relay this keeps its token IDs, as they stand between their brackets, and from
the first ones the answer's ID, its date and the prompt's token IDs. Nothing is decoded; what is kept grows by
some bytes a token, up to a limit.

Another engine can go on only where no character is cut in two: of a character whose bytes lie in two tokens,
an engine holds the first back, and one that had these in its prompt would not write the rest. So the seam is
kept: the end of the last event with one ID and some text, for such text is complete. (Text in an event of
several IDs may stop short of the last of them.) What came since is kept apart, to be compared with what
comes again.

Some answers can't be gone on with: more than one choice, calls, reasoning, refusals, or anything that is not
known here. Then `plain` is false.

Events have been scanned before, so they are well formed.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from libc.string cimport memcpy

from narwhal._fast.json cimport (
    IS_ARRAY, IS_OBJECT, IS_STRING, Cursor, Value, enter, next_item, next_member, open_text, peek,
    read_value, spells,
)
from narwhal._fast.scan cimport is_empty


cdef inline int extend(bytearray kept, const unsigned char* p, Py_ssize_t n) except -1:
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(kept)
    PyByteArray_Resize(kept, size + n)
    memcpy(PyByteArray_AS_STRING(kept) + size, p, n)
    return 0


cdef inline bytes span(const unsigned char* p, Value* value):
    return (<const char*>p)[value.start:value.end]


cdef class Recall:
    def __init__(self, bint chat, Py_ssize_t limit=16777216):
        """`chat`: of a chat completion, else of a text completion. Beyond `limit` bytes it is given up."""
        self.chat = chat
        self.limit = limit
        self.clear()

    cdef void clear(self):
        """Another answer begins: forget the one before."""
        self.plain = True
        self.finished = False
        self.id = self.created = self.prompt_ids = self.last_logprobs = None
        self.id_text = bytearray()
        self.tail_text = bytearray()
        self.seam_size = 0
        self.tokens = self.seam = 0

    def spoil(self) -> None:
        """It can't be gone on with, whatever comes."""
        self.plain = False
        self.id_text = bytearray()
        self.tail_text = bytearray()

    @property
    def ids_before_the_seam(self) -> bytes:
        """As a JSON list writes them, without its brackets."""
        return bytes(self.id_text[:self.seam_size])

    @property
    def ids_since_the_seam(self) -> bytes:
        """Likewise."""
        return bytes(self.id_text[self.seam_size:]).lstrip(b",")

    @property
    def text_since_the_seam(self) -> bytes:
        """As JSON strings write it, without quotes."""
        return bytes(self.tail_text)

    @property
    def logprobs_at_the_seam(self):
        """The logprobs of the last event before it, as they came; None if there are none."""
        return self.last_logprobs

    def note_event(self, bytes data not None) -> None:
        """Keep what one event's JSON says."""
        self.note(data, len(data))

    cdef void note(self, const unsigned char* p, Py_ssize_t n):
        if not self.plain:
            return
        try:
            self.read_event(p, n)
        except MemoryError:
            self.spoil()
        if PyByteArray_GET_SIZE(self.id_text) + PyByteArray_GET_SIZE(self.tail_text) > self.limit:
            self.spoil()

    cdef int read_event(self, const unsigned char* p, Py_ssize_t n) except -1:
        cdef Cursor c
        cdef Value key, value
        cdef bint first = True, first_choice = True
        open_text(&c, p, n)
        peek(&c)
        enter(&c)
        while next_member(&c, &first, &key) == 1:
            if spells(&c, &key, b"choices", 7) and peek(&c) == IS_ARRAY:
                enter(&c)
                if next_item(&c, &first_choice) != 1:
                    continue
                peek(&c)
                self.read_choice(&c)
                while next_item(&c, &first_choice) == 1:
                    read_value(&c, &value, 2)
                    self.plain = False
                continue
            read_value(&c, &value, 1)
            if self.id is None and spells(&c, &key, b"id", 2):
                self.id = span(p, &value)
            elif self.created is None and spells(&c, &key, b"created", 7):
                self.created = span(p, &value)
            elif value.kind == IS_ARRAY and spells(&c, &key, b"prompt_token_ids", 16):
                self.take_prompt(&c, &value)
        return 0

    cdef int read_choice(self, Cursor* c) except -1:
        cdef const unsigned char* p = c.text
        cdef Value key, value
        cdef bint first = True
        cdef Py_ssize_t text_start = 0, text_end = 0, ids_start = 0, ids_end = 0
        cdef Py_ssize_t logprobs_start = 0, logprobs_end = 0, i
        cdef int count = 0
        enter(c)
        while next_member(c, &first, &key) == 1:
            if self.chat and spells(c, &key, b"delta", 5) and peek(c) == IS_OBJECT:
                self.read_delta(c, 4, &text_start, &text_end)
                continue
            read_value(c, &value, 3)
            if is_empty(c, &value):
                continue
            if not self.chat and value.kind == IS_STRING and spells(c, &key, b"text", 4):
                text_start, text_end = value.start + 1, value.end - 1
            elif spells(c, &key, b"token_ids", 9):
                ids_start, ids_end = value.start + 1, value.end - 1
            elif spells(c, &key, b"logprobs", 8):
                logprobs_start, logprobs_end = value.start, value.end
            elif spells(c, &key, b"finish_reason", 13):
                self.finished = True
            elif value.kind == IS_ARRAY and spells(c, &key, b"prompt_token_ids", 16):
                self.take_prompt(c, &value)
            elif not spells(c, &key, b"index", 5) and not spells(c, &key, b"stop_reason", 11):
                self.plain = False
        if ids_end > ids_start:
            count = 1
            for i in range(ids_start, ids_end):
                count += p[i] == c','
            self.take_ids(p, ids_start, ids_end)
            self.tokens += count
        if text_end > text_start:
            extend(self.tail_text, p + text_start, text_end - text_start)
            if count == 1:
                self.seam = self.tokens
                self.seam_size = PyByteArray_GET_SIZE(self.id_text)
                PyByteArray_Resize(self.tail_text, 0)
                if logprobs_end > logprobs_start:
                    self.last_logprobs = (<const char*>p)[logprobs_start:logprobs_end]
        return 0

    cdef int read_delta(
        self, Cursor* c, int depth, Py_ssize_t* text_start, Py_ssize_t* text_end
    ) except -1:
        cdef Value key, value
        cdef bint first = True
        enter(c)
        while next_member(c, &first, &key) == 1:
            read_value(c, &value, depth)
            if is_empty(c, &value):
                continue
            if value.kind == IS_STRING and spells(c, &key, b"content", 7):
                text_start[0], text_end[0] = value.start + 1, value.end - 1
            elif not spells(c, &key, b"role", 4):
                self.plain = False
        return 0

    cdef int take_prompt(self, Cursor* c, Value* ids) except -1:
        if self.prompt_ids is None and not is_empty(c, ids):
            self.prompt_ids = span(c.text, ids)
        return 0

    cdef int take_ids(self, const unsigned char* p, Py_ssize_t start, Py_ssize_t end) except -1:
        if PyByteArray_GET_SIZE(self.id_text) > 0:
            extend(self.id_text, b",", 1)
        return extend(self.id_text, p + start, end - start)
