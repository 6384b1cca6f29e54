# A JSON object's text with its top-level members found. See body.pyx.

from narwhal._fast.json cimport Kind as JsonKind
from narwhal._fast.json cimport Value

cdef struct Member:
    Py_ssize_t key_start    # the key's opening quote
    Py_ssize_t value_start
    Py_ssize_t value_end
    Py_ssize_t earlier      # the member before this one that has the same key, or -1
    JsonKind kind           # of the value

cdef enum:
    MAX_MEMBERS = 4096

cdef class Body:
    cdef readonly bytes raw
    cdef const unsigned char* text  # raw's own bytes
    cdef Py_ssize_t inside          # just after the object's opening bracket
    cdef Py_ssize_t count
    cdef Py_ssize_t room            # members there is memory for
    cdef dict last                  # key, escapes resolved: index of the last member that has it
    cdef Member* members
    cdef int index(self) except -1
    cdef int add(self, Value* key, Value* value) except -1
    # The member a decoder would go by: the last with this key. NULL if there is none.
    cdef Member* find(self, str key) except? NULL
    cdef bytes text_of(self, Member* member)

# The Python face of a kind: a member of the class Kind.
cdef object kind_of(JsonKind kind)
