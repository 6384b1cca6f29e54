# A connection's way out. See outlet.pyx.

from narwhal._fast.reactor cimport Transport

cdef class Outlet:
    cdef object transport       # None before attach and after detach
    cdef Transport direct       # the same, if it is the reactor's

    cdef int write(self, const unsigned char* p, Py_ssize_t n) except -1
