"""Prices of engines, and the line of waiting requests played forward.

A board reads the columns of the fleet's table and of its models, and answers what placement and admission ask
for each request. The steps are those of placement: which engines are eligible, what each would cost, which is
picked. An engine of which nothing is known yet is taken to be as its peers are on average; while nothing is
known of any, the price is the share of its seats that is taken.

The forecast answers when those who wait will have their turn. It hands out the work in the line as engines
will take it: each request, in order, to the engine that is free first, or first of those on which it still
meets its target. So one pass prices every request in the line anew.
"""

from cpython.array cimport array
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.math cimport INFINITY, exp, fabs, fmax, fmin, sqrt

from libc.stdlib cimport free, malloc

from narwhal._fast.price cimport Waiter

cdef enum:
    PREFILL = 0  # RoleCode of the table, and Phase
    DECODE = 1
    BOTH = 2

cdef double MICRO = 1e-6
# A learned curve says what a prompt takes that is up to so many times the longest seen.
cdef double REACH = 2.0
# Of its budget, no request sets aside more than this share for chance.
cdef double MOST_SPREAD = 0.04
# How often the line may be played forward. The unit is to try one request on one engine: about 20 ns. A line
# that costs no more than FREE is played each time. A longer one is left as it was found for ten times as long
# as the rest of it took. After MOST, nobody further back is tried on each engine.
cdef enum:
    FREE = 2_000
    MOST = 50_000
    TOLD = 500  # at once, who are lost: to put a refusal in words takes 10 us
cdef double REST_S = 0.2e-6


# A column's memory. No buffer is taken, since a column that lends its buffer can't grow; so it is bound anew
# when the table has grown.
cdef long long* integers(array column):
    return column.data.as_longlongs


cdef double* doubles(array column):
    return column.data.as_doubles


cdef inline double past(double price, double edge, double shift, double tokens) noexcept:
    # The price past the range; only a learned curve has a shift, and is not followed there.
    cdef double proportional = edge * (tokens + shift)
    return fmax(price, proportional) if shift == 0 else proportional


cdef class Waiter:
    """A request for a seat, as far as prices go."""

    def __init__(self):
        self.target = INFINITY
        self.tpot_s = INFINITY
        self.avoid = frozenset()
        self.producer = -1
        self.engine = -1


cdef class Board:
    """The prices of one fleet."""

    def __init__(self, table, models):
        self.table, self.models = table, models
        self.wait_factor = 1.0
        self.met = True
        self.due_at = -INFINITY
        self.refresh()

    def __dealloc__(self):
        free(self.prices)

    # ---- picking

    cpdef Py_ssize_t pick_prefill(self, Waiter waiter, double now) except -2:
        """The engine with room that would end this prompt first, or -1: there is none, or the request is
        refusable and would miss its target on each."""
        cdef Py_ssize_t i, engine, best = -1
        cdef double price, lowest = INFINITY
        cdef bint known
        self.refresh()
        known = self.survey_prefill()
        self.by_share = not known
        self.priced = self.prefill_count
        self.any_outside = False
        for i in range(self.prefill_count):
            engine = self.prefill_order[i]
            if not self.available[engine] or (waiter.avoid and engine in waiter.avoid):
                self.prices[i], self.outside[i] = INFINITY, False
                continue
            if known:
                price = self.left(engine, now) + self.prefill_cost(engine, waiter.tokens)
                price *= 1 + self.prefill_surcharge[engine]
                self.outside[i] = self.prefill_sure[engine] and not (
                    self.prefill_lo[engine] <= waiter.tokens <= self.prefill_hi[engine]
                )
                self.any_outside |= self.outside[i]
            else:
                price = self.share(engine)
            if not self.has_room(engine):
                self.prices[i] = -price
                continue
            self.prices[i] = price
            if price < lowest and not (known and waiter.refusable and self.misses(waiter, engine, now)):
                best, lowest = engine, price
        self.met = not known or best < 0 or not self.misses(waiter, best, now)
        return best

    cpdef Py_ssize_t pick_decode(self, Waiter waiter) except -2:
        """The engine with a seat whose token interval will be shortest with this request; -1: all are full.

        One without room for its KV cache only if all lack it, the producer only if no other has a seat.
        """
        cdef Py_ssize_t i, engine, best = -1
        cdef double price, running, kv, lowest = INFINITY
        cdef int resort, least = 4
        cdef bint known
        self.refresh()
        known = self.survey_interval()
        self.by_share = not known
        self.priced = self.decode_count
        self.any_outside = False
        self.met = True
        for i in range(self.decode_count):
            engine = self.decode_order[i]
            if not self.available[engine] or (waiter.avoid and engine in waiter.avoid):
                self.prices[i], self.outside[i] = INFINITY, False
                continue
            if known:
                running, kv = self.decode_seats[engine] + 1, self.kv_tokens[engine] + waiter.tokens
                price = self.interval(engine, running, kv)
                price *= 1 + self.decode_surcharge[engine]
                self.outside[i] = self.interval_sure[engine] and (
                    running > self.interval_hi[engine] or kv > self.interval_kv_hi[engine]
                )
                self.any_outside |= self.outside[i]
            else:
                price = self.share(engine)
            if not self.has_room(engine):
                self.prices[i] = -price
                continue
            self.prices[i] = price
            resort = 2 if engine == waiter.producer else 0
            if self.kv_reserved[engine] + waiter.kv > self.kv_capacity[engine]:
                resort += 1
            if resort < least or (resort == least and price < lowest):
                best, lowest, least = engine, price, resort
        if best >= 0:
            self.met = not (least & 1) and (not known or lowest <= waiter.tpot_s)
        return best

    cpdef bytes take_prices(self):
        """The prices of the last pick, in the order of the table's `serving`: doubles, as their bytes.

        Seconds, or if `by_share` shares. Negative: the engine had no room. Infinite: it was not eligible.
        """
        return PyBytes_FromStringAndSize(<char*>self.prices, self.priced * sizeof(double))

    cpdef bytes take_outside(self):
        """A byte for each of the prices: 1 where it is extrapolated, of work beyond what was measured of the
        engine, or seen. No bytes: nowhere."""
        return PyBytes_FromStringAndSize(self.outside, self.priced) if self.any_outside else b""

    # ---- single figures

    cpdef bint known(self) except -1:
        """Whether anything is known of how long prompts take."""
        self.refresh()
        return self.survey_prefill()

    cpdef double left_s(self, Py_ssize_t engine, double now) except -1:
        """Seconds left of the prefill work on an engine."""
        self.refresh()
        return self.left(engine, now)

    cpdef double prefill_cost_s(self, Py_ssize_t engine, double tokens) except -1:
        """Seconds that a prompt will take on an engine, alone; 0 while nothing is known of any."""
        self.refresh()
        return self.prefill_cost(engine, tokens) if self.survey_prefill() else 0.0

    cpdef bint note(self, Waiter waiter, Py_ssize_t engine, double now) except -1:
        """Note on a request what it gets on this engine if it is sent there now; whether that is known."""
        cdef bint known
        self.refresh()
        known = self.survey_prefill()
        waiter.engine = engine
        waiter.wait_s = self.left(engine, now)
        waiter.prefill_s = self.prefill_cost(engine, waiter.tokens)
        waiter.handoff_s = self.tail(engine, waiter)
        waiter.spread_s = self.spread(engine, waiter, self.resident_variance(engine), waiter.prefill_s)
        return known

    cpdef bint unseen(self, Waiter waiter) except -1:
        """Whether this prompt is so long that no engine's time for it is known: none has seen one near it."""
        cdef Py_ssize_t i, engine
        cdef double reach
        cdef bint unseen = False
        self.refresh()
        for i in range(self.prefill_count):
            engine = self.prefill_order[i]
            if not self.available[engine] or not self.prefill_sure[engine]:
                continue
            reach = REACH * self.prefill_hi[engine] + self.prefill_shift[engine]
            if self.prefill_shift[engine] == 0 or waiter.tokens <= reach:
                return False
            unseen = True
        return unseen

    def idle_since(self, Waiter waiter not None, array shown not None, double moment):
        """An engine that could prefill the request, is idle, and by the column `shown` has shown nothing
        since a moment; -1 if there is none."""
        cdef Py_ssize_t i, engine
        self.refresh()
        for i in range(self.prefill_count):
            engine = self.prefill_order[i]
            if (
                self.available[engine]
                and not self.prefill_seats[engine]
                and not self.decode_seats[engine]
                and shown.data.as_doubles[engine] < moment
                and not (waiter.avoid and engine in waiter.avoid)
            ):
                return engine
        return -1

    def alone_s(self, Waiter waiter not None):
        """Seconds to the request's first token if it had the fleet to itself, what is set aside for chance
        included; on `engine`, which is noted on it. 0 if there is no engine, or nothing is known."""
        cdef Py_ssize_t i, engine
        cdef double total, least = INFINITY, handoff
        self.refresh()
        handoff = self.handoff(waiter)
        waiter.engine = -1
        if not self.survey_prefill():
            return 0.0
        for i in range(self.prefill_count):
            engine = self.prefill_order[i]
            if not self.available[engine] or (waiter.avoid and engine in waiter.avoid):
                continue
            total = self.prefill_cost(engine, waiter.tokens)
            total += self.spread(engine, waiter, 0.0, total)
            if self.role[engine] != BOTH:
                total += handoff
            if total < least:
                least, waiter.engine = total, engine
        return least if waiter.engine >= 0 else 0.0

    # ---- what comes after prefill

    cpdef look_ahead(self, Waiter waiter, double waiting, double output_tokens):
        """Note how long the request will take from the end of its prefill to its first token.

        `waiting` is how many stand in line, `output_tokens` how long answers are on average.
        """
        self.refresh()
        waiter.tail_s = self.handoff(waiter) + self.seat_wait(waiting, output_tokens)

    def decode_outlook(self, Waiter waiter not None, double waiting, double waiting_kv, double output_tokens):
        """For when the request gets to decode: the shortest token interval it will find, and the most KV
        tokens that will be free on one engine. Infinite seconds: nothing is known of any engine's.

        `waiting_kv` is what those in line will hold. Returns (seconds, engine, tokens, engine).
        """
        cdef Py_ssize_t e, fastest = -1, roomiest = -1
        cdef double stay, share, running, price, vacant, coming = waiting, coming_kv = waiting_kv
        cdef double total = 0, shortest = INFINITY, most = -INFINITY
        cdef bint known
        self.refresh()
        known = self.survey_interval()
        for e in range(self.count):
            if self.role[e] == PREFILL:
                coming += self.prefill_seats[e]
                coming_kv += self.coming_kv[e]
            elif self.role[e] != BOTH and self.available[e]:
                total += self.decode_seats[e] + 1
        for e in range(self.count):
            if not self.available[e] or self.role[e] == PREFILL or (waiter.avoid and e in waiter.avoid):
                continue
            # Those to come will spread as those that run have; a `both` engine has them already.
            share = 0 if self.role[e] == BOTH else (self.decode_seats[e] + 1) / total
            stay = self.staying(e, output_tokens)
            if known:
                running = stay * self.decode_seats[e] + share * coming + 1
                price = self.interval(
                    e, running, stay * self.kv_tokens[e] + share * coming_kv + waiter.tokens
                )
                if price < shortest:
                    shortest, fastest = price, e
            vacant = self.kv_capacity[e] - stay * self.kv_reserved[e] - share * coming_kv
            if vacant > most:
                most, roomiest = vacant, e
        return shortest, fastest, most, roomiest

    cdef double handoff(self, Waiter waiter) noexcept:
        # To the engine that would be picked for decode now.
        cdef Py_ssize_t i, engine, best = -1
        cdef double price, lowest = INFINITY
        cdef bint known = self.survey_interval()
        for i in range(self.decode_count):
            engine = self.decode_order[i]
            if not self.available[engine] or not self.handoff_sure[engine]:
                continue
            if known:
                price = self.interval(
                    engine, self.decode_seats[engine] + 1, self.kv_tokens[engine] + waiter.tokens
                )
            else:
                price = self.share(engine)
            if price < lowest:
                best, lowest = engine, price
        if best < 0:
            return 0.0
        price = self.handoff_b[best] * waiter.tokens + self.handoff_c[best]
        if waiter.tokens > self.handoff_hi[best]:
            price = past(price, self.handoff_edge[best], self.handoff_shift[best], waiter.tokens)
        return price

    cdef double seat_wait(self, double waiting, double output_tokens) noexcept:
        # The wait for a decode seat, if there will be too few: seats come back as answers end.
        cdef Py_ssize_t i, engine
        cdef double running = 0, limit = 0, leaving = 0, coming = waiting, interval
        if not self.survey_interval():
            return 0.0
        for i in range(self.prefill_count):
            engine = self.prefill_order[i]
            if self.role[engine] == PREFILL:
                coming += self.prefill_seats[engine]
        for i in range(self.decode_count):
            engine = self.decode_order[i]
            if not self.available[engine]:
                continue
            running += self.staying(engine, output_tokens) * self.decode_seats[engine]
            limit += self.decode_limit[engine]
            interval = self.interval(engine, self.decode_seats[engine], self.kv_tokens[engine])
            if interval > 0:
                leaving += self.decode_seats[engine] / (output_tokens * interval)
        if running + coming < limit or leaving <= 0:
            return 0.0
        return (running + coming + 1 - limit) / leaving

    cdef double staying(self, Py_ssize_t engine, double output_tokens) noexcept:
        # The share of what decodes on an engine now that still will when the line has been worked off.
        cdef double interval
        if not self.interval_sure[engine]:
            return 1.0
        interval = self.interval(engine, self.decode_seats[engine], self.kv_tokens[engine])
        return exp(-self.line_s / (output_tokens * interval)) if interval > 0 else 1.0

    # ---- the line

    def forecast(self, list line not None, Waiter newcomer, double now):
        """Play the line forward, and note on each request when it gets its turn, and where. A newcomer stands
        last. `line` has tuples whose third member is the waiter, in order. Returns how many are lost that
        `take_lost` has not told of.

        A long line is not played each time. In between it is taken to go on as it was found, and who has
        joined it since to stand last.
        """
        cdef Py_ssize_t effort
        self.refresh()
        if not self.survey_prefill():
            return 0
        if now >= self.due_at or now < self.played_at:
            self.play(line, now)
        else:
            self.pass_time(now)
        self.line_s = self.wait_factor * self.free_s[self.heap[0]] if self.heaped else 0.0
        if newcomer is None:
            return self.lost
        effort, self.effort = self.effort, 0  # whatever the line took, a newcomer is tried on all engines
        self.settle(newcomer, now)
        self.effort = effort
        return self.lost + newcomer.lost

    def take_lost(self, list line not None):
        """Those in line whom the forecast found lost, 500 at the most: they are to leave it. The others are
        told of when they are asked for again."""
        cdef list found = []
        if not self.lost:
            return found
        for entry in line:
            if (<Waiter>(<tuple>entry)[2]).lost:
                found.append((<tuple>entry)[2])
                if len(found) == TOLD:
                    self.lost -= TOLD
                    return found
        self.lost = 0
        return found

    def next_to_seat(self, list line not None, Py_ssize_t start, int phase, Py_ssize_t only, double now):
        """The first in a phase's line, from a position on, for whom some engine with room would do; if `only`
        is not -1, that engine. The position; -1: there is none, or it would take too long to find."""
        cdef Py_ssize_t i, at, engine, count, roomy = 0, tried = 0
        cdef long long* order
        cdef Waiter waiter
        cdef bint judged
        self.refresh()
        judged = phase == PREFILL and self.survey_prefill()
        order = self.prefill_order if phase == PREFILL else self.decode_order
        count = self.prefill_count if phase == PREFILL else self.decode_count
        for i in range(count):
            engine = order[i]
            if (only < 0 or only == engine) and self.available[engine] and self.has_room(engine):
                self.roomy[roomy] = engine
                roomy += 1
        if not roomy:
            return -1
        for at in range(start, len(line)):
            waiter = <Waiter>(<tuple>line[at])[2]
            for i in range(roomy):
                engine = self.roomy[i]
                if waiter.avoid and engine in waiter.avoid:
                    continue
                if not (judged and waiter.refusable and self.misses(waiter, engine, now)):
                    return at
            tried += roomy
            if tried > MOST:
                break
        return -1

    cdef int play(self, list line, double now) except -1:
        cdef Py_ssize_t i, engine
        cdef Waiter waiter
        self.effort = self.lost = 0
        for i in range(self.prefill_count):
            engine = self.prefill_order[i]
            self.free_s[engine] = -1
            if self.available[engine]:
                self.free_s[engine] = self.left(engine, now)
                self.variance[engine] = self.resident_variance(engine)
        self.heapify()
        for entry in line:
            waiter = <Waiter>(<tuple>entry)[2]
            self.settle(waiter, now)
            self.lost += waiter.lost
        self.played_at = now
        self.due_at = now + REST_S * (self.effort - FREE) if self.effort > FREE else -INFINITY
        return 0

    cdef void pass_time(self, double now) noexcept:
        # The engines have worked on; some may have left the fleet, or come.
        cdef Py_ssize_t i, engine
        cdef double passed = now - self.played_at
        for i in range(self.prefill_count):
            engine = self.prefill_order[i]
            if not self.available[engine]:
                self.free_s[engine] = -1
            elif self.free_s[engine] < 0:
                self.free_s[engine] = self.left(engine, now)
                self.variance[engine] = self.resident_variance(engine)
            else:
                self.free_s[engine] = fmax(0.0, self.free_s[engine] - passed)
        self.played_at = now
        self.heapify()

    cdef void heapify(self) noexcept:
        cdef Py_ssize_t i, engine
        self.heaped = 0
        for i in range(self.prefill_count):
            engine = self.prefill_order[i]
            if self.available[engine]:
                self.heap[self.heaped] = engine
                self.heaped += 1
        for i in range(self.heaped // 2 - 1, -1, -1):
            self.sift(i)
        for i in range(self.heaped):
            self.position[self.heap[i]] = i

    cdef void settle(self, Waiter waiter, double now) noexcept:
        cdef Py_ssize_t at = -1, engine, before = waiter.engine
        waiter.lost = False
        waiter.engine = -1
        if self.heaped == 0:
            return
        if not waiter.avoid and self.try_on(waiter, self.heap[0], now):
            at = 0
        elif self.effort < MOST:
            at = self.soonest(waiter, now)
            if at < 0:
                waiter.lost = waiter.refusable
                self.try_elsewhere(waiter, now)
                return
            self.try_on(waiter, self.heap[at], now)
        else:
            # So far back, it goes where it was to go before, or at least stands for its work.
            if before >= 0 and self.available[before] and not (waiter.avoid and before in waiter.avoid):
                at = self.position[before]
            else:
                at = 0
            self.try_on(waiter, self.heap[at], now)
        engine = self.heap[at]
        self.free_s[engine] += waiter.prefill_s
        self.variance[engine] += (self.prefill_spread[engine] * waiter.prefill_s) ** 2
        self.sift(at)

    cdef Py_ssize_t soonest(self, Waiter waiter, double now) noexcept:
        # Where in the heap stands the engine that is free first, of those that would do; -1: none would.
        cdef Py_ssize_t i, at = -1, engine
        cdef double least = INFINITY
        for i in range(self.heaped):
            engine = self.heap[i]
            if waiter.avoid and engine in waiter.avoid:
                continue
            if self.free_s[engine] < least and self.try_on(waiter, engine, now):
                at, least = i, self.free_s[engine]
        return at

    cdef bint try_on(self, Waiter waiter, Py_ssize_t engine, double now) noexcept:
        # Note what the waiter would get on this engine; whether it would do.
        self.effort += 1
        waiter.engine = engine
        waiter.wait_s = self.wait_factor * self.free_s[engine]
        waiter.prefill_s = self.prefill_cost(engine, waiter.tokens)
        waiter.handoff_s = self.tail(engine, waiter)
        waiter.spread_s = self.spread(engine, waiter, self.variance[engine], waiter.prefill_s)
        return not waiter.refusable or (
            now + waiter.wait_s + waiter.prefill_s + waiter.handoff_s + waiter.spread_s <= waiter.target
        )

    cdef void try_elsewhere(self, Waiter waiter, double now) noexcept:
        # No engine will do: note the one that comes closest.
        cdef Py_ssize_t i, engine, closest = -1
        cdef double ends, soonest = INFINITY
        self.effort += self.heaped
        for i in range(self.heaped):
            engine = self.heap[i]
            ends = self.free_s[engine] + self.prefill_cost(engine, waiter.tokens) + self.tail(engine, waiter)
            if ends < soonest and not (waiter.avoid and engine in waiter.avoid):
                soonest, closest = ends, engine
        if closest >= 0:
            self.try_on(waiter, closest, now)
        else:
            waiter.engine = -1

    cdef void sift(self, Py_ssize_t at) noexcept:
        cdef Py_ssize_t engine = self.heap[at], child
        while 2 * at + 1 < self.heaped:
            child = 2 * at + 1
            if child + 1 < self.heaped and self.free_s[self.heap[child + 1]] < self.free_s[self.heap[child]]:
                child += 1
            if self.free_s[engine] <= self.free_s[self.heap[child]]:
                break
            self.heap[at] = self.heap[child]
            self.position[self.heap[at]] = at
            at = child
        self.heap[at] = engine
        self.position[engine] = at

    # ---- arithmetic

    cdef int refresh(self) except -1:
        # The table's order is another object when a role has changed, or when there are more engines; then
        # the columns have moved, too.
        cdef Py_ssize_t engine
        serving = self.table.serving
        if serving is self.serving:
            return 0
        if self.count != len(self.table):
            self.bind()
        self.prefill_count = self.decode_count = 0
        for engine in serving[0]:
            self.prefill_order[self.prefill_count] = engine
            self.prefill_count += 1
        for engine in serving[1]:
            self.decode_order[self.decode_count] = engine
            self.decode_count += 1
        self.serving = serving
        self.due_at = -INFINITY
        return 0

    cdef int bind(self) except -1:
        # The columns hold no more engines than the table has, and no fewer: models are added first.
        cdef Py_ssize_t count = len(self.table)
        table, models = self.table, self.models
        if len(models) != count:
            raise RuntimeError(f"there are {len(models)} models for {count} engines")
        free(self.prices)
        self.prices = NULL
        self.prices = <double*>malloc(max(1, count) * (8 * sizeof(double) + 1))
        if self.prices == NULL:
            raise MemoryError
        self.free_s = self.prices + count
        self.variance = self.free_s + count
        self.heap = <long long*>(self.variance + count)
        self.position = self.heap + count
        self.roomy = self.position + count
        self.prefill_order = self.roomy + count
        self.decode_order = self.prefill_order + count
        self.outside = <char*>(self.decode_order + count)
        self.available, self.role = integers(table.available), integers(table.role)
        self.depth_us = integers(table.depth_us)
        self.prefill_seats, self.prefill_limit = integers(table.prefill_seats), integers(table.prefill_limit)
        self.decode_seats, self.decode_limit = integers(table.decode_seats), integers(table.decode_limit)
        self.head_us, self.head_due_us = integers(table.head_us), integers(table.head_due_us)
        self.queued_us, self.squares_us2 = integers(table.queued_us), integers(table.squares_us2)
        self.kv_tokens, self.kv_reserved = integers(table.kv_tokens), integers(table.kv_reserved)
        self.kv_capacity, self.coming_kv = integers(table.kv_capacity), integers(table.coming_kv)
        self.prefill_a, self.prefill_b = doubles(models.prefill_a), doubles(models.prefill_b)
        self.prefill_c, self.prefill_lo = doubles(models.prefill_c), doubles(models.prefill_lo)
        self.prefill_hi, self.prefill_edge = doubles(models.prefill_hi), doubles(models.prefill_edge)
        self.prefill_shift, self.handoff_shift = doubles(models.prefill_shift), doubles(models.handoff_shift)
        self.n_reach, self.kv_reach = doubles(models.interval_n_reach), doubles(models.interval_kv_reach)
        self.prefill_spread = doubles(models.prefill_spread)
        self.interval_c, self.interval_p = doubles(models.interval_c), doubles(models.interval_p)
        self.interval_q, self.interval_hi = doubles(models.interval_q), doubles(models.interval_hi)
        self.interval_kv_hi = doubles(models.interval_kv_hi)
        self.handoff_b, self.handoff_c = doubles(models.handoff_b), doubles(models.handoff_c)
        self.handoff_hi, self.handoff_edge = doubles(models.handoff_hi), doubles(models.handoff_edge)
        self.prefill_surcharge = doubles(models.surcharge[0])
        self.decode_surcharge = doubles(models.surcharge[1])
        self.prefill_sure, self.interval_sure = integers(models.prefill_sure), integers(models.interval_sure)
        self.handoff_sure = integers(models.handoff_sure)
        self.count = count
        return 0

    cdef bint survey_prefill(self) noexcept:
        # Whether anything is known; what is taken for engines of which nothing is.
        cdef Py_ssize_t i, engine, known = 0
        self.mean_a = self.mean_b = self.mean_c = self.mean_hi = self.mean_edge = self.mean_shift = 0
        for i in range(self.prefill_count):
            engine = self.prefill_order[i]
            if self.prefill_sure[engine]:
                known += 1
                self.mean_a += self.prefill_a[engine]
                self.mean_b += self.prefill_b[engine]
                self.mean_c += self.prefill_c[engine]
                self.mean_hi = fmax(self.mean_hi, self.prefill_hi[engine])
                self.mean_edge += self.prefill_edge[engine]
                self.mean_shift += self.prefill_shift[engine]
        if known:
            self.mean_a /= known
            self.mean_b /= known
            self.mean_c /= known
            self.mean_edge /= known
            self.mean_shift /= known
        return known > 0

    cdef bint survey_interval(self) noexcept:
        cdef Py_ssize_t engine, known = 0
        self.mean_p = self.mean_q = self.mean_i = 0
        for engine in range(self.count):
            if self.interval_sure[engine]:
                known += 1
                self.mean_p += self.interval_p[engine]
                self.mean_q += self.interval_q[engine]
                self.mean_i += self.interval_c[engine]
        if known:
            self.mean_p /= known
            self.mean_q /= known
            self.mean_i /= known
        return known > 0

    cdef double prefill_cost(self, Py_ssize_t engine, double tokens) noexcept:
        cdef double cost
        if not self.prefill_sure[engine]:
            if tokens > self.mean_hi:
                return self.mean_edge * (tokens + self.mean_shift)
            return (self.mean_a * tokens + self.mean_b) * tokens + self.mean_c
        cost = (self.prefill_a[engine] * tokens + self.prefill_b[engine]) * tokens + self.prefill_c[engine]
        if tokens > self.prefill_hi[engine]:
            return past(cost, self.prefill_edge[engine], self.prefill_shift[engine], tokens)
        return cost

    cdef double interval(self, Py_ssize_t engine, double running, double kv) noexcept:
        if not self.interval_sure[engine]:
            return self.mean_i + self.mean_p * running + self.mean_q * kv
        running, kv = fmin(running, self.n_reach[engine]), fmin(kv, self.kv_reach[engine])
        return self.interval_c[engine] + self.interval_p[engine] * running + self.interval_q[engine] * kv

    cdef double left(self, Py_ssize_t engine, double now) noexcept:
        # A leg that is late is expected to take as long again as it is late: the longer it has not come, the
        # less is known of when it will.
        cdef double head = 0
        if self.head_us[engine]:
            head = fabs(self.head_due_us[engine] * MICRO - now)
        return head + self.queued_us[engine] * MICRO

    cdef bint misses(self, Waiter waiter, Py_ssize_t engine, double now) noexcept:
        cdef double cost = self.prefill_cost(engine, waiter.tokens)
        return (
            now + self.left(engine, now) + cost + self.tail(engine, waiter)
            + self.spread(engine, waiter, self.resident_variance(engine), cost) > waiter.target
        )

    cdef double share(self, Py_ssize_t engine) noexcept:
        cdef double prefill = <double>self.prefill_seats[engine] / self.prefill_limit[engine]
        cdef double decode = <double>self.decode_seats[engine] / self.decode_limit[engine]
        if self.role[engine] == BOTH:
            return fmax(prefill, decode)
        return prefill if self.role[engine] == PREFILL else decode

    cdef bint has_room(self, Py_ssize_t engine) noexcept:
        # As the table has it, but for availability.
        if self.role[engine] == DECODE:
            return self.decode_seats[engine] < self.decode_limit[engine]
        return (
            self.prefill_seats[engine] < self.prefill_limit[engine]
            and (self.role[engine] != BOTH or self.decode_seats[engine] < self.decode_limit[engine])
            and self.head_us[engine] + self.queued_us[engine] < self.depth_us[0]
        )

    cdef double resident_variance(self, Py_ssize_t engine) noexcept:
        return self.squares_us2[engine] * MICRO * MICRO * self.prefill_spread[engine] ** 2

    cdef double spread(self, Py_ssize_t engine, Waiter waiter, double variance, double cost) noexcept:
        return fmin(
            waiter.caution * sqrt(variance + (self.prefill_spread[engine] * cost) ** 2),
            MOST_SPREAD * (waiter.target - waiter.arrived),
        )

    cdef double tail(self, Py_ssize_t engine, Waiter waiter) noexcept:
        return 0.0 if self.role[engine] == BOTH else waiter.tail_s
