"""What the router asks an engine to see how it is, over connections that no request ever uses.

The questions get harder: a page, the model's name, one token, a KV cache for another engine. What an answer
must be like is judged by the same code that judges answers to clients.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import orjson

from narwhal._fast.assemble import Assembler
from narwhal._fast.body import Body
from narwhal._fast.relay import Relay
from narwhal.engines.dialects import HandoffError
from narwhal.engines.engine import Engine
from narwhal.engines.leg import Leg, LegLost, Reply
from narwhal.engines.pages import read_metrics, read_models
from narwhal.engines.pool import ConnectionFailed, Exhausted
from narwhal.request import CompletionRequest, Route, read

_REPLY_LIMIT = 1 << 20
# Some KV cache is handed over by whole blocks of tokens only; of vLLM's the largest has 128.
_PROMPT_WORDS = 160

_Future = asyncio.Future[Reply | None]


class ProbeFailed(Exception):
    """The engine did not answer as it should; the text says how."""

    def __init__(self, why: str, *, refused: bool = False, lost: bool = False) -> None:
        """`refused`: it could not even be connected to; `lost`: it closed the connection without a reply."""
        super().__init__(why)
        self.refused = refused
        self.lost = lost


class NotProbed(Exception):
    """The engine could not be asked, for want of a socket: nothing was learned of it."""


class _Stream:
    """Owns a relay and waits for its end."""

    def __init__(self, future: _Future) -> None:
        self._future = future

    def on_output(self) -> None: ...

    def on_end(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class Probe:
    """Asks one engine."""

    def __init__(self, engine: Engine, model: str) -> None:
        """`engine` must have a pool of its own."""
        self.engine = engine
        self._model = model

    @property
    def connections_opened(self) -> int:
        """Connections needed so far: while the last one lives, so does the process behind it."""
        return self.engine.pool.opened

    async def health(self, timeout_s: float) -> None:
        """It says that it is well. Raises ProbeFailed or NotProbed, as all of these do."""
        reply = await self._get("/health", timeout_s)
        has_no_such_page = not self.engine.dialect.supplies_token_ids and reply.status in (404, 405)
        if reply.status != 200 and not has_no_such_page:
            raise ProbeFailed(f"GET /health was answered with {reply.status}")

    async def model(self, timeout_s: float) -> None:
        """It serves the model."""
        reply = await self._get("/v1/models", timeout_s)
        cards = read_models(reply.body) if reply.status == 200 else None
        if cards is None:
            raise ProbeFailed(f"GET /v1/models was answered with {reply.status} and no list of models")
        if all(card.name != self._model for card in cards):
            names = ", ".join(card.name for card in cards[:5]) or "none"
            raise ProbeFailed(f"it does not serve the model {self._model}, but {names}")

    async def started_at(self, timeout_s: float) -> float | None:
        """When its process started, in seconds since 1970; None if it does not say."""
        reply = await self._get("/metrics", timeout_s)
        return read_metrics(reply.body).started_at if reply.status == 200 else None

    async def whole(self, timeout_s: float) -> None:
        """It computes a token, by itself."""
        await self._stream(self._request(), None, timeout_s, "a whole request")

    async def prefill(self, request: CompletionRequest, timeout_s: float) -> bytes:
        """It computes a prompt and keeps its KV cache: the handoff."""
        body = self.engine.dialect.prefill_body(request)
        reply = await self._ask(
            lambda future: self.engine.call(request.route, body, _name(), future), timeout_s, "a prefill"
        )
        if reply.status != 200:
            raise ProbeFailed(f"a prefill was answered with {reply.status}")
        try:
            return self.engine.dialect.read_handoff(Body(reply.body))
        except HandoffError as error:
            raise ProbeFailed(f"a prefill: {error}") from None
        except (ValueError, TypeError) as error:
            raise ProbeFailed(f"a prefill's reply is no JSON object: {error}") from None

    async def decode(self, request: CompletionRequest, handoff: bytes, timeout_s: float) -> None:
        """It fetches a KV cache and goes on from there."""
        await self._stream(request, handoff, timeout_s, "a decode")

    def _request(self) -> CompletionRequest:
        return request_for(self.engine, self._model)

    async def _stream(
        self, request: CompletionRequest, handoff: bytes | None, timeout_s: float, what: str
    ) -> None:
        dialect = self.engine.dialect
        body = dialect.decode_body(request, handoff)
        relays: list[Relay] = []

        def start(future: _Future) -> Leg:
            relay = Relay(_Stream(future), limit=_REPLY_LIMIT)
            chat = request.route is Route.CHAT
            relay.begin(dialect.supplies_token_ids, Assembler(chat, False, _REPLY_LIMIT, dialect.name))
            relays.append(relay)
            return self.engine.call(request.route, body, _name(), future, relay)

        try:
            reply = await self._await(start, timeout_s, what)
        finally:
            relays[0].abandon()
        if reply is not None:
            raise ProbeFailed(f"{what} was answered with {reply.status} and no event stream")
        if relays[0].failure is not None:
            raise ProbeFailed(f"{what}: {relays[0].failure_message}")

    async def _get(self, path: str, timeout_s: float) -> Reply:
        return await self._ask(lambda future: self.engine.get(path, future), timeout_s, f"GET {path}")

    async def _ask(self, start: Callable[[_Future], Leg], timeout_s: float, what: str) -> Reply:
        reply = await self._await(start, timeout_s, what)
        assert reply is not None  # without a relay there is no end but a reply
        return reply

    async def _await(self, start: Callable[[_Future], Leg], timeout_s: float, what: str) -> Reply | None:
        future: _Future = asyncio.get_running_loop().create_future()
        leg = start(future)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise ProbeFailed(f"{what} was not answered within {timeout_s:g} s") from None
        except Exhausted as error:
            raise NotProbed(str(error)) from None
        except ConnectionFailed as error:
            raise ProbeFailed(f"it can't be reached: {error}", refused=True) from None
        except LegLost as error:
            raise ProbeFailed(f"{what}: {error}", lost=not error.heard) from None
        finally:
            leg.abort()


def request_for(engine: Engine, model: str) -> CompletionRequest:
    """A request for one token, with a prompt that no cache knows."""
    prompt = f"{os.urandom(8).hex()} {'how are you ' * (_PROMPT_WORDS // 3)}"
    route = engine.dialect.probe_route
    what = {"messages": [{"role": "user", "content": prompt}]} if route is Route.CHAT else {"prompt": prompt}
    raw = orjson.dumps({"model": model, **what, "max_tokens": 1, "temperature": 0})
    return read(route, raw, model=model, headers={})


def _name() -> str:
    return f"probe-{os.urandom(8).hex()}"
