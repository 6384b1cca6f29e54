# Prices of engines, and the line of waiting requests played forward. See price.pyx.

cdef class Waiter:
    # A request for a seat, as far as prices go. Moments and durations in seconds.
    cdef public double arrived
    cdef public double tokens       # its prompt's
    cdef public double kv           # tokens it will hold in the end
    cdef public double target       # the moment its first token is due; infinite: never
    cdef public double tpot_s       # the token interval it wants
    cdef public double caution      # how many standard deviations are set aside for chance
    cdef public bint refusable      # it is turned away, or passed over, where it would miss its target
    cdef public object avoid        # frozenset: engines it must not run on
    cdef public Py_ssize_t producer  # the engine that prefilled it, or -1
    cdef double tail_s              # from the end of its prefill to its first token, if it is handed over
    # What the board noted last.
    cdef readonly Py_ssize_t engine  # where it will run, or comes closest to its target; -1: nowhere
    cdef readonly double wait_s     # until its prefill begins
    cdef readonly double prefill_s
    cdef readonly double handoff_s  # from there to its first token
    cdef readonly double spread_s   # what is set aside for chance
    cdef readonly bint lost         # it can't meet its target any more

cdef class Board:
    cdef readonly object table, models
    cdef public double wait_factor  # what forecast waits are multiplied by, as learned
    cdef readonly double line_s     # the wait of who came last, at the last forecast
    cdef readonly bint by_share     # the last prices are shares of seats, for want of any model
    cdef readonly bint met          # the last engine picked meets the target
    cdef Py_ssize_t count           # engines that the columns below are of
    cdef object serving             # the table's, as the orders below have it
    # Engines by what they serve, in order of ID.
    cdef long long* prefill_order
    cdef long long* decode_order
    cdef Py_ssize_t prefill_count, decode_count
    cdef double* prices             # one for each of `prefill_order`, or of `decode_order`
    cdef char* outside              # likewise: the price is of work beyond what was measured, or seen
    cdef bint any_outside
    cdef Py_ssize_t priced
    # The table's columns.
    cdef long long* available
    cdef long long* role
    cdef long long* depth_us
    cdef long long* prefill_seats
    cdef long long* prefill_limit
    cdef long long* decode_seats
    cdef long long* decode_limit
    cdef long long* head_us
    cdef long long* head_due_us
    cdef long long* queued_us
    cdef long long* squares_us2
    cdef long long* kv_tokens
    cdef long long* kv_reserved
    cdef long long* kv_capacity
    cdef long long* coming_kv
    # The models'.
    cdef double* prefill_a
    cdef double* prefill_b
    cdef double* prefill_c
    cdef double* prefill_lo
    cdef double* prefill_hi
    cdef double* prefill_edge
    cdef double* prefill_spread
    cdef double* prefill_shift
    cdef double* handoff_shift
    cdef double* n_reach
    cdef double* kv_reach
    cdef double* interval_c
    cdef double* interval_p
    cdef double* interval_q
    cdef double* interval_hi
    cdef double* interval_kv_hi
    cdef double* handoff_b
    cdef double* handoff_c
    cdef double* handoff_hi
    cdef double* handoff_edge
    cdef double* prefill_surcharge
    cdef double* decode_surcharge
    cdef long long* prefill_sure
    cdef long long* interval_sure
    cdef long long* handoff_sure
    # Means over the engines that are known, for those that are not.
    cdef double mean_a, mean_b, mean_c, mean_hi, mean_edge, mean_shift  # prefill
    cdef double mean_p, mean_q, mean_i  # interval
    # The forecast's: engines as a heap by when they are free, with the line worked off.
    cdef double* free_s             # negative: the engine is not in it
    cdef double* variance
    cdef long long* heap
    cdef long long* position        # of each engine in it
    cdef Py_ssize_t heaped
    cdef double played_at           # when the line was played forward, or time passed in it
    cdef double due_at              # when it is to be played again
    cdef readonly Py_ssize_t effort  # requests tried on engines, when it was played last
    cdef Py_ssize_t lost            # in line, of whom nobody has asked
    cdef long long* roomy           # engines with room, while somebody is looked for

    cpdef Py_ssize_t pick_prefill(self, Waiter waiter, double now) except -2
    cpdef Py_ssize_t pick_decode(self, Waiter waiter) except -2
    cpdef bytes take_prices(self)
    cpdef bytes take_outside(self)
    cpdef bint known(self) except -1
    cpdef double left_s(self, Py_ssize_t engine, double now) except -1
    cpdef double prefill_cost_s(self, Py_ssize_t engine, double tokens) except -1
    cpdef bint note(self, Waiter waiter, Py_ssize_t engine, double now) except -1
    cpdef bint unseen(self, Waiter waiter) except -1
    cpdef look_ahead(self, Waiter waiter, double waiting, double output_tokens)
    cdef int refresh(self) except -1
    cdef int bind(self) except -1
    cdef bint survey_prefill(self) noexcept
    cdef bint survey_interval(self) noexcept
    cdef double prefill_cost(self, Py_ssize_t engine, double tokens) noexcept
    cdef double interval(self, Py_ssize_t engine, double running, double kv) noexcept
    cdef double left(self, Py_ssize_t engine, double now) noexcept
    cdef double share(self, Py_ssize_t engine) noexcept
    cdef bint has_room(self, Py_ssize_t engine) noexcept
    cdef double spread(self, Py_ssize_t engine, Waiter waiter, double variance, double cost) noexcept
    cdef double tail(self, Py_ssize_t engine, Waiter waiter) noexcept
    cdef int play(self, list line, double now) except -1
    cdef void pass_time(self, double now) noexcept
    cdef void heapify(self) noexcept
    cdef Py_ssize_t soonest(self, Waiter waiter, double now) noexcept
    cdef void sift(self, Py_ssize_t at) noexcept
    cdef void settle(self, Waiter waiter, double now) noexcept
    cdef bint try_on(self, Waiter waiter, Py_ssize_t engine, double now) noexcept
    cdef bint misses(self, Waiter waiter, Py_ssize_t engine, double now) noexcept
    cdef double resident_variance(self, Py_ssize_t engine) noexcept
    cdef double handoff(self, Waiter waiter) noexcept
    cdef double seat_wait(self, double waiting, double output_tokens) noexcept
    cdef double staying(self, Py_ssize_t engine, double output_tokens) noexcept
    cdef void try_elsewhere(self, Waiter waiter, double now) noexcept
