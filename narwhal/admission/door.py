"""The door: may a request come in, and when does it get its seats?

Three things stand here. Retention bounds the requests held over HTTP at once, whatever they do. Prediction
turns away what would miss its targets, when it comes and while it waits. Seats bound the legs on each engine
and phase; who finds no room waits in line, by arrival, one line per phase.

The lines rest on one fact, true whenever no call into the door is under way: nobody waits who could use a
free seat. (A refusable request has no use for one on an engine too slow to meet its target.) So a newcomer
who finds a seat passes nobody, and a seat that comes back concerns only its own engine. To keep it true while
callbacks call back, every call first settles who gets what and only then tells them, one after the other,
from the outermost call; a request that leaves between the two gives its seats back untold.
"""

from __future__ import annotations

from collections import deque

from narwhal.admission.grant import Grant
from narwhal.admission.line import Line, SeatRequest, Stage
from narwhal.admission.predict import Predictor
from narwhal.admission.readiness import Readiness
from narwhal.fleet.table import FleetTable, Phase
from narwhal.fleet.work import Work
from narwhal.outcomes import Ending
from narwhal.placement.eligible import eligible
from narwhal.placement.place import NoEligibleEngine, Placement

# Members of enums by names of their own: to look one up in its class is slow.
_PREFILL = Phase.PREFILL
_NEW, _WAITING, _DECIDED, _DONE = Stage


class Door:
    """Retention, prediction and the two lines for seats, over one fleet table."""

    def __init__(
        self,
        table: FleetTable,
        readiness: Readiness,
        placement: Placement,
        work: Work,
        *,
        retention_limit: int,
        queue_capacity: int,
    ) -> None:
        self.held = 0
        self._table = table
        self._readiness = readiness
        self._placement = placement
        self._work = work
        self.predictor = Predictor(table, placement.board, work)
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

    def ask(self, request: SeatRequest, now: float) -> Grant | None:
        """Ask for a seat: its grant at once, or None if it waits, to be told later.

        Raises Ending: `backend_unavailable` if no engine could ever give it one; a refusal if it would miss a
        target; `queue_full` if it would have to wait and may not. A request that had a leg already may always
        wait: the retention limit bounds those.
        """
        if request.stage is not _NEW:
            raise RuntimeError("this request for a seat was asked before")
        line = self._lines[request.phase]
        if request.phase is _PREFILL:
            self.predictor.expect(request, line, now)
        try:
            engine = self._placement.place(request, request.phase, now)
        except NoEligibleEngine as none:
            raise Ending("backend_unavailable", f"{none}; try again in a second") from None
        if request.phase is _PREFILL:
            engine = self.predictor.judge(request, line, engine, now)
        if engine is not None:
            request.stage = _DONE
            return self._grant(request, engine, now)
        if not request.started and len(line) >= self._queue_capacity:
            raise Ending(
                "queue_full",
                f"{len(line)} requests wait for a seat already (serving.queue_capacity is "
                f"{self._queue_capacity}); try again in a second",
            )
        self._asked += 1
        request.order = self._asked
        request.stage = _WAITING
        line.add(request)
        return None

    def leave(self, request: SeatRequest, now: float) -> None:
        """Stop waiting, to be told nothing any more. Nothing happens if it was told, or left, already."""
        stage, decided = request.stage, request.decided
        if stage is _NEW:
            return
        request.stage, request.decided = _DONE, None
        if stage is _WAITING:
            self._lines[request.phase].remove(request)
        elif isinstance(decided, Grant):
            decided.release_all(now)

    def look_again(self, now: float) -> None:
        """Availability or limits moved, or time has passed: grant what can be now, and end the waits that are
        without hope."""
        for phase in Phase:
            line = self._lines[phase]
            if not len(line):
                continue
            self._end_hopeless(phase, line)
            self._seat_those_who_can(phase, line, now)
        self._turn_away(now)
        self._tell()

    def _end_hopeless(self, phase: Phase, line: Line) -> None:
        nobody = not eligible(self._table, phase, frozenset())
        for request in line.in_order() if nobody else line.picky():
            if nobody or not eligible(self._table, phase, request.avoid):
                text = f"every engine for {phase.name.lower()} left the fleet; try again in a second"
                self._settle(line, request, Ending("backend_unavailable", text))

    def _turn_away(self, now: float) -> None:
        # What those who wait for prefill wait for has changed: some may not make it any more.
        line = self._lines[_PREFILL]
        for request in self.predictor.lost(line, now):
            self._settle(line, request, self.predictor.refusal(request, now))

    def _freed(self, engine: int, now: float) -> None:
        phase = self._table.asked_for(engine)
        line = self._lines[phase]
        if len(line):
            self._seat_those_who_can(phase, line, now, engine)
            if phase is _PREFILL:
                self._turn_away(now)
        self._tell()

    def _seat_those_who_can(self, phase: Phase, line: Line, now: float, only: int = -1) -> None:
        """Seat whoever waits and has a use for the room there is, or for that on the engine `only`."""
        board, at = self._placement.board, 0
        while (at := board.next_to_seat(line.entries, at, phase, only, now)) >= 0:
            if not self._seat(line, line.entries[at][2], now):
                at += 1

    def _seat(self, line: Line, request: SeatRequest, now: float) -> bool:
        """Seat one who waits, if there is room."""
        engine = self._placement.place(request, request.phase, now)
        if engine is None:
            return False
        if request.phase is _PREFILL:
            self.predictor.waited(request, engine, now)
        self._settle(line, request, self._grant(request, engine, now))
        return True

    def _grant(self, request: SeatRequest, engine: int, now: float) -> Grant:
        prefill = decode = None
        tokens, output, work = int(request.tokens), request.output_tokens, self._work
        for phase in self._table.needs(engine):
            if phase is _PREFILL:
                cost_s = self._placement.board.prefill_cost_s(engine, tokens)
                prefill = work.begin_prefill(engine, tokens, tokens + output, cost_s, now)
            else:
                decode = work.begin_decode(engine, tokens, output, now)
        offer = self._placement.offer(request.phase)
        return Grant(self._table, work, engine, self._freed, prefill, decode, offer)

    def _settle(self, line: Line, request: SeatRequest, decided: Grant | Ending) -> None:
        """Decide for one waiter: its seats, or the end of its wait. It is told later."""
        line.remove(request)
        request.stage = _DECIDED
        request.decided = decided
        self._to_tell.append(request)

    def _tell(self) -> None:
        if self._telling or not self._to_tell:
            return  # the call that is telling gets to these as well; a loop, so that no chain grows the stack
        self._telling = True
        try:
            while self._to_tell:
                request = self._to_tell.popleft()
                if request.stage is not _DECIDED:
                    continue
                decided, request.decided = request.decided, None
                request.stage = _DONE
                if isinstance(decided, Grant):
                    request.on_grant(decided)
                elif decided is not None:
                    request.on_ending(decided)
        finally:
            self._telling = False
