# A connection's way out. See outlet.pyx.

cdef class Outlet:
    cdef object transport       # None before attach and after detach
    cdef int fd                 # the socket, or -1 where bytes must go through the transport (TLS)
    cdef bint queued            # the transport may hold bytes that must go first

    cdef void write(self, const unsigned char* p, Py_ssize_t n)
