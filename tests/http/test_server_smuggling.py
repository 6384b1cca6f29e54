"""What two parsers may read in two ways is refused, and nothing behind it is served."""

from __future__ import annotations

import pytest

from tests.http.support import COMPLETIONS, Routed, body_for, on_router
from tests.http.wire import Reply, Wire, request

BEHIND = request("POST", COMPLETIONS, body_for(COMPLETIONS, max_tokens=1))
LINE = b"POST /v1/completions HTTP/1.1\r\n"
HOST = b"Host: narwhal\r\n"

HEADS = {
    "both lengths": LINE + HOST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
    "both, the other way round": LINE + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n",
    "differing lengths": LINE + HOST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\n",
    "one length twice": LINE + HOST + b"Content-Length: 4\r\nContent-Length: 4\r\n\r\n",
    "a list of lengths": LINE + HOST + b"Content-Length: 4, 4\r\n\r\n",
    "a signed length": LINE + HOST + b"Content-Length: +4\r\n\r\n",
    "a negative length": LINE + HOST + b"Content-Length: -4\r\n\r\n",
    "a hex length": LINE + HOST + b"Content-Length: 0x4\r\n\r\n",
    "an empty length": LINE + HOST + b"Content-Length:\r\n\r\n",
    "a length with a space": LINE + HOST + b"Content-Length: 4 4\r\n\r\n",
    "a length beyond 64 bits": LINE + HOST + b"Content-Length: 18446744073709551620\r\n\r\n",
    "another coding": LINE + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    "no coding": LINE + HOST + b"Transfer-Encoding: identity\r\n\r\n",
    "chunked twice": LINE + HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a disguised coding": LINE + HOST + b"Transfer-Encoding: \x0bchunked\r\n\r\n",
    "chunked in HTTP/1.0": LINE.replace(b"1.1", b"1.0") + HOST + b"Transfer-Encoding: chunked\r\n\r\n",
    "a folded line": LINE + HOST + b"A: b\r\n Content-Length: 4\r\n\r\n",
    "a folded first line": LINE + b" " + HOST + b"\r\n",
    "a bare CR in a value": LINE + HOST + b"A: b\rContent-Length: 4\r\n\r\n",
    "a bare CR before CRLF": LINE + HOST + b"A: b\r\r\n\r\n",
    "a bare LF": LINE + HOST + b"A: b\nContent-Length: 4\r\n\r\n",
    "a bare LF after the request line": LINE[:-2] + b"\n" + HOST + b"\r\n",
    "a bare LF before the empty line": LINE + HOST[:-2] + b"\n\r\n",
    "bare LFs alone": LINE[:-2] + b"\n" + HOST[:-2] + b"\n\n",
    "a space before the colon": LINE + HOST + b"Content-Length : 4\r\n\r\n",
    "a tab before the colon": LINE + HOST + b"Transfer-Encoding\t: chunked\r\n\r\n",
    "a space in a name": LINE + HOST + b"Transfer Encoding: chunked\r\n\r\n",
    "NUL in a value": LINE + HOST + b"A: b\0c\r\n\r\n",
    "NUL in a name": LINE + HOST + b"A\0: b\r\n\r\n",
    "NUL in the target": b"POST /v1\0/completions HTTP/1.1\r\n" + HOST + b"\r\n",
    "NUL first": b"\0" + LINE + HOST + b"\r\n",
    "a line without a colon": LINE + HOST + b"Content-Length 4\r\n\r\n",
    "no name": LINE + HOST + b": 4\r\n\r\n",
    "two hosts": LINE + HOST + HOST + b"\r\n",
    "no host": LINE + b"\r\n",
    "a space before the request line": b" " + LINE + HOST + b"\r\n",
    "two spaces in the request line": LINE.replace(b" /", b"  /") + HOST + b"\r\n",
    "HTTP/0.9": b"POST /v1/completions\r\n" + HOST + b"\r\n",
    "HTTP/1.2": LINE.replace(b"1.1", b"1.2") + HOST + b"\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


def test_a_head_that_may_smuggle_is_refused_and_the_connection_closed() -> None:
    async def run(on: Routed) -> None:
        for name, head in HEADS.items():
            for pieces in ((head + BEHIND,), (head, BEHIND), (head[:9], head[9:] + BEHIND)):
                reply = await refused(on, *pieces)
                assert (name, reply.status, reply.code) == (name, 400, "malformed_http")
                assert reply.error["type"] == "invalid_request_error"
                assert reply.header("x-should-retry") == "false"
            assert (name, on.endings) == (name, {})  # nothing reached a completion route

    on_router(run)


@pytest.mark.parametrize("name", ["bare LFs alone", "a bare LF before the empty line", "NUL first", "TLS"])
def test_what_can_not_become_a_head_any_more_is_refused_without_waiting_for_its_end(name: str) -> None:
    async def run(on: Routed) -> None:
        assert (await refused(on, HEADS[name])).status == 400

    on_router(run)


CHUNKED = LINE + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
BODIES = {
    "no size": b"\r\n{}\r\n0\r\n\r\n",
    "a signed size": b"+2\r\n{}\r\n0\r\n\r\n",
    "a prefixed size": b"0x2\r\n{}\r\n0\r\n\r\n",
    "a size beyond 62 bits": b"fffffffffffffffff\r\n",
    "too few bytes": b"3\r\n{}\r\n0\r\n\r\n",
    "too many bytes": b"1\r\n{}\r\n0\r\n\r\n",
    "a bare LF after the size": b"2\n{}\r\n0\r\n\r\n",
    "a bare LF after the data": b"2\r\n{}\n0\r\n\r\n",
    "a bare LF at the end": b"2\r\n{}\r\n0\r\n\n",
    "a bare CR in an extension": b"2;a\rb\r\n{}\r\n0\r\n\r\n",
    "NUL in an extension": b"2;\0\r\n{}\r\n0\r\n\r\n",
    "a malformed trailer": b"2\r\n{}\r\n0\r\n{}\r\n\r\n",
    "a space before a trailer's colon": b"2\r\n{}\r\n0\r\nA : b\r\n\r\n",
    "an endless size line": b"2;" + b"x" * 2000 + b"\r\n",
    "endless trailers": b"0\r\n" + b"A: b\r\n" * 4000 + b"\r\n",
}


def test_a_malformed_chunked_body_ends_its_request_and_the_connection() -> None:
    async def run(on: Routed) -> None:
        for count, (name, body) in enumerate(BODIES.items(), 1):
            split = (CHUNKED + body[:2], body[2:] + BEHIND)
            for pieces in ((CHUNKED + body + BEHIND,), (CHUNKED, body, BEHIND), split):
                reply = await refused(on, *pieces)
                assert (name, reply.status, reply.code) == (name, 400, "malformed_http")
                assert "chunked" in reply.error["message"]
                assert reply.header("x-request-id")
            assert (name, on.endings) == (name, {"malformed_http": 3 * count})

    on_router(run)


async def refused(on: Routed, *pieces: bytes) -> Reply:
    async with await Wire.connect(on.url) as client:
        await client.send(*pieces)
        reply = await client.reply()
        assert reply.closes
        assert await client.rest() == b""
        return reply


def test_a_refusal_says_what_was_seen_and_what_is_allowed() -> None:
    async def run(on: Routed) -> None:
        reply = await refused(on, HEADS["a signed length"])
        assert reply.error["message"] == (
            "malformed request: Content-Length must be digits, at most 19 of them and at most 2**63-1; "
            "seen 'Content-Length: +4'"
        )
        assert "TLS" in (await refused(on, HEADS["TLS"])).error["message"]

    on_router(run)


def test_an_offered_upgrade_or_tunnel_is_not_taken() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            upgrade = request("GET", "/health", None, "Connection: Upgrade", "Upgrade: websocket")
            assert (await client.ask(upgrade + upgrade)).json()["status"] == "ok"
            assert (await client.reply()).json()["status"] == "ok"
        assert (await refused(on, request("CONNECT", "narwhal:443") + BEHIND)).status == 400

    on_router(run)
