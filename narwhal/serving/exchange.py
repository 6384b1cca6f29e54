"""One request's whole way: from its head to its outcome.

The coroutine `_serve` reads like the way itself: read the body, take a seat, prefill, take a seat, decode. It
waits for one future at a time. Everything that can end a request from outside (its client, its deadline, the
router's stop) goes through `interrupt`, which closes the leg under way and raises the ending at the point of
waiting; so what was taken is given back in one place, on every path, exactly once.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from narwhal._fast.assemble import Assembler, AssemblyError
from narwhal._fast.body import Body
from narwhal._fast.relay import Relay
from narwhal.accounting.record import Attempt, LengthSource
from narwhal.accounting.token_accounting import of_dialect
from narwhal.admission.grant import Grant
from narwhal.admission.line import SeatRequest
from narwhal.config import Admission, Dialect, Sizing
from narwhal.engines.dialects import HandoffError
from narwhal.engines.engine import Engine
from narwhal.engines.leg import Leg, LegLost, Reply
from narwhal.engines.pool import ConnectionFailed
from narwhal.engines.readings import read_context, read_token_count, read_usage
from narwhal.fleet.health import Evidence
from narwhal.fleet.retries import pause
from narwhal.fleet.table import Phase
from narwhal.outcomes import Counter, Ending
from narwhal.profiles.input_length import Script, script_of
from narwhal.request import CompletionRequest, Route, read
from narwhal.serving import failures, replies
from narwhal.serving.awaited import Awaited
from narwhal.serving.continuation import Continuation
from narwhal.serving.failures import AttemptFailed, LegFailure
from narwhal.serving.handoff import Handoff

if TYPE_CHECKING:
    import asyncio

    from narwhal.serving.head import RequestHead
    from narwhal.serving.http import ClientConnection
    from narwhal.serving.join import Join
    from narwhal.serving.router import Router

log = logging.getLogger("narwhal.serving")

# Members of enums by names of their own: to look one up in its class is slow.
_PREFILL, _DECODE = Phase.PREFILL, Phase.DECODE
_ACCOUNTING = {dialect: of_dialect(dialect) for dialect in Dialect}
_SOURCES = {source.value: source for source in LengthSource}
_TOKEN_IDS, _TOKENIZER, _ESTIMATE = LengthSource.TOKEN_IDS, LengthSource.TOKENIZER, LengthSource.ESTIMATE
_PREDICTIVE, _EXACT, _CHAT = Admission.PREDICTIVE, Sizing.EXACT, Route.CHAT

# How requests end of which nothing was answered.
_TURNED_AWAY = (Counter.REJECTED, Counter.REFUSED, Counter.INVALID_REQUESTS)

# When a decode leg fails like this before it answers, it may be its producer that does not hand over.
_PRODUCERS_TOO = (Evidence.TIMEOUT, Evidence.STATUS)

_SIZING_TIMEOUT_S = 5.0  # an engine that takes longer to count a prompt is not waited for
_LOOK_S = 1.0  # a dead engine's machine refuses connections sooner; a dead machine is not waited for
_KEPT = 1 << 20  # bytes of an answer's token IDs at most, so that it can be continued


class Exchange:
    """One completion request, from its head to its outcome."""

    def __init__(self, router: Router, connection: ClientConnection, route: Route, head: RequestHead) -> None:
        self._router = router
        self._connection = connection
        self._head = head
        self._serving = router.config.serving
        self._loop = router.loop
        self._held = False
        self._ended = False
        self._interruption: Ending | None = None
        self._waiter: Awaited | None = None
        self._way: Coroutine[Any, Any, None] | None = None
        self._leg: Leg | None = None
        self._relay: Relay | None = None
        self._assembler: Assembler | None = None
        self._continuation: Continuation | None = None  # what lets another engine go on with the answer
        self._join: Join | None = None  # this attempt goes on with the answer of the one before
        self._input_tokens = 0  # of this attempt's prompt
        self._grants: list[Grant] = []
        self._seat_request: SeatRequest | None = None  # the last one
        self._waited_s = 0.0  # for that seat
        self._handoff: Handoff | None = None
        self._prefilled: _Prefilled | None = None  # a prefill leg that is not seen to yet
        self._stage_deadline = math.inf
        self._stage_ending: Callable[[], Ending] | None = None
        self._decoding = False
        self._paused = False
        self._was_paused = False  # during this decode leg
        self._expected_output = 0  # tokens
        self._script: Script | None = None  # of its prompt, once looked at
        self._first_engine = -1  # of the attempt under way
        self._drained: Awaited | None = None  # a whole answer waits for its client to read
        self._unread = 0
        self._next_comment = math.inf
        self._stage = "being read"
        self._where = ""  # the leg under way, as messages name it
        self._route = route
        self.record = router.arrived(self, route)
        self.record.client_request_id = _sane_id(head.headers.get(b"x-request-id"))
        self.body_limit = self._serving.max_request_bytes
        self.body_limit_key = "serving.max_request_bytes"
        self.deadline = self.record.arrived + self._serving.request_timeout_s

    # ---- the connection's calls

    def begin(self) -> None:
        """Take a place among the held. Raises Ending."""
        self._router.door.hold()
        self._held = True

    def run(self, body: bytes) -> None:
        """The body has come."""
        self.record.body_read = monotonic()
        self.record.request_bytes = len(body)
        self._way = self._run(body)
        self._go_on()

    def _go_on(self) -> None:
        """Take the way as far as it goes without waiting."""
        assert self._way is not None
        try:
            self._way.send(None)
        except StopIteration:
            self._way = None

    def refuse(self, ending: Ending) -> None:
        """The request ends before its body was read; the connection sends the reply."""
        self._end(ending, ending.http_status)

    def client_left(self) -> None:
        """The client closed its connection."""
        ending = Ending("disconnected", "the client closed its connection")
        if self.record.body_read is None:
            self._end(ending, None)
        else:
            self.interrupt(ending)

    def pause(self) -> None:
        """The client reads too slowly: stop reading from the engine."""
        self._paused = self._was_paused = True
        if self._leg is not None:
            self._leg.pause()

    def resume(self) -> None:
        """The client reads again."""
        self._paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._leg is not None:
            self._leg.resume()
        if self._decoding:
            self._watch_decode(monotonic())

    def overdue(self) -> Ending:
        """How the request ends when its deadline passes."""
        limit = self._serving.request_timeout_s
        return Ending(
            "deadline_expired",
            f"the request was not complete {limit:g} s after its arrival "
            f"(serving.request_timeout_s); it was {self._stage}",
        )

    def last_output(self, engine: int) -> float:
        """When output last came from this engine, on the loop's clock; 0 if none does."""
        if not self._decoding or self._relay is None or self._grants[-1].engine != engine:
            return 0.0
        return self._relay.last_at

    def reply_headers(self) -> list[replies.Header]:
        """Headers of every reply to this request."""
        return [("x-request-id", self.record.request_id)]

    def on_alarm(self, now: float) -> None:
        """A deadline of the request's, or the next comment to a silent stream, is due."""
        if now >= self.deadline:
            self.interrupt(self.overdue())
            return
        if self._drained is not None:
            self._check_reading(now)
            return
        if now >= self._stage_deadline and not (self._decoding and self._decode_goes_on(now)):
            late, self._stage_ending = self._stage_ending, None
            self._stage_deadline = math.inf
            if late is not None:
                self._fail_stage(late())
        if now >= self._next_comment:
            self._comment(now)
        self._set_alarm()

    # ---- ending from outside

    def interrupt(self, ending: Ending) -> None:
        """End the request as soon as it can be: close its leg, raise `ending` where it waits."""
        if self._ended or self._interruption is not None:
            return
        if self.record.body_read is None:
            self._connection.refuse(ending)
            return
        if self._relay is not None and self._relay.done and self._relay.under_way:
            return  # the client has the whole answer
        self._interruption = ending
        self._drop_leg()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ending)

    def _drop_leg(self) -> None:
        if self._relay is not None:
            self._relay.abandon()
        if self._leg is not None:
            self._leg.abort()
            self._leg = None

    # ---- the way

    async def _run(self, raw: bytes) -> None:
        ending: Ending | None
        response: bytes | None = None
        try:
            response = await self._serve(raw)
            ending = self._interruption
        except Ending as early:
            ending = early
        except Exception:
            log.exception("request %s failed in the router", self.record.request_id)
            ending = Ending("internal_error", "the router failed; its log says more under this request's ID")
        finally:
            self._drop_leg()
            self._give_back_seats()
        if response is not None and ending is None and not self._connection.gone:
            self._connection.send(200, response, headers=self.reply_headers())
            response = None
            ending = await self._delivered()
            self._end(ending, 200)
            if ending is None:
                self._connection.finish()
            else:
                self._connection.abort()
        else:
            self._end(ending, self._status(ending))
            self._answer(ending)
        self._come_apart(ending)

    async def _delivered(self) -> Ending | None:
        """Wait until the client has read most of a large response; how the request ends if it does not."""
        if not self._paused:
            return None
        self._stage = "being read by its client"
        self._drained = Awaited(self._loop, self._go_on)
        self._unread = self._connection.unsent()
        self._connection.alarm.set(min(self.deadline, monotonic() + self._connection.patience_s))
        try:
            await self._wait(self._drained)
        except Ending as ending:
            return ending
        return None

    def _check_reading(self, now: float) -> None:
        # A client may read its answer as slowly as its deadline allows, but it must read.
        before, self._unread = self._unread, self._connection.unsent()
        patience_s = self._connection.patience_s
        if self._unread >= before:
            self.interrupt(
                Ending("disconnected", f"the client read nothing of its answer for {patience_s:g} s")
            )
        else:
            self._connection.alarm.set(min(self.deadline, now + patience_s))

    def _come_apart(self, ending: Ending | None) -> None:
        # A circle of references stays until the collector comes by, and a whole answer with it.
        if self._relay is not None:
            self._relay.release()
            self._relay = None
        self._assembler = self._continuation = self._join = None
        if ending is not None:
            ending.__traceback__ = ending.__context__ = None
        self._interruption = self._stage_ending = self._seat_request = self._drained = None

    async def _serve(self, raw: bytes) -> bytes | None:
        """Serve the request; returns the whole response if it was not streamed. Raises Ending."""
        request = read(self._route, raw, model=self._router.config.model, headers=self._head.headers)
        record = self.record
        record.stream = request.stream
        record.slo_ttft_s = request.slo_ttft_s or record.slo_ttft_s
        record.slo_tpot_s = request.slo_tpot_s or record.slo_tpot_s
        counted = None
        if request.prompt_token_count is None and self._router.config.engine.sizing is _EXACT:
            counted = await self._ask_for_length(request)
        self._size(request, counted)
        self._input_tokens = record.input_tokens or 0
        self._expected_output = self._router.expect_output(self._input_tokens, request.max_tokens)
        if self._serving.continue_streams:
            self._continuation = Continuation.of(request, _KEPT)
        recall = None if self._continuation is None else self._continuation.recall
        if request.stream:
            close = not self._connection.keep_alive
            framed = self._head.http11
            self._relay = Relay(
                self,
                outlet=self._connection.outlet,
                head=replies.stream_head(record.request_id, framed=framed, close=close),
                framed=framed,
                keep_ids=request.return_token_ids,
                keep_usage=request.include_usage,
                limit=self._serving.max_response_bytes,
                recall=recall,
            )
            if self._serving.keepalive_s is not None:
                self._next_comment = monotonic() + self._serving.keepalive_s
        else:
            self._relay = Relay(self, limit=self._serving.max_response_bytes, recall=recall)
        self._set_alarm()
        whole = request
        avoid: frozenset[int] = frozenset()
        lost: Ending | None = None
        while True:
            attempt = Attempt()
            record.attempts.append(attempt)
            try:
                return await self._attempt(request, attempt, avoid)
            except AttemptFailed as failure:
                attempt.failure = failure.ending.name
                attempt.error = failure.ending.for_the_log
                if isinstance(failure, LegFailure):
                    self._router.leg_failed(failure, record)
                    avoid |= {failure.engine}
                    if self._handoff is not None and failure.evidence in _PRODUCERS_TOO:
                        avoid |= {self._handoff.producer}
                if self._continuation is not None and self._continuation.complete:
                    return self._complete(self._continuation)
                if not self._may_try_again(failure, avoid):
                    raise self._what_cut_it(lost, failure.ending) from None
                lost = self._what_cut_it(lost, failure.ending)
            except Ending as ending:
                raise self._what_cut_it(lost, ending) from None
            finally:
                self._drop_leg()
                self._give_back_seats()
            await self._back_off(avoid)
            request = await self._rest_of(whole, lost, avoid)
            if self._join is not None:
                avoid |= self._router.without_token_ids

    def _what_cut_it(self, lost: Ending | None, ending: Ending) -> Ending:
        """How a request ends whose last attempt ended so, and the one before it like `lost`.

        A stream that the client has a part of can't be turned away any more: it was cut, and could not go on.
        """
        relay = self._relay
        going_on = self._join is not None and relay is not None and relay.output_sent
        if lost is None or not going_on or ending.outcome.counter not in _TURNED_AWAY:
            return ending
        lost.message += f"; it could not go on elsewhere: {ending.for_the_log}"
        return lost

    def _may_try_again(self, failure: AttemptFailed, avoid: frozenset[int]) -> bool:
        relay, continuation = self._relay, self._continuation
        assert relay is not None
        if len(self.record.attempts) >= self._serving.max_attempts:
            return False
        if relay.output_sent and (continuation is None or not continuation.possible):
            return False
        # What took too long on the only engine there is would do so again.
        if (
            isinstance(failure, LegFailure)
            and failure.slow
            and not self._router.others_eligible(failure.engine, avoid)
        ):
            return False
        if not self._router.retries.spend():
            failure.ending.message += (
                "; it was not tried again, since too many requests were of late (serving.retry_share)"
            )
            return False
        return True

    async def _back_off(self, avoid: frozenset[int]) -> None:
        """Wait a little before another attempt; if it could only meet an engine that failed this request, and
        that may be dead, until that is known, for then others take over."""
        base_s = self._serving.retry_backoff_s
        pause_s = pause(len(self.record.attempts), base_s, self._router.random)
        future = Awaited(self._loop, self._go_on)
        timer = self._loop.call_later(pause_s, _wake, future)
        self._stage = "waiting to be tried again"
        try:
            await self._wait(future)
        finally:
            timer.cancel()
        for engine in avoid:
            looking = self._router.monitor.looking(engine)
            if looking is not None and not self._router.others_eligible(engine, avoid):
                await self._known(looking)

    async def _known(self, looking: asyncio.Task[None]) -> None:
        future = Awaited(self._loop, self._go_on)
        done = partial(_wake, future)
        timer = self._loop.call_later(_LOOK_S, done)
        looking.add_done_callback(done)
        try:
            await self._wait(future)
        finally:
            timer.cancel()
            looking.remove_done_callback(done)

    async def _rest_of(
        self, whole: CompletionRequest, lost: Ending, avoid: frozenset[int]
    ) -> CompletionRequest:
        """What the next attempt is to ask for: the rest of the answer where that can be, else all of it.

        Raises Ending, `lost`, if the client has a part of the answer and the rest can't be asked for.
        """
        continuation, relay = self._continuation, self._relay
        assert relay is not None
        self._join, self._input_tokens = None, self.record.input_tokens or 0
        if continuation is not None and continuation.possible:
            context = await self._ask_for_context(avoid) if continuation.unlimited else None
            rest = continuation.rest(context)
            if rest is not None:
                request, self._join = rest
                self._input_tokens = request.prompt_token_count or 0
                return request
        if relay.output_sent:
            raise lost
        return whole

    def _complete(self, continuation: Continuation) -> bytes | None:
        """Finish an answer whose last token had come when its engine was lost."""
        relay = self._relay
        assert relay is not None
        if self._assembler is not None:
            return self._assembled(continuation.prompt_tokens or 0, None, self._where)
        relay.end_with(continuation.tail(relay.output_tokens()[0], usage_told=relay.usage_told))
        return None

    def _assembled(self, prompt_tokens: int, cached: int | None, where: str) -> bytes:
        """The whole response. Raises Ending."""
        relay, assembler = self._relay, self._assembler
        assert relay is not None
        assert assembler is not None
        tokens, _ = relay.output_tokens()
        try:
            return assembler.finish(prompt_tokens, tokens, -1 if cached is None else cached)
        except AssemblyError as error:
            raise Ending("assembly", f"{where}: {error}") from None

    def _size(self, request: CompletionRequest, counted: int | None) -> None:
        """Note the input's length in tokens, which an engine may have `counted`."""
        record = self.record
        tokens, source = request.prompt_token_count, _TOKEN_IDS
        if tokens is None:
            tokens, source = counted, _TOKENIZER
        if tokens is None:
            self._script = script_of(request.body.raw)
            tokens = self._router.input_lengths.estimate(request.route, request.prompt_bytes, self._script)
            source = _ESTIMATE
        record.input_tokens = tokens
        record.input_tokens_from = source
        record.sized = monotonic()

    async def _ask_for_length(self, request: CompletionRequest) -> int | None:
        pieces = request.body.edit(frozenset({"stream", "stream_options"}), {})
        reply = await self._ask(lambda engine, future: engine.tokenize(pieces, self._leg_id("t"), future))
        return None if reply is None else read_token_count(reply)

    async def _ask_for_context(self, avoid: frozenset[int]) -> int | None:
        reply = await self._ask(lambda engine, future: engine.get("/v1/models", future), avoid)
        return None if reply is None else read_context(reply, self._router.config.model)

    async def _ask(
        self,
        send: Callable[[Engine, Awaited], Leg],
        avoid: frozenset[int] = frozenset(),
    ) -> Reply | None:
        """Ask some engine for something small; None if it does not answer soon."""
        engine = self._router.any_engine(_PREFILL, avoid)
        if engine is None:
            return None
        future = Awaited(self._loop, self._go_on)
        limit = min(self._serving.prefill_timeout_s, _SIZING_TIMEOUT_S)
        try:
            self._leg = send(engine, future)
            self._enter("being sized", limit, self._sizing_late)
            reply: Reply | None = await self._wait(future)
            return reply
        except (ConnectionFailed, LegLost, _StageExpired):
            return None
        finally:
            self._leg = None
            self._leave()

    async def _attempt(
        self, request: CompletionRequest, attempt: Attempt, avoid: frozenset[int]
    ) -> bytes | None:
        grant = self._ask_for_seat(_PREFILL, avoid) or await self._wait_for_seat(_PREFILL)
        attempt.prefill_waited_s = self._waited_s
        attempt.prefill_offer = grant.offer
        self._first_engine = grant.engine
        engine = self._router.engines[grant.engine]
        if self._join is None:
            self.record.seat = monotonic()
        else:
            attempt.continues_at = self._continuation.recall.seam if self._continuation is not None else None
            if not engine.dialect.supplies_token_ids:
                message = "no engine that could go on with the answer is in service"
                raise AttemptFailed(Ending("backend_unavailable", message))
        if grant.both:
            attempt.decode = engine.id
            return await self._decode(request, engine, grant, None)
        attempt.prefill = engine.id
        reply = await self._await_leg(self._send_prefill(request, engine, grant), grant.engine, _PREFILL)
        handoff: Handoff | None
        handoff = self._take_prefill(request, engine, grant, reply)
        try:
            grant = self._ask_for_decode_seat(handoff, avoid) or await self._wait_for_decode_seat(handoff)
        except AttemptFailed as failure:
            if failure.ending.name != "backend_unavailable":
                raise
            # No engine decodes any more: those that prefill may have taken over by now.
            self._finish_prefill()
            self._let_go_of_handoff()
            grant = self._ask_for_seat(_PREFILL, avoid) or await self._wait_for_seat(_PREFILL)
            engine = self._router.engines[grant.engine]
            if not grant.both or (self._join is not None and not engine.dialect.supplies_token_ids):
                raise
            handoff = None
        attempt.decode_waited_s = self._waited_s
        attempt.decode_offer = grant.offer
        engine = self._router.engines[grant.engine]
        attempt.decode = engine.id
        return await self._decode(request, engine, grant, handoff)

    def _ask_for_decode_seat(self, handoff: Handoff, avoid: frozenset[int]) -> Grant | None:
        """A seat for a decode leg, if there is one now. Raises AttemptFailed, or Ending."""
        try:
            return self._ask_for_seat(_DECODE, avoid, handoff.producer)
        except Ending as ending:
            if ending.name == "backend_unavailable":
                raise AttemptFailed(ending) from None
            raise

    async def _wait_for_decode_seat(self, handoff: Handoff) -> Grant:
        """The seat that was asked for, while the handoff is good for it. Raises AttemptFailed, or Ending."""
        self._finish_prefill()  # it gives no decode seat back, so nothing is granted before it is waited for
        name = self._router.engines[handoff.producer].id
        try:
            grant = await self._wait_for_seat(_DECODE, handoff.expires - monotonic())
        except _StageExpired:
            limit = self._serving.handoff_timeout_s
            message = (
                f"no decode seat came free before the handoff of engine {name} was {limit:g} s old "
                "(serving.handoff_timeout_s)"
            )
            raise AttemptFailed(Ending("handoff_failed", message)) from None
        except Ending as ending:
            if ending.name == "backend_unavailable":
                raise AttemptFailed(ending) from None
            raise
        if handoff.lost:
            message = f"engine {name} was lost while it held the handoff"
            raise AttemptFailed(Ending("handoff_failed", message))
        return grant

    def _ask_for_seat(self, phase: Phase, avoid: frozenset[int], producer: int = -1) -> Grant | None:
        """A seat, if there is one now; else `_wait_for_seat` is to follow. Raises Ending.

        It is away from the engines that failed this request, if there are others. `producer` is the engine
        that has the prompt's KV cache.
        """
        record = self.record
        if avoid and not self._router.eligible(phase, avoid):
            avoid = frozenset()
        again = len(record.attempts) > 1 or record.prefill is not None
        newcomer = phase is _PREFILL and not again
        request = self._seat_request = SeatRequest(
            phase,
            record.arrived,
            avoid,
            self._granted,
            self._seat_denied,
            self._input_tokens,
            self._expected_output,
            record.arrived + record.slo_ttft_s * (1 + self._serving.admission_margin),
            record.slo_tpot_s,
            newcomer and self._serving.admission is _PREDICTIVE,
            producer,
            again,
        )
        self._waited_s = 0.0
        grant = self._router.door.ask(request, monotonic())
        if newcomer:
            record.projected_ttft_s = request.projected_ttft_s
        if grant is not None:
            self._grants.append(grant)
        return grant

    async def _wait_for_seat(self, phase: Phase, good_for_s: float = math.inf) -> Grant:
        """The seat that was asked for.

        Raises _StageExpired after `good_for_s`, if that is less than any request may wait, and Ending.
        """
        began = monotonic()
        limit_s = min(self._serving.queue_timeout_s, good_for_s)
        late = partial(self._seat_late, phase, good_for_s)
        self._enter(f"waiting for a {phase.name.lower()} seat", limit_s, late)
        try:
            grant: Grant = await self._wait(Awaited(self._loop, self._go_on))
        finally:
            assert self._seat_request is not None
            self._router.door.leave(self._seat_request, monotonic())
            self._leave()
        self._waited_s = monotonic() - began
        return grant

    def _granted(self, grant: Grant) -> None:
        self._grants.append(grant)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(grant)

    def _seat_denied(self, ending: Ending) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ending)

    def _send_prefill(self, request: CompletionRequest, engine: Engine, grant: Grant) -> Awaited:
        """Send the prefill leg; what is returned gets its reply."""
        self._where = engine.prefill_leg
        future = Awaited(self._loop, self._go_on, True)
        self._router.accounts.engines.leg_started(grant.engine, _PREFILL)
        body = engine.dialect.prefill_body(request)
        self._leg = engine.call(request.route, body, self._leg_id("p"), future)
        self._enter("in its prefill leg", self._serving.prefill_timeout_s, self._prefill_late)
        return future

    def _take_prefill(
        self, request: CompletionRequest, engine: Engine, grant: Grant, reply: Reply | None
    ) -> Handoff:
        """What came of the prefill leg. Raises LegFailure, or Ending."""
        index, where = grant.engine, self._where
        assert reply is not None
        if reply.status != 200:
            raise failures.of_reply(reply, where, index, _PREFILL)
        try:
            body = Body(reply.body)
            handoff = engine.dialect.read_handoff(body)
        except HandoffError as error:
            ending = Ending("handoff_failed", f"{where}: {error}")
            raise LegFailure(ending, index, _PREFILL, Evidence.HANDOFF) from None
        except (ValueError, TypeError) as error:
            ending = Ending("broken_stream", f"{where}: its reply is no JSON object: {error}")
            raise LegFailure(ending, index, _PREFILL, Evidence.STREAM) from None
        now = monotonic()
        if self._join is None:
            self.record.prefill = now
        expires = now + self._serving.handoff_timeout_s
        self._handoff = Handoff(self._router.lifecycle, index, handoff, expires)
        self._prefilled = _Prefilled(request, grant, body, self._handoff, now)
        return self._handoff

    def _finish_prefill(self) -> None:
        """Do what is left to do after a prefill leg, which its decode leg need not wait for."""
        done, self._prefilled = self._prefilled, None
        if done is None:
            return
        self._router.leg_succeeded(done.grant.engine)
        usage = read_usage(done.body)
        done.handoff.cached_tokens = usage.cached_tokens
        if self._join is None and usage.prompt_tokens is not None:
            self._learn_length(done.request, usage.prompt_tokens)
        tokens = usage.prompt_tokens or self._input_tokens
        done.grant.prefilled(tokens - (usage.cached_tokens or 0), done.at)
        done.grant.release(_PREFILL, monotonic())

    async def _decode(
        self, request: CompletionRequest, engine: Engine, grant: Grant, handoff: Handoff | None
    ) -> bytes | None:
        """The decode leg, or the one leg on an engine that does all."""
        future = self._send_decode(request, engine, grant, handoff)
        relay = self._relay
        assert relay is not None
        try:
            reply = await self._await_leg(future, grant.engine, _DECODE)
        finally:
            self._decoding = False
            self._take_counts(relay, grant.engine)
        return self._take_decode(request, grant, reply, None if handoff is None else handoff.cached_tokens)

    def _send_decode(
        self, request: CompletionRequest, engine: Engine, grant: Grant, handoff: Handoff | None
    ) -> Awaited:
        """Send the decode leg; what is returned is told when its stream has ended, or gets a reply."""
        relay, dialect = self._relay, engine.dialect
        assert relay is not None
        if self._join is None and not request.stream:
            self._assembler = Assembler(
                request.route is _CHAT,
                request.return_token_ids,
                self._serving.max_response_bytes,
                dialect.name,
            )
        relay.begin(dialect.supplies_token_ids, self._assembler, self._join)
        self._where = engine.decode_leg if handoff is not None else engine.whole_request
        future = Awaited(self._loop, self._go_on, True)
        self._router.accounts.engines.leg_started(grant.engine, _DECODE)
        self.record.token_accounting = _ACCOUNTING[engine.config.dialect]
        if self._join is None:
            self.record.handoff = monotonic()
        body = dialect.decode_body(request, None if handoff is None else handoff.params)
        self._leg = engine.call(request.route, body, self._leg_id("d"), future, relay)
        self._finish_prefill()
        if self._join is None:  # else what is true of the whole answer is in its usage already
            cached = None if handoff is None else handoff.cached_tokens
            relay.set_cached_tokens(cached)
            if self._continuation is not None:
                self._continuation.cached_tokens = cached
        self._was_paused = self._paused
        if self._paused:
            self._leg.pause()
        self._enter("in its decode leg", self._serving.first_token_timeout_s, self._first_token_late)
        self._decoding = True
        return future

    def _take_decode(
        self, request: CompletionRequest, grant: Grant, reply: Reply | None, cached: int | None
    ) -> bytes | None:
        """What came of the decode leg: the whole response, if it was not streamed.

        Raises AttemptFailed, or Ending.
        """
        relay, engine = self._relay, grant.engine
        assert relay is not None
        if reply is not None:
            raise failures.of_reply(reply, self._where, engine, _DECODE)
        if relay.failure is not None:
            raise self._stream_failure(relay, self._where, engine)
        self._router.leg_succeeded(engine)
        if grant.both and relay.prompt_tokens > 0:
            self._learn_length(request, relay.prompt_tokens)
        self._learn_output(request, relay, grant)
        if self._assembler is None:
            return None
        return self._assembled(
            self.record.input_tokens or 0, cached if self._join is None else None, self._where
        )

    def _stream_failure(self, relay: Relay, where: str, engine: int) -> Exception:
        name = relay.failure or "broken_stream"
        if name == "engine_error":
            ending = failures.of_error_event(relay.error_object, where)
        else:
            ending = Ending(name, f"{where}: {relay.failure_message}")
        if relay.unjoinable and self._continuation is not None:
            self._continuation.recall.spoil()
            return AttemptFailed(ending)  # which does not speak against the engine
        return failures.of_stream(ending, engine)

    async def _await_leg(self, future: Awaited, engine: int, phase: Phase) -> Reply | None:
        where = self._where
        try:
            reply: Reply | None = await self._wait(future)
            self._leg = None  # its connection is the pool's again
            return reply
        except ConnectionFailed as error:
            raise failures.of_connecting(error, where, engine, phase) from None
        except LegLost as error:
            raise failures.of_loss(error, where, engine, phase) from None
        except _StageExpired as error:
            raise LegFailure(error.ending, engine, phase, Evidence.TIMEOUT, slow=True) from None
        finally:
            self._leave()

    async def _wait(self, future: Awaited) -> Any:
        if self._interruption is not None:
            raise self._interruption
        self._waiter = future
        try:
            result = await future
        finally:
            self._waiter = None
        if self._interruption is not None:
            raise self._interruption
        return result

    def _take_counts(self, relay: Relay, engine: int) -> None:
        # What the relay saw of an attempt's stream, whether it ended well or not.
        record = self.record
        if not relay.carried:
            record.first_token = relay.first_at or None
            record.last_token = None
        record.last_token = relay.last_at or record.last_token
        tokens, source = relay.output_tokens()
        record.output_tokens = tokens
        record.output_tokens_from = _SOURCES[source]
        reported = relay.completion_tokens
        record.usage_completion_tokens = reported if reported >= 0 else None
        self._router.counted(engine, relay)

    def _learn_length(self, request: CompletionRequest, prompt_tokens: int) -> None:
        self.record.prompt_tokens = prompt_tokens
        if request.prompt_token_count is None:
            script = self._script or script_of(request.body.raw)
            self._router.input_lengths.learn(request.route, request.prompt_bytes, prompt_tokens, script)

    def _learn_output(self, request: CompletionRequest, relay: Relay, grant: Grant) -> None:
        tokens, _ = relay.output_tokens()
        if self._join is None:
            self._router.output_lengths.learn(self.record.input_tokens or 0, request.max_tokens, tokens)
        if not self._was_paused:  # else the pace was the client's
            grant.decoded(tokens - relay.carried, relay.last_at)

    def _leg_id(self, leg: str) -> str:
        return f"{self.record.request_id}-{leg}{len(self.record.attempts) or 1}"

    # ---- the relay's calls

    def on_output(self) -> None:
        """The first output came."""
        self._let_go_of_handoff()
        now, record = monotonic(), self.record
        for grant in self._grants:
            grant.first_token(now)
            if grant.both and _PREFILL in grant.held:
                grant.prefilled(self._input_tokens, now)
                grant.release(_PREFILL, now)
        if record.projected_ttft_s and len(record.attempts) == 1:
            self._router.accounts.engines.projected(
                self._first_engine, (now - record.arrived) / record.projected_ttft_s
            )
        self._next_comment = math.inf
        self._watch_decode(now)

    def on_end(self) -> None:
        """The stream is over, one way or the other."""
        self._leg = None  # its connection may serve another request before this one is awake
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # ---- time

    def _enter(self, stage: str, limit_s: float, late: Callable[[], Ending]) -> None:
        # Hardly any stage comes too late, so the words for it are found when one does.
        self._stage = stage
        self._stage_deadline = monotonic() + limit_s
        self._stage_ending = late
        self._set_alarm()

    def _leave(self) -> None:
        self._stage_deadline = math.inf
        self._stage_ending = None

    def _set_alarm(self) -> None:
        self._connection.alarm.set(min(self.deadline, self._stage_deadline, self._next_comment))

    def _watch_decode(self, now: float) -> None:
        # Between events the limit is another one, counted from the last output.
        self._stage = "being streamed"
        self._stage_deadline = now + self._serving.stream_idle_timeout_s
        self._stage_ending = self._output_late
        self._set_alarm()

    def _sizing_late(self) -> Ending:
        return Ending("engine_timeout", "the prompt could not be sized in time")

    def _seat_late(self, phase: Phase, good_for_s: float) -> Ending:
        limit = self._serving.queue_timeout_s
        name = "queue_expired" if limit <= good_for_s else "handoff_failed"
        seat = f"{phase.name.lower()} seat"
        return Ending(name, f"no {seat} came free within {limit:g} s (serving.queue_timeout_s)")

    def _prefill_late(self) -> Ending:
        limit = self._serving.prefill_timeout_s
        text = f"{self._where} did not answer within {limit:g} s (serving.prefill_timeout_s)"
        return Ending("engine_timeout", text)

    def _first_token_late(self) -> Ending:
        limit = self._serving.first_token_timeout_s
        text = f"{self._where} sent no output within {limit:g} s (serving.first_token_timeout_s)"
        return Ending("engine_timeout", text)

    def _output_late(self) -> Ending:
        limit = self._serving.stream_idle_timeout_s
        text = f"{self._where} sent nothing for {limit:g} s (serving.stream_idle_timeout_s)"
        return Ending("engine_timeout", text)

    def _decode_goes_on(self, now: float) -> bool:
        # No timer moves with each event: when one fires, see how long ago the last event really was.
        relay = self._relay
        if relay is None or relay.last_at == 0:
            return False
        if self._paused:
            # The silence is the client's; the request's deadline bounds it.
            self._stage_deadline = math.inf
            return True
        due = max(relay.last_at, relay.heard_at) + self._serving.stream_idle_timeout_s
        if due <= now:
            return False
        self._stage_deadline = due
        return True

    def _fail_stage(self, ending: Ending) -> None:
        self._drop_leg()
        if self._waiter is not None and not self._waiter.done():
            if ending.name == "queue_expired":
                self._waiter.set_exception(ending)
            else:
                self._waiter.set_exception(_StageExpired(ending))

    def _comment(self, now: float) -> None:
        interval = self._serving.keepalive_s
        if interval is None or self._relay is None:
            self._next_comment = math.inf
            return
        self._relay.comment()
        self._next_comment = now + interval

    # ---- the end

    def _let_go_of_handoff(self) -> None:
        if self._handoff is not None:
            self._handoff.let_go()
            self._handoff = None

    def _give_back_seats(self) -> None:
        self._finish_prefill()
        self._let_go_of_handoff()
        grants, self._grants = self._grants, []
        for grant in grants:
            grant.release_all(monotonic())

    def _status(self, ending: Ending | None) -> int | None:
        # The status that the client has been sent, or is about to be.
        if self._relay is not None and self._relay.under_way:
            return 200
        if ending is None:
            return 200
        return None if ending.outcome.status is None and ending.status is None else ending.http_status

    def _end(self, ending: Ending | None, status: int | None) -> None:
        """Count the outcome, once."""
        assert not self._ended
        self._ended = True
        if self._held:
            self._router.door.let_go()
        self._router.ended(self, ending, status)

    def _answer(self, ending: Ending | None) -> None:
        connection = self._connection
        if connection.gone:
            return
        relay = self._relay
        if relay is not None and relay.under_way:
            if ending is not None:
                relay.end_with(ending.terminal_event())
            connection.finish()
        elif ending is not None:
            status, body, headers = replies.error(ending, self.reply_headers())
            connection.reply(status, body, headers=headers)


def _wake(awaited: Awaited, _: object = None) -> None:
    if not awaited.done():
        awaited.set_result(None)


_SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


def _sane_id(sent: bytes | None) -> str | None:
    """A client's request ID, if it is one and no attempt at something else."""
    return sent.decode() if sent and _SANE_ID.fullmatch(sent) else None


class _Prefilled:
    """A prefill leg that has done its work, and what is still to be learned of it."""

    def __init__(
        self, request: CompletionRequest, grant: Grant, body: Body, handoff: Handoff, at: float
    ) -> None:
        self.request = request
        self.grant = grant
        self.body = body
        self.handoff = handoff
        self.at = at


class _StageExpired(Exception):
    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.message)
        self.ending = ending
