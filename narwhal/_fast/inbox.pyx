"""A connection's way in: what is read becomes an object, but for a body whose length is known.

Such a body is put together where it is to stay, so each of its bytes is copied once on its way from the
socket's buffer, however many reads it takes.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy


cdef class Inbox(Receiver):
    """A protocol that overrides `data_received`, `body_grows` and `body_is_whole`."""

    cpdef bint gathering(self):
        """Whether a body is being gathered."""
        return self.body is not None

    cpdef gather(self, Py_ssize_t size):
        """What comes next is a body of so many bytes, at least one."""
        self.body = PyBytes_FromStringAndSize(NULL, size)
        self.gathered = 0

    cpdef bytes stop_gathering(self):
        """Gather no more; the body, which is good for something only if it is whole."""
        cdef bytes body = self.body
        self.body = None
        return body

    cpdef Py_ssize_t fill(self, bytes data):
        """Take what belongs to the body; returns how many bytes that are."""
        return self.take(<const unsigned char*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef Py_ssize_t take(self, const unsigned char* p, Py_ssize_t n) noexcept:
        cdef Py_ssize_t left = PyBytes_GET_SIZE(self.body) - self.gathered
        if n > left:
            n = left
        memcpy(PyBytes_AS_STRING(self.body) + self.gathered, p, n)
        self.gathered += n
        return n

    cdef Rank rank(self) noexcept:
        return REQUEST

    cdef int receive(self, const unsigned char* p, Py_ssize_t n) except -1:
        cdef Py_ssize_t used
        if self.body is None:
            self.data_received(PyBytes_FromStringAndSize(<const char*>p, n))
            return 0
        used = self.take(p, n)
        if self.gathered < PyBytes_GET_SIZE(self.body):
            self.body_grows()
        else:
            self.body_is_whole(PyBytes_FromStringAndSize(<const char*>p + used, n - used))
        return 0

    def data_received(self, bytes data) -> None:
        """Something came that belongs to no body."""
        raise NotImplementedError

    def body_grows(self) -> None:
        """A part of the body came."""
        raise NotImplementedError

    def body_is_whole(self, bytes rest) -> None:
        """Its last byte came, and behind it `rest`."""
        raise NotImplementedError
