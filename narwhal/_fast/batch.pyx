"""Many receives, or many sends, for one system call.

To enter and leave the kernel is a twentieth of what a small receive or send costs. Linux's io_uring takes a
list of such calls at once: each is made there and then, in the order of the list, exactly as recv or send
would with MSG_DONTWAIT, and none is ever left waiting. Nothing else of io_uring is used; what is ready is
epoll's to say.

Where io_uring is not to be had (Linux before 6.1, kernel.io_uring_disabled, a container's filter of system
calls), or goes wrong, the calls are made one by one. The same when there are few: then a list costs more.

The layout of what is shared with the kernel is from io_uring_setup(2) and io_uring_enter(2).
"""

from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport uint32_t
from libc.string cimport memset


cdef extern from *:
    """
    #include <sys/mman.h>
    #include <sys/socket.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    #ifndef __NR_io_uring_setup
    #define __NR_io_uring_setup 425
    #define __NR_io_uring_enter 426
    #endif
    /* Older headers lack some of linux/io_uring.h; these are its numbers. */
    enum {
        NARWHAL_SEND = 26, NARWHAL_RECV = 27,
        NARWHAL_GET_EVENTS = 1,
        NARWHAL_SINGLE_ISSUER = 1 << 12, NARWHAL_DEFER_TASKRUN = 1 << 13,
        NARWHAL_SINGLE_MMAP = 1,
        NARWHAL_ENTRIES_AT = 0x10000000
    };
    /* struct io_uring_params */
    struct narwhal_ring {
        unsigned sq_entries, cq_entries, flags, cpu, idle, features, wq_fd, reserved[3];
        struct {
            unsigned head, tail, mask, entries, flags, dropped, array, reserved;
            unsigned long long address;
        } sq;
        struct {
            unsigned head, tail, mask, entries, overflow, cqes, flags, reserved;
            unsigned long long address;
        } cq;
    };
    static int narwhal_ring_setup(unsigned entries, struct narwhal_ring *ring) {
        return (int)syscall(__NR_io_uring_setup, entries, ring);
    }
    static int narwhal_ring_enter(int fd, unsigned submit, unsigned wait, unsigned flags) {
        return (int)syscall(__NR_io_uring_enter, fd, submit, wait, flags, (void *)0, (size_t)0);
    }
    #define NARWHAL_LOAD(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
    #define NARWHAL_STORE(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)
    """
    enum:
        SEND "NARWHAL_SEND"
        RECV "NARWHAL_RECV"
        GET_EVENTS "NARWHAL_GET_EVENTS"
        SINGLE_ISSUER "NARWHAL_SINGLE_ISSUER"
        DEFER_TASKRUN "NARWHAL_DEFER_TASKRUN"
        SINGLE_MMAP "NARWHAL_SINGLE_MMAP"
        ENTRIES_AT "NARWHAL_ENTRIES_AT"
    cdef struct Entries:
        unsigned int head, tail, mask, array
    cdef struct Completions:
        unsigned int head, tail, mask, cqes
    cdef struct Parameters "narwhal_ring":
        unsigned int sq_entries, cq_entries, flags, features
        Entries sq
        Completions cq
    int setup_ring "narwhal_ring_setup"(unsigned int entries, Parameters* ring) nogil
    int enter_ring "narwhal_ring_enter"(
        int fd, unsigned int submit, unsigned int wait, unsigned int flags
    ) nogil
    uint32_t load "NARWHAL_LOAD"(uint32_t* p) nogil
    void store "NARWHAL_STORE"(uint32_t* p, uint32_t value) nogil

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t size, int protection, int flags, int fd, long offset)
    int munmap(void* address, size_t size)
    int PROT_READ
    int PROT_WRITE
    int MAP_SHARED
    int MAP_POPULATE
    void* MAP_FAILED

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void* p, size_t n, int flags)
    ssize_t c_send "send"(int fd, const void* p, size_t n, int flags)
    int MSG_NOSIGNAL
    int MSG_DONTWAIT

cdef extern from "<unistd.h>" nogil:
    int close(int fd)

cdef enum:
    FEW = 4             # calls from which a list pays
    NOT_TRIED = -1      # `ring`, before there was use for one ...
    NONE = -2           # ... and if there is none to be had


cdef class Batch:
    def __cinit__(self, bint alone=False):
        """`alone`: make each call by itself, whatever the system has."""
        self.ring = NONE if alone else NOT_TRIED

    def __dealloc__(self):
        self.give_up()

    @property
    def listed(self) -> bool:
        """Whether the system takes lists; known once there was one to be made."""
        return self.ring >= 0

    cdef void add(self, int fd, unsigned char* start, Py_ssize_t size) noexcept:
        cdef Call* call = &self.calls[self.count]
        self.count += 1
        call.fd = fd
        call.start = start
        call.size = size

    cdef void receive(self) noexcept:
        self.run(False)

    cdef void send(self) noexcept:
        self.run(True)

    cdef void run(self, bint sending) noexcept:
        cdef Call* call
        cdef int i = 0
        if self.count >= FEW and self.ring != NONE:
            i = self.submit(sending)
        for i in range(i, self.count):
            call = &self.calls[i]
            if sending:
                call.done = c_send(call.fd, call.start, call.size, MSG_NOSIGNAL | MSG_DONTWAIT)
            else:
                call.done = recv(call.fd, call.start, call.size, MSG_DONTWAIT)
            if call.done < 0:
                call.error = errno
        self.count = 0

    cdef int submit(self, bint sending) noexcept:
        # How many of the calls the kernel has taken and made.
        cdef Entry* entry
        cdef Call* call
        cdef uint32_t first, tail
        cdef int i, entered
        if self.ring == NOT_TRIED:
            self.set_up()
            if self.ring == NONE:
                return 0
        first = tail = self.entries_tail[0]
        for i in range(self.count):
            call = &self.calls[i]
            entry = &self.entries[tail & self.entries_mask]
            entry.opcode = SEND if sending else RECV
            entry.fd = call.fd
            entry.address = <unsigned long long>call.start
            entry.length = <uint32_t>call.size
            entry.message_flags = MSG_NOSIGNAL | MSG_DONTWAIT if sending else MSG_DONTWAIT
            entry.user_data = i
            call.done = -1
            call.error = EIO
            tail += 1
        store(self.entries_tail, tail)
        entered = enter_ring(self.ring, self.count, 0, 0)
        if entered == self.count:
            self.collect(entered)
            return entered
        # What the kernel has not taken is taken back. That is not to be expected, so it is not tried again.
        tail = load(self.entries_head)
        store(self.entries_tail, tail)
        entered = <int>(tail - first)
        self.collect(entered)
        self.give_up()
        return entered

    cdef void collect(self, int submitted) noexcept:
        # They are complete when the kernel has taken them; it is only to be asked if it has put that off.
        cdef Completion* completion
        cdef Call* call
        cdef uint32_t head = self.completions_head[0]
        cdef int collected = 0
        while True:
            while head != load(self.completions_tail):
                completion = &self.completions[head & self.completions_mask]
                call = &self.calls[completion.user_data]
                call.done = completion.result
                if completion.result < 0:
                    call.error = -completion.result
                head += 1
                collected += 1
            store(self.completions_head, head)
            if collected == submitted:
                return
            if enter_ring(self.ring, 0, submitted - collected, GET_EVENTS) < 0 and errno != EINTR:
                # What became of the rest is not known: these have failed.
                self.give_up()
                return

    cdef void set_up(self) noexcept:
        cdef Parameters parameters
        cdef uint32_t* order
        cdef uint32_t i
        cdef char* shared
        cdef size_t completions_end
        memset(&parameters, 0, sizeof(parameters))
        parameters.flags = SINGLE_ISSUER | DEFER_TASKRUN
        self.ring = setup_ring(MOST_CALLS, &parameters)
        if self.ring < 0 or not parameters.features & SINGLE_MMAP:
            self.give_up()
            return
        self.shared_size = parameters.sq.array + parameters.sq_entries * sizeof(uint32_t)
        completions_end = parameters.cq.cqes + parameters.cq_entries * sizeof(Completion)
        if completions_end > self.shared_size:
            self.shared_size = completions_end
        self.entries_size = parameters.sq_entries * sizeof(Entry)
        self.shared = mmap(
            NULL, self.shared_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, self.ring, 0
        )
        self.entries = <Entry*>mmap(
            NULL, self.entries_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, self.ring, ENTRIES_AT
        )
        if self.shared == MAP_FAILED or <void*>self.entries == MAP_FAILED:
            self.give_up()
            return
        shared = <char*>self.shared
        self.entries_mask = (<uint32_t*>(shared + parameters.sq.mask))[0]
        self.entries_head = <uint32_t*>(shared + parameters.sq.head)
        self.entries_tail = <uint32_t*>(shared + parameters.sq.tail)
        self.completions = <Completion*>(shared + parameters.cq.cqes)
        self.completions_mask = (<uint32_t*>(shared + parameters.cq.mask))[0]
        self.completions_head = <uint32_t*>(shared + parameters.cq.head)
        self.completions_tail = <uint32_t*>(shared + parameters.cq.tail)
        order = <uint32_t*>(shared + parameters.sq.array)
        for i in range(parameters.sq_entries):
            order[i] = i
        memset(self.entries, 0, self.entries_size)

    cdef void give_up(self) noexcept:
        # Without the ring from now on.
        if self.shared != NULL and self.shared != MAP_FAILED:
            munmap(self.shared, self.shared_size)
        if self.entries != NULL and <void*>self.entries != MAP_FAILED:
            munmap(self.entries, self.entries_size)
        if self.ring >= 0:
            close(self.ring)
        self.shared = NULL
        self.entries = NULL
        self.ring = NONE
