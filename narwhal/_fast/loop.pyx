"""The router's event loop: asyncio's own, waiting in a selector that serves plain connections itself.

What asyncio's loop does for a call and for a turn is written in Python. These are the same steps, compiled,
so that a turn which only relays costs its system calls and little more. All else is asyncio's: timers,
signals, subprocesses, TLS, look-ups, what becomes of exceptions. In debug mode these steps are, too.
"""

import asyncio
from contextvars import copy_context
from heapq import heappop

from narwhal._fast.clock cimport now
from narwhal._fast.reactor cimport MOST_S, Reactor
from narwhal._fast.selector cimport Selector

cdef double LONGEST_S = 86400.0
# With more cancelled timers than this, asyncio's own turn may want to clear them out.
cdef int MOST_CANCELLED = 100


cdef class Handle:
    """A call that is due; see asyncio.Handle."""

    cdef object loop, callback, context
    cdef tuple args
    cdef readonly bint _cancelled

    def cancel(self) -> None:
        """Don't make the call."""
        self._cancelled = True
        self.callback = self.args = None

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled

    def get_context(self):
        """The context it is made in."""
        return self.context

    def _run(self) -> None:
        self.run()

    cdef int run(self) except -1:
        try:
            self.context.run(self.callback, *self.args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.loop.call_exception_handler(
                {"message": f"Exception in callback {self.callback!r}", "exception": error, "handle": self}
            )
        return 0


class Loop(asyncio.SelectorEventLoop):
    """An event loop for asyncio.Runner. Raises OSError."""

    def __init__(self):
        self.reactor = Reactor(self, True)  # Reactor.of finds it here
        selector = Selector(self.reactor)
        super().__init__(selector)
        selector.serve_for(self._ready, self._scheduled)

    def close(self):
        """See asyncio."""
        super().close()
        self.reactor = None     # which lives on as long as a connection of its is open

    def call_soon(self, callback, *args, context=None):
        """See asyncio."""
        cdef Handle handle
        if self._debug or self._closed:
            return super().call_soon(callback, *args, context=context)
        handle = Handle.__new__(Handle)
        handle.loop = self
        handle.callback = callback
        handle.args = args
        handle.context = copy_context() if context is None else context
        self._ready.append(handle)
        return handle

    def _run_once(self):
        cdef list timers = self._scheduled
        cdef Selector selector
        cdef Reactor reactor = self.reactor
        cdef double due
        if self._debug or self._timer_cancelled_count > MOST_CANCELLED:
            super()._run_once()
            return
        while timers and timers[0]._cancelled:
            self._timer_cancelled_count -= 1
            heappop(timers)._scheduled = False
        ready = self._ready
        timeout = None
        if ready or self._stopping:
            timeout = 0
        elif timers:
            timeout = min(max(0.0, <double>timers[0]._when - now()), LONGEST_S)
        selector = self._selector
        found = selector.select(timeout)
        if found:
            self._process_events(found)
        if timers:
            due = now() + self._clock_resolution
            while timers and <double>timers[0]._when < due:
                timer = heappop(timers)
                timer._scheduled = False
                ready.append(timer)
        # Only what is due by now: what these calls queue is for the next turn. And not for long, for streams'
        # sake; the rest is due first then.
        due = now() + MOST_S
        reactor.holding = True
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if type(handle) is Handle:
                    if not (<Handle>handle)._cancelled:
                        (<Handle>handle).run()
                elif not handle._cancelled:
                    handle._run()
                if now() >= due:
                    break
        finally:
            reactor.stop_holding()
        handle = None


def run(main):
    """Run a coroutine to its end in a loop of its own, as asyncio.run does; returns its result."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main)
