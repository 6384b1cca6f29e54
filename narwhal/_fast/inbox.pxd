# A protocol's way in. See inbox.pyx.

from narwhal._fast.reactor cimport REQUEST, Rank, Receiver

cdef class Inbox(Receiver):
    cdef bytes body             # what is being gathered, or None
    cdef readonly Py_ssize_t gathered   # bytes of it that have come

    cpdef bint gathering(self)
    cpdef gather(self, Py_ssize_t size)
    cpdef bytes stop_gathering(self)
    cpdef Py_ssize_t fill(self, bytes data)
    cdef Py_ssize_t take(self, const unsigned char* p, Py_ssize_t n) noexcept
