"""A small client of the OpenAI API over real HTTP, which notes when each answer's tokens came.

One connection a request, as the worst of clients do it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httptools
import orjson

from narwhal import __version__
from narwhal._fast.sse import SseDecoder, parse_fields

_READ_BYTES = 65536


class Unanswered(Exception):
    """No whole reply came; the message says why."""


@dataclass(slots=True)
class Answer:
    """What a client saw of one streamed request. Times are monotonic seconds."""

    sent_at: float
    status: int = 0
    request_id: str = ""
    first_at: float | None = None  # the first text
    last_at: float | None = None
    output_tokens: int = 0  # as the stream's usage event says
    error: dict[str, Any] = field(default_factory=dict)  # an envelope's, or that of the event that ended it
    retry_after_s: int | None = None
    complete: bool = False  # [DONE] came

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_at is None else self.first_at - self.sent_at

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None with fewer than two."""
        if self.first_at is None or self.last_at is None or self.output_tokens < 2:
            return None
        return (self.last_at - self.first_at) / (self.output_tokens - 1)


class _Reply:
    """httptools' callbacks for one reply."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.complete = False
        self._body: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        self.complete = True

    def take(self) -> bytes:
        """What came of the body since the last call."""
        data = b"".join(self._body)
        self._body.clear()
        return data


class Client:
    """Asks one server."""

    def __init__(self, host: str, port: int, *, timeout_s: float) -> None:
        """`timeout_s` is for one whole answer."""
        self._host = host
        self._port = port
        self._timeout_s = timeout_s

    async def chat(self, body: dict[str, Any], on_text: Callable[[str], None] | None = None) -> Answer:
        """Stream one chat completion; `on_text` gets each piece as it comes. Raises Unanswered."""
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        answer = Answer(time.monotonic())
        events = SseDecoder()
        refusal = b""

        def take(reply: _Reply) -> None:
            nonlocal refusal
            data = reply.take()
            if reply.status != 200:
                refusal += data
                return
            now = time.monotonic()
            for block in events.feed(data):
                _read_event(block, now, answer, on_text)

        reply = await self._ask("POST", "/v1/chat/completions", orjson.dumps(body), take)
        answer.status = reply.status
        answer.request_id = reply.headers.get(b"x-request-id", b"").decode("latin-1")
        if reply.status != 200:
            answer.error = orjson.loads(refusal)["error"]
            retry_after = reply.headers.get(b"retry-after")
            answer.retry_after_s = None if retry_after is None else int(retry_after)
        return answer

    async def get(self, path: str) -> Any:
        """A page's JSON. Raises Unanswered."""
        pieces: list[bytes] = []
        await self._ask("GET", path, b"", lambda reply: pieces.append(reply.take()))
        return orjson.loads(b"".join(pieces))

    async def _ask(self, method: str, path: str, body: bytes, take: Callable[[_Reply], None]) -> _Reply:
        reply = _Reply()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._exchange(method, path, body, reply, take)
        except TimeoutError:
            raise Unanswered(f"no whole answer within {self._timeout_s:g} s") from None
        except OSError as error:
            raise Unanswered(error.strerror or str(error)) from None
        except httptools.HttpParserError as error:
            raise Unanswered(f"the reply is not HTTP: {error}") from None
        return reply

    async def _exchange(
        self, method: str, path: str, body: bytes, reply: _Reply, take: Callable[[_Reply], None]
    ) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            head = (
                f"{method} {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\nconnection: close\r\n"
                f"user-agent: narwhal/{__version__}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            parser = httptools.HttpResponseParser(reply)
            while not reply.complete:
                data = await reader.read(_READ_BYTES)
                if not data:
                    raise Unanswered("the connection was closed before the answer was complete")
                parser.feed_data(data)
                reply.status = parser.get_status_code()
                take(reply)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def _read_event(block: bytes, now: float, answer: Answer, on_text: Callable[[str], None] | None) -> None:
    data = b"\n".join(parse_fields(block)[1])
    if data == b"[DONE]":
        answer.complete = True
        return
    if not data:
        return
    event = orjson.loads(data)
    if "error" in event:
        answer.error = event["error"]
        return
    if event.get("usage"):
        answer.output_tokens = event["usage"]["completion_tokens"]
    for choice in event["choices"]:
        text = choice["delta"].get("content")
        if text:
            answer.first_at = answer.first_at or now
            answer.last_at = now
            if on_text is not None:
                on_text(text)
