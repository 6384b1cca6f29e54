# The system's epoll, and a hint to the processor.

from libc.stdint cimport uint32_t, uint64_t

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        uint64_t u64
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int operation, int fd, epoll_event* event)
    int epoll_wait(int epoll, epoll_event* events, int most, int timeout_ms)
    int EPOLL_CLOEXEC
    int EPOLL_CTL_ADD
    int EPOLL_CTL_MOD
    int EPOLL_CTL_DEL
    uint32_t EPOLLIN
    uint32_t EPOLLPRI
    uint32_t EPOLLOUT
    uint32_t EPOLLERR
    uint32_t EPOLLHUP
    uint32_t EPOLLRDHUP
    uint32_t EPOLLET

cdef extern from *:
    void __builtin_prefetch(const void* p, int write, int locality) nogil

# Fetch this many cache lines of what is at p; to be used a few hundred nanoseconds later.
cdef inline void fetch(const void* p, int lines) noexcept nogil:
    cdef int i
    for i in range(lines):
        __builtin_prefetch(<const char*>p + 64 * i, 1, 3)
