"""Whatever bytes come, the server answers or closes, counts right, logs no fault, serves who comes next."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.http.support import CHAT, COMPLETIONS, Routed, body_for, eventually, routed
from tests.http.wire import Closed, Wire, chunked_request, request

SHORT = body_for(COMPLETIONS, max_tokens=1)
WHOLE = [
    request("GET", "/health"),
    request("GET", "/narwhal/state"),
    request("GET", "/nope", b"x" * 30),
    request("OPTIONS", "*", None, "Connection: close"),
    request("POST", COMPLETIONS, SHORT),
    request("POST", COMPLETIONS, {**SHORT, "stream": True}, version="1.0"),
    request("POST", CHAT, body_for(CHAT, max_tokens=2, stream=True), "Connection: keep-alive"),
    request("POST", CHAT, b"{}", "Expect: 100-continue"),
    request("POST", COMPLETIONS, b"x" * 3000),
    chunked_request(COMPLETIONS, [b"{", b'"model": null}']),
    chunked_request(CHAT, [b"x" * 1500] * 2, "Trailer: a"),
    request("POST", "/narwhal/maintenance", {"on": False}),
]
SPLICES = st.sampled_from(
    [
        b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b";", b",", b"0", b"-", b"\xff", b"\r\n\r\n", b"0\r\n\r\n",
        b"{", b'"',
        b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n",
        b"Expect: 100-continue\r\n", b"HTTP/1.1", b"HTTP/1.0",
    ]
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A pipeline of good requests with a few spots damaged."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(WHOLE), min_size=1, max_size=4))))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(data)))
        cut = draw(st.sampled_from([0, 0, 1, 2, 7, 40]))
        data[at : at + cut] = draw(SPLICES)
    return bytes(data)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[bytes], str]:
    """What one client sends, in pieces, and what it does then."""
    data = draw(st.one_of(mutated(), mutated(), mutated(), st.binary(max_size=200)))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return pieces, draw(st.sampled_from(["stay", "stay", "leave", "half close", "reset"]))


@pytest.fixture
def on() -> Iterator[tuple[asyncio.Runner, Routed]]:
    """A router that is impatient with clients, over many tries."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stack = contextlib.AsyncExitStack()
        limits = dict.fromkeys(("head_timeout_s", "body_timeout_s", "idle_timeout_s"), 0.05)
        where = routed(serving={**limits, "max_request_bytes": 2000})
        routed_here = runner.run(stack.enter_async_context(where))
        yield runner, routed_here
        runner.run(stack.aclose())


async def talk(on: Routed, pieces: list[bytes], then: str) -> None:
    async with await Wire.connect(on.url) as client:
        with contextlib.suppress(OSError):  # it may be cut off amid sending
            await client.send(*filter(None, pieces))
        match then:
            case "leave":
                return
            case "reset":
                client.reset()
                return
            case "half close":
                try:
                    client.half_close()
                except OSError:
                    return
        # What comes back are whole replies; then, as nothing more is sent, the connection is closed.
        try:
            while True:
                reply = await client.reply()
                if reply.status >= 400:
                    assert reply.error
        except Closed as closed:
            if then != "half close" and closed.seen:
                raise
        except ConnectionResetError:
            pass


def test_no_bytes_bring_the_server_down(
    on: tuple[asyncio.Runner, Routed], caplog: pytest.LogCaptureFixture
) -> None:
    runner, router = on

    async def all_at_once(talks: list[tuple[list[bytes], str]]) -> None:
        await asyncio.gather(*(talk(router, *one) for one in talks))
        await eventually(lambda: not router.server._connections)
        await eventually(lambda: not router.counts["in_flight"])
        assert router.router.accounts.counters.law_holds()
        async with await Wire.connect(router.url) as client:
            assert (await client.ask(request("GET", "/health"))).status == 200

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(conversations(), min_size=8, max_size=24))
    def fuzz(talks: list[tuple[list[bytes], str]]) -> None:
        runner.run(all_at_once(talks))

    fuzz()
    assert router.counts["served"] > 10
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
