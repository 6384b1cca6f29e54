"""One completion request inside a simulated engine, from its body to the last byte of its answer.

This is where faults act: each has its place in the life of an answer, and the place asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import orjson

from narwhal.sim import handoffs, shapes
from narwhal.sim.batch import Batch
from narwhal.sim.directives import Directives
from narwhal.sim.faults import FALSE_IDS, Fault, FaultName, Leg
from narwhal.sim.handoffs import Producer
from narwhal.sim.script import Piece
from narwhal.sim.server import Reply
from narwhal.sim.shapes import Shape
from narwhal.sim.stats import LegCount, Stats

EVENT_STREAM = "text/event-stream; charset=utf-8"
_FLUSH_S = 0.02  # for bytes to be read before a reset throws them away


class Engine(Protocol):
    """What an answer needs of its engine."""

    batch: Batch
    stats: Stats
    producer: Producer

    def later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle: ...


class Answer:
    """One request being answered. It is a `batch.Sequence`."""

    def __init__(
        self,
        engine: Engine,
        reply: Reply,
        plan: Callable[[bool], Shape],
        *,
        leg: Leg,
        request_id: str,
        stream: bool,
        wishes: Directives,
        faults: dict[FaultName, Fault],
        cached_tokens: int | None,
    ) -> None:
        """`plan` makes the answer, given whether its KV cache is spoiled. Raises RequestError."""
        self._plan = plan
        self._shape = plan(False)
        self.script = self._shape.script
        self.prompt_tokens = len(self.script.prompt_ids)
        self._engine = engine
        self._reply = reply
        self._leg = leg
        self._request_id = request_id
        self._stream = stream
        self._wishes = wishes
        self._faults = faults
        self._cached_tokens = cached_tokens
        self._count: LegCount = engine.stats[leg]
        self._at = 0  # tokens generated
        self._events = 0  # output events written
        self._opened = False
        self._ended = False
        self._standing = False  # still, since the client does not read
        self._timer: asyncio.TimerHandle | None = None

    # Beginning.

    def begin(self) -> bool:
        """The request is in. Returns whether `compute` or `producer_gone` is to follow: no fault ended it."""
        self._reply.on_gone = self.abort
        self._count.start()
        if FaultName.BYTE_AT_A_TIME in self._faults:
            self._reply.dribble()
        if FaultName.HANG in self._faults:
            return False
        if FaultName.RESET in self._faults:
            self._end("failed")
            self._reply.reset()
            return False
        if (fault := self._faults.get(FaultName.BAD_STATUS)) is not None:
            self._end("failed")
            message = f"This simulated engine was told to answer with status {fault.status}."
            self._reply.whole(fault.status, shapes.error(message, fault.status))
            return False
        if self._stream:
            self._reply.start(EVENT_STREAM)
        return True

    def compute(self, *, spoiled: bool = False) -> None:
        """Have the engine compute it."""
        if self._ended:
            return
        if spoiled:
            self._shape = self._plan(True)
            self.script = self._shape.script
        if (fault := self._faults.get(FaultName.SLOW_FIRST_TOKEN)) is not None:
            self._timer = self._engine.later(1.0 if fault.seconds is None else fault.seconds, self._join)
        else:
            self._join()

    def _join(self) -> None:
        self._timer = None
        if self._leg is Leg.DECODE:
            self._engine.batch.decode(self)
        else:
            self._engine.stats.prompt_tokens += self.prompt_tokens
            self._engine.batch.prefill(self)

    def producer_gone(self, seconds: float) -> None:
        """The handoff's producer does not answer: silence, then an error in the stream."""
        if not self._ended:
            self._timer = self._engine.later(seconds, self._fail_unfed)

    def _fail_unfed(self) -> None:
        if self._stream:
            self._open()
        self._fail("Internal server error", 500)

    def _fail(self, message: str, status: int) -> None:
        self._end("failed")
        if self._stream:
            self._reply.piece(shapes.error_event(message, status))
            self._reply.piece(shapes.DONE)
            self._reply.finish()
        else:
            self._reply.whole(status, shapes.error(message, status))

    # What the batch calls.

    def prefilled(self) -> bool:
        return self.step() >= 0

    def step(self) -> int:
        if self._ended:
            return -1
        if self._reply.blocked:
            if not self._standing:
                self._engine.stats.pauses += 1
            self._standing = True
            return 0
        self._standing = False
        if self._faults and self._stream and self._broke_off():
            return -1 if self._ended else 0
        if self._stream and self._wishes.events is not None:
            return self._replay(self._wishes.events)
        if self._at == len(self.script.pieces):
            self._finish_stream()
            return -1
        pieces = self._take()
        if self._stream:
            self._write_event(pieces)
        elif self._at == len(self.script.pieces):
            self._write_whole()
            return -1
        if self._at == len(self.script.pieces) and not self._faults:
            self._finish_stream()
            return -1
        # With faults the end comes with the next step, for what goes wrong after the last event.
        return len(pieces)

    def _take(self) -> list[Piece]:
        """The tokens of the next event: no more than are wished for, and of one kind of output."""
        pieces = self.script.pieces[self._at : self._at + self._wishes.tokens_per_event]
        if len(pieces) > 1:
            pieces = [piece for piece in pieces if piece.output is pieces[0].output]
        self._at += len(pieces)
        self._engine.stats.generated_tokens += len(pieces)
        return pieces

    # Streams.

    def _open(self) -> None:
        self._opened = True
        for event in self._shape.opening():
            self._reply.piece(event)

    def _write_event(self, pieces: list[Piece]) -> None:
        if not self._opened:
            self._open()
        final = self._at == len(self.script.pieces)
        if self._shape.silent(pieces, final):
            return
        ids: bytes | None = orjson.dumps([piece.token for piece in pieces]) if self._shape.ids else b"null"
        if self._faults:
            self._write_faulty_event(pieces, ids, final)
        else:
            self._reply.piece(self._shape.event(pieces, self._at, ids, final))
        self._events += 1
        self._engine.stats.events += 1

    def _write_faulty_event(self, pieces: list[Piece], ids: bytes | None, final: bool) -> None:
        for name, value in FALSE_IDS.items():
            if (fault := self._faults.get(name)) is not None and self._events >= fault.after:
                ids = value
        if (fault := self._due(FaultName.HUGE_EVENT)) is not None:
            pieces = [pieces[0]._replace(text="x" * fault.size), *pieces[1:]]
        event = self._shape.event(pieces, self._at, ids, final)
        if self._due(FaultName.BROKEN_JSON) is not None:
            event = event[: len(event) * 2 // 3] + b"\n\n"
        if self._due(FaultName.BROKEN_CHUNKING) is not None:
            self._reply.raw(b"0x%x\r\n%b\r\n" % (len(event), event))
        else:
            self._reply.piece(event)

    def _finish_stream(self) -> None:
        self._end("finished")
        if self._shape.include_usage:
            self._reply.piece(self._shape.usage_event())
        if FaultName.NO_DONE not in self._faults:
            self._reply.piece(shapes.DONE)
        if FaultName.OUTPUT_AFTER_DONE in self._faults:
            last = self.script.pieces[-1:]
            ids = orjson.dumps([piece.token for piece in last]) if self._shape.ids else b"null"
            self._reply.piece(self._shape.event(last, self._at, ids, False))
        self._reply.finish()

    def _replay(self, events: tuple[str, ...]) -> int:
        if self._events < len(events):
            self._reply.piece(events[self._events].encode("utf-8", "surrogatepass"))
            self._events += 1
            return 1
        self._end("finished")
        self._reply.finish()
        return -1

    # What goes wrong between two events.

    def _due(self, name: FaultName) -> Fault | None:
        """The fault, if just as many events have been written as it lets pass."""
        fault = self._faults.get(name)
        return fault if fault is not None and self._events == fault.after else None

    def _broke_off(self) -> bool:
        """Whether nothing is to be written now: the stream is over, or it stalls."""
        if (fault := self._due(FaultName.DIE_AFTER)) is not None:
            self._die(fault.how)
        elif (fault := self._due(FaultName.ERROR_IN_STREAM)) is not None:
            self._fail("This simulated engine was told to fail.", fault.status)
        elif (fault := self._due(FaultName.STALL)) is not None:
            if fault.seconds is not None and self._timer is None:
                self._timer = self._engine.later(fault.seconds, self._go_on)
        else:
            return False
        return True

    def _go_on(self) -> None:
        self._timer = None
        del self._faults[FaultName.STALL]

    def _die(self, how: str) -> None:
        self._end("failed")
        if how == "reset":
            self._reply.reset()
            return
        if how == "truncate":
            left = self.script.pieces[self._at :]
            event = self._shape.event(self._take(), self._at, b"null", False) if left else shapes.DONE
            self._reply.raw(b"%x\r\n%b" % (len(event), event[: len(event) // 2]))
        self._reply.close()

    # Whole replies.

    def _write_whole(self) -> None:
        if FaultName.STALL in self._faults:
            self._stall_whole()
            return
        if (fault := self._faults.get(FaultName.HUGE_EVENT)) is not None:
            self.script.pieces[0] = self.script.pieces[0]._replace(text="x" * fault.size)
        body = self._shape.whole(self._handoff())
        if (fault := self._faults.get(FaultName.DIE_AFTER)) is not None:
            self._end("failed")
            self._reply.start("application/json")
            self._reply.raw(b"%x\r\n%b" % (len(body), body[: len(body) // 2]))
            if fault.how == "reset":
                self._engine.later(_FLUSH_S, self._reply.reset)
            else:
                self._reply.close()
            return
        self._end("finished")
        if FaultName.BROKEN_JSON in self._faults:
            body = body[: len(body) * 2 // 3]
        if FaultName.BROKEN_CHUNKING in self._faults:
            self._reply.start("application/json")
            self._reply.raw(b"0x%x\r\n%b\r\n" % (len(body), body))
            self._reply.finish()
            return
        short = self._faults.get(FaultName.CONTENT_LENGTH)
        self._reply.whole(200, body, missing=short.size if short is not None else 0)

    def _stall_whole(self) -> None:
        stall = self._faults.pop(FaultName.STALL)
        self._engine.batch.drop(self)
        if stall.seconds is not None:
            self._timer = self._engine.later(stall.seconds, self._write_whole)

    def _handoff(self) -> dict[str, Any] | None:
        if self._leg is not Leg.PREFILL or FaultName.NO_HANDOFF in self._faults:
            return None
        handoff = self._engine.producer.make(
            self._request_id, self.script.digest, self.prompt_tokens, self._cached_tokens
        )
        return handoffs.gone(handoff) if FaultName.GONE_HANDOFF in self._faults else handoff

    # The end.

    def abort(self) -> None:
        """The client has left."""
        self._end("aborted")

    def _end(self, how: str) -> None:
        """Count the request, once; nothing is computed for it any more."""
        if self._ended:
            return
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._engine.batch.drop(self)
        self._count.active -= 1
        setattr(self._count, how, getattr(self._count, how) + 1)
