# A JSON object's text with its top-level members found. See body.pyx.

from cpython.object cimport PyObject

from narwhal._fast.json cimport Cursor, Value
from narwhal._fast.json cimport Kind as JsonKind

cdef struct Member:
    Py_ssize_t key_start    # the key's opening quote
    Py_ssize_t key_end
    Py_ssize_t value_start
    Py_ssize_t value_end
    Py_ssize_t earlier      # the member before this one that has the same key, or -1
    JsonKind kind           # of the value

cdef enum:
    FEW = 16            # members, up to which they are looked through
    MAX_MEMBERS = 4096

cdef class Body:
    cdef readonly bytes raw
    cdef const unsigned char* text  # raw's own bytes
    cdef Py_ssize_t inside          # just after the object's opening bracket
    cdef Py_ssize_t count
    cdef Py_ssize_t room            # members there is memory for
    # Key, escapes resolved: index of the last member that has it. None as long as there are few members, and
    # no key is written with escapes: then keys are compared as they stand there.
    cdef dict last
    cdef Member* members
    cpdef kind(self, str key)
    cpdef bytes raw_value(self, str key)
    cpdef Py_ssize_t value_size(self, str key) except -1
    cpdef value(self, str key)
    cpdef long long natural(self, str key) except -2
    cpdef long long inner_natural(self, str key, str name) except -2
    cpdef inner(self, str key, str name)
    cpdef list edit(self, drop, dict put)
    cdef int index(self) except -1
    cdef str name(self, Py_ssize_t member, bint escaped)
    cdef Py_ssize_t seek(self, const char* name, Py_ssize_t size) noexcept
    cdef Py_ssize_t index_of(self, str key) except -2
    cdef list spliced(self, PyObject** fate, drop, dict put)
    cdef int add(self, Value* key, Value* value) except -1
    # The member a decoder would go by: the last with this key. NULL if there is none.
    cdef Member* find(self, str key) except? NULL
    cdef int find_inner(self, str key, str name, Cursor* c, Value* found) except -1
    cdef bytes text_of(self, Member* member)

# The Python face of a kind: a member of the class Kind.
cdef object kind_of(JsonKind kind)
