"""The door: may a request come in, and when does it get its seats?

Two limits stand here. Retention bounds the requests held over HTTP at once, whatever they do. Seats bound the
legs on each engine and phase; who finds no seat free waits in line, by arrival, one line per phase.

The lines rest on one fact, true whenever no call into the door is under way: nobody waits who could use a
free seat. So a newcomer who finds a seat passes nobody, and a seat that comes back concerns only its own
engine. To keep it true while callbacks call back, every call first settles who gets what and only then tells
them, one after the other, from the outermost call; a request that leaves between the two gives its seats back
untold.
"""

from __future__ import annotations

from collections import deque

from narwhal.admission.grant import Grant
from narwhal.admission.line import Line, SeatRequest, Stage
from narwhal.admission.readiness import Readiness
from narwhal.fleet.table import FleetTable, Phase
from narwhal.outcomes import Ending
from narwhal.placement.eligible import eligible
from narwhal.placement.place import NoEligibleEngine, place

__all__ = ["Door", "Grant", "SeatRequest"]


class Door:
    """Retention and the two lines for seats, over one fleet table."""

    def __init__(
        self, table: FleetTable, readiness: Readiness, *, retention_limit: int, queue_capacity: int
    ) -> None:
        self.held = 0
        self._table = table
        self._readiness = readiness
        self._retention_limit = retention_limit
        self._queue_capacity = queue_capacity
        self._lines = (Line(), Line())
        self._asked = 0
        self._to_tell: deque[SeatRequest] = deque()
        self._telling = False

    def waiting(self, phase: Phase) -> int:
        """How many wait for a seat of `phase`."""
        return len(self._lines[phase])

    def hold(self) -> None:
        """Count one more request as held. Raises Ending if the router is not ready or holds its limit."""
        if blocker := self._readiness.blocker:
            state, reason = blocker
            raise Ending(state.value, f"the router takes no new requests ({state}): {reason}")
        if self.held >= self._retention_limit:
            raise Ending(
                "retention_full",
                f"{self.held} requests are held already "
                f"(serving.retention_limit is {self._retention_limit}); try again in a second",
            )
        self.held += 1

    def let_go(self) -> None:
        """Count one request less as held. Raises RuntimeError if none is: it was let go twice."""
        if self.held <= 0:
            raise RuntimeError("no request is held that could be let go")
        self.held -= 1

    def ask(self, request: SeatRequest) -> Grant | None:
        """Ask for a seat: its grant at once, or None if it waits, to be told later.

        Raises Ending `backend_unavailable` if no engine could ever give it one, and `queue_full` if it would
        have to wait and may not. A request that had a leg already may always wait: the retention limit bounds
        those.
        """
        if request.stage is not Stage.NEW:
            raise RuntimeError("this request for a seat was asked before")
        line = self._lines[request.phase]
        engine = None
        # A waiter who would take any engine has found all of them full; so would this one.
        if request.avoid or not line.any_plain:
            try:
                engine = place(self._table, request.phase, request.avoid)
            except NoEligibleEngine as none:
                raise Ending("backend_unavailable", f"{none}; try again in a second") from None
        if engine is not None:
            request.stage = Stage.DONE
            return Grant(self._table, engine, self._freed)
        if not request.started and len(line) >= self._queue_capacity:
            raise Ending(
                "queue_full",
                f"{len(line)} requests wait for a seat already (serving.queue_capacity is "
                f"{self._queue_capacity}); try again in a second",
            )
        self._asked += 1
        request.order = self._asked
        request.stage = Stage.WAITING
        line.add(request)
        return None

    def leave(self, request: SeatRequest) -> None:
        """Stop waiting, to be told nothing any more. Nothing happens if it was told, or left, already."""
        stage, grant = request.stage, request.grant
        if stage is Stage.NEW:
            return
        request.stage, request.grant = Stage.DONE, None
        if stage is Stage.WAITING:
            self._lines[request.phase].remove(request)
        elif grant is not None:
            grant.release_all()

    def fleet_changed(self) -> None:
        """Availability or limits moved: grant what can be now, end the wait of who has no engine left."""
        for phase in Phase:
            line = self._lines[phase]
            if not len(line):
                continue
            self._end_hopeless(phase, line)
            for request in line.in_order():
                engine = place(self._table, phase, request.avoid)
                if engine is not None:
                    self._settle(line, request, engine)
                elif not request.avoid:
                    break  # every engine is full, for those behind as well
        self._tell()

    def _end_hopeless(self, phase: Phase, line: Line) -> None:
        nobody = not eligible(self._table, phase, frozenset())
        for request in line.in_order() if nobody else line.picky():
            if nobody or not eligible(self._table, phase, request.avoid):
                self._settle(line, request, None)

    def _freed(self, engine: int) -> None:
        line = self._lines[self._table.asked_for(engine)]
        # To one waiter at most: some phase of the engine was full, and one seat of that phase came back.
        if self._table.has_room(engine) and (request := line.first_for(engine)):
            self._settle(line, request, engine)
        self._tell()

    def _settle(self, line: Line, request: SeatRequest, engine: int | None) -> None:
        """Decide for one waiter: its seats on `engine`, or None for no hope of any. It is told later."""
        line.remove(request)
        request.stage = Stage.DECIDED
        if engine is not None:
            request.grant = Grant(self._table, engine, self._freed)
        self._to_tell.append(request)

    def _tell(self) -> None:
        if self._telling:
            return  # the call that is telling gets to these as well; a loop, so that no chain grows the stack
        self._telling = True
        try:
            while self._to_tell:
                request = self._to_tell.popleft()
                if request.stage is not Stage.DECIDED:
                    continue
                grant, request.grant = request.grant, None
                request.stage = Stage.DONE
                if grant is None:
                    request.on_unavailable()
                else:
                    request.on_grant(grant)
        finally:
            self._telling = False
