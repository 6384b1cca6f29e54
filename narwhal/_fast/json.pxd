# A cursor over JSON text: structure without objects. See json.pyx.

cdef enum Kind:
    IS_BAD = -1
    IS_NULL = 0
    IS_FALSE = 1
    IS_TRUE = 2
    IS_INT = 3
    IS_FLOAT = 4
    IS_STRING = 5
    IS_ARRAY = 6
    IS_OBJECT = 7

cdef struct Value:
    Kind kind
    Py_ssize_t start    # its first byte: the quote of a string, the bracket of an array
    Py_ssize_t end      # one past its last byte
    bint escaped        # a string with at least one backslash in it

cdef struct Cursor:
    const unsigned char* text
    Py_ssize_t length
    Py_ssize_t at       # where reading goes on; after IS_BAD, where it stopped
    const char* error   # after IS_BAD: what is wrong there

cdef enum:
    MAX_DEPTH = 256

cdef void open_text(Cursor* c, const unsigned char* text, Py_ssize_t length) noexcept nogil
# Skip white space and tell the kind of the value that begins there, without reading it
# (IS_INT for any number).
cdef Kind peek(Cursor* c) noexcept nogil
# Read one whole value, checking all of it. `depth` is how many brackets are open around it.
cdef Kind read_value(Cursor* c, Value* out, int depth) noexcept nogil
# Step over the opening bracket that peek found.
cdef void enter(Cursor* c) noexcept nogil
# In an entered object: 1 with `key` read and the cursor before its value, 0 when the object has closed,
# -1 on bad text. `first` starts as True and is kept by the function; likewise next_item in an array.
cdef int next_member(Cursor* c, bint* first, Value* key) noexcept nogil
cdef int next_item(Cursor* c, bint* first) noexcept nogil
# After the last value: is there nothing but white space left?
cdef bint at_end(Cursor* c) noexcept nogil
# Does a key (or any string value) spell these ASCII bytes, escapes resolved?
cdef bint spells(Cursor* c, Value* key, const char* name, Py_ssize_t length) noexcept nogil
# Write the string's characters, escapes resolved, to `out`. Returns how many; -1 if one is not ASCII or they
# don't fit into `room`.
cdef Py_ssize_t unescape(Cursor* c, Value* key, unsigned char* out, Py_ssize_t room) noexcept nogil
# The value of an IS_INT if it lies in 0..2**63-1, else -1.
cdef long long as_natural(Cursor* c, Value* number) noexcept nogil
