"""A connection's way out: straight to the socket while nothing is queued, else through the transport.

An event loop's transport collects writes and sends them at the end of the loop's turn, with an object or two
for each. Almost always the socket would have taken the bytes at once. So as long as the transport has nothing
queued, bytes are sent from here; what the socket doesn't take goes to the transport, whose high-water mark
then pauses the sender. Everything written on a connection must go through its outlet, or the order is lost.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, errno


cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int fd, const void* p, size_t n, int flags)
    int MSG_NOSIGNAL
    int MSG_DONTWAIT

cdef Py_ssize_t JOIN_LIMIT = 65536


cdef class Outlet:
    def __cinit__(self):
        self.fd = -1

    def attach(self, transport) -> None:
        """Write to this transport from now on."""
        self.transport = transport
        self.queued = False
        sock = transport.get_extra_info("socket")
        if sock is not None and transport.get_extra_info("sslcontext") is None:
            self.fd = sock.fileno()

    def transport_or_none(self):
        """The transport, as long as there is one."""
        return self.transport

    def detach(self) -> None:
        """The connection is gone: drop what is still written."""
        self.transport = None
        self.fd = -1

    def close(self) -> None:
        """Close once what is queued has been sent."""
        transport = self.transport
        self.detach()
        if transport is not None:
            transport.close()

    def abort(self) -> None:
        """Close now."""
        transport = self.transport
        self.detach()
        if transport is not None:
            transport.abort()

    cdef void write(self, const unsigned char* p, Py_ssize_t n):
        cdef ssize_t sent = 0
        # A transport that closes may have given its descriptor back to the system.
        if n == 0 or self.transport is None or self.transport.is_closing():
            return
        if self.fd >= 0:
            if self.queued and self.transport.get_write_buffer_size() == 0:
                self.queued = False
            if not self.queued:
                sent = send(self.fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT)
                if sent == n:
                    return
                if sent < 0:
                    if errno != EAGAIN and errno != EINTR:
                        self.abort()
                        return
                    sent = 0
        self.queued = True
        self.transport.write(PyBytes_FromStringAndSize(<const char*>p + sent, n - sent))

    def write_bytes(self, bytes data not None) -> None:
        """Write one piece."""
        self.write(<const unsigned char*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def write_pieces(self, list pieces not None, Py_ssize_t size) -> None:
        """Write buffers in order, `size` bytes in all; large ones are not copied."""
        if size <= JOIN_LIMIT:
            self.write_bytes(b"".join(pieces))
        elif self.transport is not None and not self.transport.is_closing():
            self.queued = True
            self.transport.writelines(pieces)
