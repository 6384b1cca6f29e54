"""A router between transports made of memory: all of its work for a request, and none of the kernel's.

Nothing here waits for a socket or a clock, so the same requests take the same instructions each time. That is
what the guard counts and what a profile of the router's own work is taken on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from narwhal._fast.link import EngineLink
from narwhal.config import parse
from narwhal.serving.http import ClientConnection
from narwhal.serving.server import Server

FLEET = """
model: stub
slo: {ttft_s: 10, tpot_s: 1}
serving: {prefill_concurrency: 1000, decode_concurrency: 1000}
engines:
  - {id: p0, url: "http://127.0.0.1:8101", role: prefill}
  - {id: d0, url: "http://127.0.0.1:8100", role: decode}
"""

_HANDOFF = (
    b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[1,2,3],"remote_engine_id":"e0",'
    b'"remote_request_id":"r0","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}'
)


class Wire:
    """A transport whose other end is a function."""

    def __init__(self, other_end: Callable[[bytes], None]) -> None:
        self._other_end = other_end

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Nothing is known: in particular no socket, so writes come to `write`."""
        return default

    def write(self, data: bytes) -> None:
        """Hand the bytes over."""
        self._other_end(data)

    def writelines(self, pieces: list[bytes]) -> None:
        """Say that they have come: who is at the other end looks at the head only."""
        self._other_end(pieces[0])

    def get_write_buffer_size(self) -> int:
        """Nothing is ever queued."""
        return 0

    def is_closing(self) -> bool:
        """It stays open."""
        return False

    def pause_reading(self) -> None:
        """Nobody reads ahead."""

    def resume_reading(self) -> None:
        """See pause_reading."""

    def can_write_eof(self) -> bool:
        """It has no halves."""
        return False

    def close(self) -> None:
        """It has no end."""

    def abort(self) -> None:
        """See close."""


class _Engine:
    """An engine that answers at once with what it always answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reply: bytes) -> None:
        self._loop = loop
        self._reply = reply

    def connect(self, pool: Any) -> EngineLink:
        """A link to it, for the pool."""
        link = EngineLink(pool, 1 << 24)

        def take(data: bytes) -> None:
            # A link writes its request in one piece.
            self._loop.call_soon(link.data_received, self._reply)

        link.connection_made(Wire(take))  # type: ignore[arg-type]
        return link


def prefill_reply() -> bytes:
    """What a producer answers."""
    body = (
        b'{"id":"chatcmpl-1","object":"chat.completion","created":1764400000,"model":"stub","choices":'
        b'[{"index":0,"message":{"role":"assistant","content":" a"},"logprobs":null,"finish_reason":"length",'
        b'"stop_reason":null}],"usage":{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1},'
        b'"kv_transfer_params":' + _HANDOFF + b"}"
    )
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )


def event(delta: bytes, more: bytes = b"") -> bytes:
    """One event of a chat's stream, as a chunk."""
    data = (
        b'data: {"id":"chatcmpl-0000000000000001","object":"chat.completion.chunk","created":1764400000,'
        b'"model":"stub","choices":[{"index":0,"delta":' + delta + b',"logprobs":null' + more + b"}]}\n\n"
    )
    return chunk(data)


def chunk(data: bytes) -> bytes:
    """One chunk of chunked coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


TOKEN = event(b'{"content":" @123456789012345"}', b',"finish_reason":null,"token_ids":[12345]')
LAST = event(b'{"content":" @1"}', b',"finish_reason":"length","stop_reason":null,"token_ids":[7]')
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    + event(b'{"role":"assistant","content":""}', b',"finish_reason":null')
)
STREAM_END = (
    LAST
    + chunk(
        b'data: {"id":"chatcmpl-0000000000000001","object":"chat.completion.chunk","created":1764400000,'
        b'"model":"stub","choices":[],"usage":{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1}}\n\n'
    )
    + chunk(b"data: [DONE]\n\n")
    + b"0\r\n\r\n"
)


def chat_request(prompt_bytes: int = 200) -> bytes:
    """A streaming chat with one token of output."""
    prompt = (b"the quick brown fox " * (prompt_bytes // 20 + 1))[:prompt_bytes]
    body = (
        b'{"model":"stub","messages":[{"role":"user","content":"%b"}],"max_tokens":1,"stream":true}' % prompt
    )
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8200\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )


async def serve_requests(count: int, request: bytes) -> None:
    """Serve `count` requests, one after the other, on one connection. Raises RuntimeError if one fails."""
    loop = asyncio.get_running_loop()
    server = Server(parse(FLEET, "fleet"))
    server.attach()
    router = server.router
    assert router is not None
    for engine, reply in zip(router.engines, (prefill_reply(), STREAM_HEAD + STREAM_END), strict=True):
        engine.pool.free(_Engine(loop, reply).connect(engine.pool))
    done = asyncio.Event()

    def take(data: bytes) -> None:
        # An answer's end, or the whole of an error.
        if data.endswith(b"0\r\n\r\n") or not data.startswith((b"HTTP/1.1 200", b"0")):
            done.set()

    connection = ClientConnection(server, loop)
    connection.connection_made(Wire(take))  # type: ignore[arg-type]
    for _ in range(count):
        done.clear()
        connection.data_received(request)
        await done.wait()
        await router.settled()
    counts = router.accounts.counters.snapshot()
    if counts["served"] != count:
        raise RuntimeError(f"{count} requests were to be served: {counts}")
    connection.abort()
    await router.close()
