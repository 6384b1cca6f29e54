# Receives, or sends, of many sockets at once. See batch.pyx.

from libc.stdint cimport uint32_t

cdef enum:
    MOST_CALLS = 128    # of one batch

cdef struct Call:
    int fd
    int error           # the system's, if it failed
    unsigned char* start
    Py_ssize_t size     # room for what is received, or how much there is to send
    Py_ssize_t done     # bytes; below 0 if it failed

cdef struct Entry:      # struct io_uring_sqe, as far as these calls use it
    unsigned char opcode
    unsigned char flags
    unsigned short ioprio
    int fd
    unsigned long long offset
    unsigned long long address
    uint32_t length
    uint32_t message_flags
    unsigned long long user_data
    unsigned long long rest[3]

cdef struct Completion:     # struct io_uring_cqe
    unsigned long long user_data
    int result
    uint32_t flags

cdef class Batch:
    cdef Call calls[MOST_CALLS]
    cdef int count

    cdef int ring               # the descriptor; see NOT_TRIED
    cdef void* shared           # both queues' heads and tails, and the completions
    cdef size_t shared_size
    cdef Entry* entries
    cdef size_t entries_size
    cdef uint32_t entries_mask
    cdef uint32_t* entries_head
    cdef uint32_t* entries_tail
    cdef Completion* completions
    cdef uint32_t completions_mask
    cdef uint32_t* completions_head
    cdef uint32_t* completions_tail

    # Put down a call, of which there may be MOST_CALLS, each of another socket.
    cdef void add(self, int fd, unsigned char* start, Py_ssize_t size) noexcept
    # Make these calls. What became of them is in `calls` until the next is put down.
    cdef void receive(self) noexcept
    cdef void send(self) noexcept

    cdef void run(self, bint sending) noexcept
    cdef int submit(self, bint sending) noexcept
    cdef void collect(self, int submitted) noexcept
    cdef void set_up(self) noexcept
    cdef void give_up(self) noexcept
