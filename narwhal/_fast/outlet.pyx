"""A connection's way out, whatever kind of transport it is on.

On the reactor's transports bytes go from where they lie to the socket. On any other, which is to say under
TLS, they become an object first. Everything written on a connection goes through its outlet.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from narwhal._fast.reactor cimport Transport

cdef Py_ssize_t JOIN_LIMIT = 65536


cdef class Outlet:
    def attach(self, transport) -> None:
        """Write to this transport from now on."""
        self.transport = transport
        self.direct = transport if isinstance(transport, Transport) else None

    def transport_or_none(self):
        """The transport, as long as there is one."""
        return self.transport

    def detach(self) -> None:
        """The connection is gone: drop what is still written."""
        self.transport = self.direct = None

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

    cdef int write(self, const unsigned char* p, Py_ssize_t n) except -1:
        if self.direct is not None:
            return self.direct.put(p, n)
        if n and self.transport is not None and not self.transport.is_closing():
            self.transport.write(PyBytes_FromStringAndSize(<const char*>p, n))
        return 0

    def write_bytes(self, bytes data not None) -> None:
        """Write one piece."""
        self.write(<const unsigned char*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def write_pieces(self, list pieces not None, Py_ssize_t size) -> None:
        """Write buffers in order, `size` bytes in all; large ones are not copied."""
        if size > JOIN_LIMIT:
            if self.transport is not None and not self.transport.is_closing():
                self.transport.writelines(pieces)
        elif self.direct is not None:
            self.direct.put_pieces(pieces, size)
        else:
            self.write_bytes(b"".join(pieces))
