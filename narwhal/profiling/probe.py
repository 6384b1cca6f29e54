"""A probe into one engine: sends it the legs of requests as the router would, and times them.

The same engine, dialect, connection and relay as in serving, so a profile is about what the router will see,
and every token is checked for its ID in the same way.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import NamedTuple

import orjson

from narwhal._fast.assemble import Assembler
from narwhal._fast.body import Body
from narwhal._fast.relay import Relay
from narwhal.config import FleetConfig
from narwhal.engines.dialects import HandoffError
from narwhal.engines.engine import Engine
from narwhal.engines.leg import Leg, LegLost, Reply
from narwhal.engines.pool import ConnectionFailed
from narwhal.profiling.pages import Condition, PageError, read_condition, read_max_model_len
from narwhal.request import CompletionRequest, Route, read
from narwhal.serving import failures

# How long an engine may take to be rid of the probe's own requests.
_SETTLE_S, _POLL_S = 3.0, 0.05


class MeasurementError(Exception):
    """A measurement failed; the message names the engine and what it did."""


class Mark(NamedTuple):
    """How far a stream was at some instant."""

    tokens: int
    at: float  # when the last of them came


class Stream:
    """A decode leg under way, or a leg that does all."""

    def __init__(self, prompt_tokens: int, where: str) -> None:
        loop = asyncio.get_running_loop()
        self.prompt_tokens = prompt_tokens
        self.first: asyncio.Future[None] = loop.create_future()  # its first output, or its end
        self.over: asyncio.Future[Reply | None] = loop.create_future()
        self.over.add_done_callback(self._ended)
        self.relay = Relay(self)
        self.leg: Leg
        self._where = where

    def mark(self) -> Mark:
        """How far it is."""
        return Mark(self.relay.output_tokens()[0], self.relay.last_at)

    @property
    def first_after_s(self) -> float:
        """Seconds from its sending to its first output."""
        return self.relay.first_at - self.relay.started_at

    def abort(self) -> None:
        """Stop it, if it still runs."""
        if not self.over.done():
            self.relay.abandon()
            self.leg.abort()
            self.over.cancel()

    def check(self) -> None:
        """Raise MeasurementError if it has failed."""
        if not self.over.done() or self.over.cancelled():
            return
        error = self.over.exception()
        if error is not None:
            raise MeasurementError(f"{self._where}: {error}")
        reply = self.over.result()
        if reply is not None:
            raise MeasurementError(_of_status(reply, self._where))
        if self.relay.failure == "engine_error":
            raise MeasurementError(failures.of_error_event(self.relay.error_object, self._where).message)
        if self.relay.failure is not None:
            raise MeasurementError(f"{self._where}: {self.relay.failure_message}")

    def on_output(self) -> None:
        """The relay's call: the first output."""
        if not self.first.done():
            self.first.set_result(None)

    def on_end(self) -> None:
        """The relay's call: the stream is over."""
        if not self.over.done():
            self.over.set_result(None)

    def _ended(self, _: asyncio.Future[Reply | None]) -> None:
        if not self.first.done():
            self.first.set_result(None)


class Probe:
    """One engine."""

    def __init__(self, config: FleetConfig, engine: Engine) -> None:
        self.engine = engine
        self.id = engine.id
        self._config = config
        self._serving = config.serving
        self._ids = itertools.count(1)

    async def idle(self) -> Condition:
        """Its condition, once it is idle. Raises MeasurementError if it is busy and stays so."""
        give_up = time.monotonic() + _SETTLE_S
        while True:
            reply = await self._page("/metrics")
            try:
                condition = read_condition(reply.decode(errors="replace"))
            except PageError as error:
                raise MeasurementError(f"engine {self.id}: {error}") from None
            if condition.idle:
                return condition
            if time.monotonic() >= give_up:
                raise MeasurementError(
                    f"engine {self.id} is busy (requests running: {condition.running}, waiting: "
                    f"{condition.waiting}); measure when it has no traffic"
                )
            await asyncio.sleep(_POLL_S)

    async def max_model_len(self) -> int | None:
        """How many tokens a request may have; None if it doesn't say. Raises MeasurementError."""
        try:
            return read_max_model_len(await self._page("/v1/models"), self._config.model)
        except PageError as error:
            raise MeasurementError(f"engine {self.id}: {error}") from None

    async def prefill(self, prompt: list[int]) -> tuple[float, bytes]:
        """Run a prefill leg: its seconds, and the handoff. Raises MeasurementError."""
        where = f"engine {self.id} (prefill leg)"
        request = self._request(prompt, 1)
        limit = self._serving.prefill_timeout_s
        sent = time.monotonic()
        future: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        leg = self.engine.call(
            request.route, self.engine.dialect.prefill_body(request), self._leg_id(), future
        )
        reply = await self._whole(leg, future, where, limit, "serving.prefill_timeout_s")
        seconds = time.monotonic() - sent
        if reply.status != 200:
            raise MeasurementError(_of_status(reply, where))
        try:
            return seconds, self.engine.dialect.read_handoff(Body(reply.body))
        except (HandoffError, ValueError, TypeError) as error:
            raise MeasurementError(f"{where}: {error}") from None

    def stream(self, prompt: list[int], output_tokens: int, handoff: bytes | None) -> Stream:
        """Begin a decode leg, or without a handoff a leg that does all, of so many output tokens."""
        part = "whole request" if handoff is None else "decode leg"
        request = self._request(prompt, output_tokens)
        dialect = self.engine.dialect
        stream = Stream(len(prompt), f"engine {self.id} ({part})")
        assembler = Assembler(False, False, self._serving.max_response_bytes, dialect.name)
        stream.relay.begin(dialect.supplies_token_ids, assembler)
        stream.leg = self.engine.call(
            request.route,
            dialect.decode_body(request, handoff),
            self._leg_id(),
            stream.over,
            stream.relay,
        )
        return stream

    async def first_output(self, streams: list[Stream]) -> None:
        """Wait until each stream has output, or one is over. Raises MeasurementError if one fails."""
        limit = self._serving.request_timeout_s
        try:
            async with asyncio.timeout(limit):
                for stream in streams:
                    await stream.first
                    stream.check()
        except TimeoutError:
            raise self._too_slow(f"{len(streams)} streams had no output", limit) from None

    async def first_end(self, streams: list[Stream]) -> None:
        """Wait until a stream is over. Raises MeasurementError if one has failed."""
        limit = self._serving.request_timeout_s
        done, _ = await asyncio.wait(
            [stream.over for stream in streams], timeout=limit, return_when=asyncio.FIRST_COMPLETED
        )
        for stream in streams:
            stream.check()
        if not done:
            raise self._too_slow(f"none of {len(streams)} streams ended", limit)

    async def close(self) -> None:
        """Close its connections."""
        await self.engine.pool.close()

    async def _page(self, path: str) -> bytes:
        where = f"engine {self.id} ({path})"
        future: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        leg = self.engine.get(path, future)
        reply = await self._whole(
            leg, future, where, self._config.engine.connect_timeout_s * 2, "engine.connect_timeout_s, twice"
        )
        if reply.status != 200:
            raise MeasurementError(f"{where} answered {reply.status}")
        return reply.body

    async def _whole(
        self, leg: Leg, future: asyncio.Future[Reply | None], where: str, limit_s: float, setting: str
    ) -> Reply:
        try:
            async with asyncio.timeout(limit_s):
                reply = await future
        except TimeoutError:
            raise MeasurementError(f"{where} did not answer within {limit_s:g} s ({setting})") from None
        except ConnectionFailed as error:
            raise MeasurementError(f"{where} can't be reached: {error}") from None
        except LegLost as error:
            raise MeasurementError(f"{where}: {error}") from None
        finally:
            leg.abort()
        assert reply is not None
        return reply

    def _request(self, prompt: list[int], output_tokens: int) -> CompletionRequest:
        body = {
            "model": self._config.model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "min_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        return read(Route.COMPLETIONS, orjson.dumps(body), model=self._config.model, headers={})

    def _leg_id(self) -> str:
        return f"profile-{self.id}-{next(self._ids)}"

    def _too_slow(self, what: str, limit_s: float) -> MeasurementError:
        return MeasurementError(f"engine {self.id}: {what} within {limit_s:g} s (serving.request_timeout_s)")


def _of_status(reply: Reply, where: str) -> str:
    ending = failures.of_status(reply, where)
    return ending.message if where in ending.message else f"{where}: {ending.message}"
