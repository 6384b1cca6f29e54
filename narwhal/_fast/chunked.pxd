# A decoder of chunked transfer coding that finds payload where it lies. See chunked.pyx.
from libc.stdint cimport uint64_t

cdef enum ChunkStep:
    CHUNK_BAD = -1      # the coding is broken; Chunked.error says how
    CHUNK_MORE = 0      # all input is used, more is needed
    CHUNK_DATA = 1      # a span of payload
    CHUNK_END = 2       # the terminal chunk and its trailers are read

cdef struct Chunked:
    int state
    int length          # bytes so far of the size line, or of the trailers
    uint64_t left       # the size read so far, then the payload bytes of this chunk still to come
    const char* error   # after CHUNK_BAD: what is wrong

cdef void chunked_reset(Chunked* c) noexcept nogil
# Read on in p[0:n]. Sets `used`, the bytes consumed, and with CHUNK_DATA the payload span p[at:at+size] among
# them, never empty. After CHUNK_DATA call again with the rest. CHUNK_END leaves what follows the body unused.
# CHUNK_END and CHUNK_BAD are final: further calls use nothing and return the same.
cdef ChunkStep chunked_next(
    Chunked* c, const unsigned char* p, Py_ssize_t n, Py_ssize_t* used, Py_ssize_t* at, Py_ssize_t* size
) noexcept nogil
