# Whether the event loop is to wait awake. See awake.pyx.

# What was served last, as far as it tells how soon something else will come.
cdef enum Served:
    EVENTS      # of streams that go on
    ANSWERS     # one was complete
    REPLIES
    REQUESTS
    KINDS

cdef double AWAKE_S

cdef class Expectation:
    cdef int scores[KINDS]

    cpdef bint is_short(self, int served)
    cpdef learn(self, int served, double waited_s, bint awake)
