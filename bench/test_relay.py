"""The relay from a read's payload to a write: events as vLLM sends them, token IDs cut out, four a read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from bench.against import measure
from narwhal._fast.outlet import Outlet
from narwhal._fast.relay import Relay

EVENTS = 1000
EVENTS_A_READ = 4


class NullTransport(asyncio.Transport):
    """Takes everything and keeps nothing; without a socket, so that the system's part is left out."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return False


class Owner:
    def on_output(self) -> None:
        pass

    def on_end(self) -> None:
        pass


def event(size: int) -> bytes:
    """One chat event; logprobs make it larger, as they do in life."""
    choice: dict[str, Any] = {
        "index": 0,
        "delta": {"content": " the"},
        "logprobs": None,
        "finish_reason": None,
    }
    data = {
        "id": "chatcmpl-8f0e6f2e5d7c4b3a",
        "object": "chat.completion.chunk",
        "created": 1764449823,
        "model": "tiny",
        "choices": [choice | {"token_ids": [1234]}],
    }
    if size > 300:
        top = [{"token": " the", "logprob": -1.25, "bytes": [32, 116, 104, 101]}] * (size // 62)
        data["choices"] = [
            choice | {"logprobs": {"content": [top[0] | {"top_logprobs": top}]}, "token_ids": [1]}
        ]
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


@pytest.mark.parametrize("size", [250, 2000, 20_000])
def test_relay(benchmark: Any, size: int) -> None:
    read = event(size) * EVENTS_A_READ
    outlet = Outlet()
    outlet.attach(NullTransport())
    relay = Relay(Owner(), outlet=outlet, head=b"HTTP/1.1 200 OK\r\n\r\n")
    relay.begin(True)
    count = EVENTS if size < 10_000 else EVENTS // 10

    def ours() -> None:
        for _ in range(count // EVENTS_A_READ):
            relay.feed(read)

    def obvious() -> None:
        write = NullTransport().write
        tokens = 0
        for _ in range(count // EVENTS_A_READ):
            for block in read.split(b"\n\n")[:-1]:
                data = json.loads(block.removeprefix(b"data: "))
                for choice in data["choices"]:
                    tokens += len(choice.pop("token_ids"))
                out = b"data: " + json.dumps(data).encode() + b"\n\n"
                write(b"%x\r\n%b\r\n" % (len(out), out))

    measure(benchmark, ours, obvious, items=count, size=count * len(read) // EVENTS_A_READ)
    assert relay.failure is None
