"""An engine whose every event leaves at a known moment: what a load generator's timing is measured against.

`python -m bench.paced_engine INTERVAL_S [PORT [EVENT_BYTES [COUNT]]]` answers any completion with
`max_tokens` events, one per interval. Their text is so long that an event has EVENT_BYTES, or one short word.
With a COUNT it listens on so many ports, as if it were so many engines. It notes the reading of
time.monotonic() at which each event was sent, and gives a request's at `GET /sent/X-REQUEST-ID`. Streams are
spread over the interval, as those of many engines would be. It stands in for either engine of a split
request, too: a prefill leg gets its handoff at once, and events carry token IDs if asked for them. With an
interval of 0 all events of an answer leave at once.
"""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from typing import Any, cast

import httptools
import orjson
import uvloop

from narwhal._fast.timer import Timer

MODEL = "paced"
_CONTEXT = 1 << 20
_META = {"id": "cmpl-8f0e6f2e4c8b4d0d", "object": "text_completion", "created": 1764400000, "model": MODEL}
_PREFILLED = _META | {
    "choices": [{"index": 0, "text": " word", "message": {"role": "assistant", "content": " word"},
                 "logprobs": None, "finish_reason": "length", "token_ids": [1234]}],
    "kv_transfer_params": {"do_remote_prefill": True, "do_remote_decode": False, "tp_size": 1,
                           "remote_block_ids": [1, 2, 3], "remote_engine_id": "paced",
                           "remote_request_id": "r", "remote_host": "127.0.0.1", "remote_port": 5600},
}  # fmt: skip
_PAGES: dict[bytes, Any] = {
    b"/health": {},
    b"/version": {"version": "0.0.0"},
    b"/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": _CONTEXT}]},
}
_METRICS = b"process_start_time_seconds %d\n" % time.time()
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_PHASES = 64
_PREFILL_S, _TOKEN_S = 0.02, 1e-6  # what a prompt takes outside of a split request
_FRAME = 200  # bytes of an event besides its text, about


def _chunk(value: Any) -> bytes:
    data = b"data: " + (value if isinstance(value, bytes) else orjson.dumps(value)) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(*, chat: bool, ids: bool, size: int, finish: str | None = None) -> bytes:
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    text = " word" * max(1, (size - _FRAME) // 5)
    choice |= {"delta": {"content": text}} if chat else {"text": text}
    return _chunk(_META | {"choices": [choice | ({"token_ids": [1234]} if ids else {})]})


def _prompt_tokens(body: dict[str, Any]) -> int:
    """As many as there are words; a prompt of IDs has as many as it says."""
    asked = [body["prompt"]] if "prompt" in body else [one["content"] for one in body["messages"]]
    return sum(one.count(" ") + 1 if isinstance(one, str) else len(one) for one in asked)


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class _Connection(asyncio.Protocol):
    def __init__(self, engine: _Engine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._target = b""
        self._request_id = ""
        self._body = b""
        self._event = self._last = b""
        self._prompt_tokens = 0
        self.left = self.total = 0
        self.sent = array("d")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.left = 0

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._target, self._body = url, b""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self._request_id = value.decode()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        if self._target.startswith(b"/sent/"):
            self._reply(list(self._engine.sent[self._target[6:].decode()]))
        elif self._target in _PAGES:
            self._reply(_PAGES[self._target])
        elif self._target == b"/metrics":
            self._send(_METRICS)
        elif self._target == b"/tokenize":
            count = _prompt_tokens(orjson.loads(self._body))
            self._reply({"count": count, "max_model_len": _CONTEXT, "tokens": [1234] * count})
        else:
            self._complete(orjson.loads(self._body))

    def _complete(self, body: dict[str, Any]) -> None:
        tokens = self._prompt_tokens = _prompt_tokens(body)
        if body.get("stream") is not True:
            # A leg of a split request costs nothing here; a peer that measures prompts must find a curve.
            prefill_s = 0.0 if body.get("kv_transfer_params") else _PREFILL_S + tokens * _TOKEN_S
            reply = _PREFILLED | {"usage": _usage(tokens, 1)}
            asyncio.get_running_loop().call_later(prefill_s, self._reply, reply)
            return
        chat = self._target.startswith(b"/v1/chat/")
        ids, size = body.get("return_token_ids") is True, self._engine.event_bytes
        self._event = _event(chat=chat, ids=ids, size=size)
        self._last = _event(chat=chat, ids=ids, size=size, finish="length")
        self.left = self.total = body.get("max_tokens") or body["max_completion_tokens"]
        self.sent = self._engine.sent[self._request_id] = array("d")
        if self._engine.paced:
            self._engine.add(self)
        while self.left and not self._engine.paced:
            self.step()

    def _reply(self, value: Any) -> None:
        self._send(orjson.dumps(value))

    def _send(self, body: bytes) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    def step(self) -> None:
        """Send the next event."""
        self.left -= 1
        event = self._event if self.left else self._last
        data = event if self.sent else _HEAD + event
        if self.left == 0:
            usage = _usage(self._prompt_tokens, self.total)
            data += _chunk(_META | {"choices": [], "usage": usage}) + _chunk(b"[DONE]") + b"0\r\n\r\n"
        self.sent.append(time.monotonic())
        self._transport.write(data)


class _Engine:
    def __init__(self, interval_s: float, event_bytes: int) -> None:
        self.paced = interval_s > 0
        self.event_bytes = event_bytes
        self._tick_s = interval_s / _PHASES
        self._streams: list[list[_Connection]] = [[] for _ in range(_PHASES)]
        self._next = 0
        self._newest = 0
        self._due = time.monotonic()
        self.sent: dict[str, array[float]] = {}
        self._timer = Timer(asyncio.get_running_loop(), self._tick)
        if self.paced:
            self._timer.set(self._due)

    def add(self, stream: _Connection) -> None:
        # Evenly, so that no tick has a crowd to send to.
        self._newest = (self._newest + 1) % _PHASES
        self._streams[self._newest].append(stream)

    def _tick(self) -> None:
        phase, self._next = self._next, (self._next + 1) % _PHASES
        for stream in self._streams[phase]:
            if stream.left:
                stream.step()
        self._streams[phase] = [stream for stream in self._streams[phase] if stream.left]
        # A late tick must not slow the pace; a pause of more than an interval is not made up for.
        self._due = max(self._due + self._tick_s, time.monotonic() - _PHASES * self._tick_s)
        self._timer.set(self._due)


async def _serve(interval_s: float, port: int = 0, event_bytes: int = 0, count: int = 1) -> None:
    loop = asyncio.get_running_loop()
    engine = _Engine(interval_s, event_bytes)
    servers = [
        await loop.create_server(lambda: _Connection(engine), "127.0.0.1", port, backlog=4096)
        for _ in range(count)
    ]
    print(*(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    uvloop.run(_serve(float(sys.argv[1]), *map(int, sys.argv[2:])))
