"""Whether what comes next comes so soon that it is better waited for awake.

To sleep and be woken takes up to 50 µs in a virtual machine, half of it the processor's. A lone client that
asks engines nearby, or one who sends a body piece by piece, meets it several times for each request. So where
waits have lately been as short as that, the loop looks for what comes before it sleeps; the first that are
long end it, since a long wait begun awake costs what two short ones save.

What was served last tells what comes next, so each kind has a score of its own. After events of streams that
go on nobody waits awake: what comes meanwhile is dearer one by one than together.
"""

cdef double AWAKE_S = 0.0001    # for how long at most
cdef double WOKEN_S = 0.00005   # how much later than due one who sleeps may be woken
cdef int MOST = 8               # a score: so that many short waits are not remembered for long


cdef class Expectation:
    """What is expected after each kind of service; see Served."""

    cpdef bint is_short(self, int served):
        """Whether the wait after `served` is expected to be short."""
        return self.scores[served] > 0

    cpdef learn(self, int served, double waited_s, bint awake):
        """The wait after `served` took so long, begun `awake` or asleep."""
        cdef int* score = &self.scores[served]
        if served == EVENTS:
            return
        if waited_s < (AWAKE_S if awake else AWAKE_S + WOKEN_S):
            score[0] = min(score[0] + 1, MOST)
        else:
            score[0] = max(score[0] - 2, -MOST)
