"""Requests and replies as HTTP/1.1 has them: framing, pipelines, methods, targets."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from narwhal.sim import SimOptions
from tests.http.support import CHAT, COMPLETIONS, Routed, body_for, eventually, on_router
from tests.http.wire import Closed, Reply, Wire, chunked_request, request

SHORT = body_for(COMPLETIONS, "one two three", max_tokens=1)
RAW = orjson.dumps(SHORT)
HEALTH = request("GET", "/health")


def text_of(reply: Reply) -> Any:
    assert reply.status == 200, reply
    return reply.json()["choices"][0]["text"]


def test_a_request_means_the_same_wherever_its_bytes_are_split() -> None:
    async def run(on: Routed) -> None:
        sized = request("POST", COMPLETIONS, RAW)
        chunks = chunked_request(COMPLETIONS, [RAW[:7], RAW[7:]])
        async with await Wire.connect(on.url) as client:
            expected = text_of(await client.ask(sized))
            for whole in (sized, chunks):
                for at in range(1, len(whole)):
                    assert text_of(await client.ask(whole[:at], whole[at:])) == expected
                assert (
                    text_of(await client.ask(*(whole[at : at + 1] for at in range(len(whole))))) == expected
                )

    on_router(run)


def test_a_pipeline_is_answered_in_order_wherever_it_is_split() -> None:
    async def run(on: Routed) -> None:
        stream = {**SHORT, "stream": True, "max_tokens": 3}
        whole = (
            request("POST", COMPLETIONS, stream)
            + HEALTH
            + b"\r\n"
            + chunked_request(CHAT, [b"{", b"}"])
            + request("HEAD", "/ready")
            + request("POST", "/nope", b"x" * 20)
            + request("POST", COMPLETIONS, RAW)
        )
        later = [("GET", 200), ("POST", 400), ("HEAD", 200), ("POST", 404), ("POST", 200)]
        async with await Wire.connect(on.url) as client:
            for at in range(0, len(whole), 3):
                await client.send(whole[:at], whole[at:])
                first = await client.reply()
                assert len(first.events) == 3
                for method, status in later:
                    assert (await client.reply(method=method)).status == status

    on_router(run)


def test_what_is_pipelined_behind_a_stream_waits_for_its_end() -> None:
    async def run(on: Routed) -> None:
        stall = body_for(CHAT, stream=True, sim={"fault": {"name": "stall", "after": 2, "seconds": 0.1}})
        async with await Wire.connect(on.url) as client:
            await client.send(request("POST", CHAT, stall) + HEALTH * 3)
            assert (await client.reply()).body.endswith(b"[DONE]\n\n")
            assert [(await client.reply()).status for _ in range(3)] == [200, 200, 200]

    on_router(run)


def test_a_pipeline_of_any_length_is_read_only_as_fast_as_it_is_answered() -> None:
    """Replies of megabytes of which the client reads none at first must not pile up in the router."""

    async def run(on: Routed) -> None:
        pages = 300
        async with await Wire.connect(on.url, room=65536) as client:
            page = request("GET", "/metrics", None, "Cookie: " + "x" * 500)
            sending = asyncio.ensure_future(client.send(page * pages))
            [connection] = await accepted(on)
            transport = connection._transport
            await eventually(lambda: connection._writing_paused and connection._reading_paused)
            waiting = len(connection._buffer)
            async with await Wire.connect(on.url) as other:
                for _ in range(50):
                    assert (await other.ask(HEALTH)).status == 200
            assert transport.get_write_buffer_size() < 1 << 20
            assert len(connection._buffer) == waiting < 1 << 20
            for _ in range(pages):
                assert (await client.reply()).status == 200
            await sending

    on_router(run)


async def accepted(on: Routed) -> list[Any]:
    await eventually(lambda: on.server._connections)
    return list(on.server._connections)


def test_empty_lines_before_a_request_are_passed_over_however_many() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            for lines in (b"\r\n", b"\r\n" * 3, b"\r\n" * 100_000):
                assert (await client.ask(lines + HEALTH)).status == 200
                assert (await client.ask(lines[:-1], lines[-1:], HEALTH)).status == 200

    on_router(run)


def test_five_thousand_pipelined_requests_need_no_stack() -> None:
    async def run(on: Routed) -> None:
        count = 5000
        async with await Wire.connect(on.url) as client:
            sending = asyncio.ensure_future(client.send(request("GET", "/nope") * count))
            assert {(await client.reply()).status for _ in range(count)} == {404}
            await sending

    on_router(run)


def test_a_long_pipeline_leaves_other_clients_their_turn() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            await client.send(request("GET", "/nope") * 1500)
            first = await asyncio.get_running_loop().sock_recv(client.sock, 1 << 20)
            assert 1 <= first.count(b"HTTP/1.1 404") < 200  # the rest has not been served yet

    on_router(run)


def test_a_body_is_asked_for_only_when_it_is_wanted() -> None:
    async def run(on: Routed) -> None:
        head, _, body = request("POST", COMPLETIONS, RAW, "Expect: 100-continue").partition(b"\r\n\r\n")
        head += b"\r\n\r\n"
        async with await Wire.connect(on.url) as client:
            for _ in range(2):
                assert (await client.ask(head)) == Reply(100, [], b"")
                assert (await client.ask(body)).status == 200
            # Who sends at once needs no asking.
            assert (await client.ask(head + body)).status == 200
        refusals = {
            404: head.replace(b"/v1/completions", b"/v1/nothing"),
            405: head.replace(b"POST", b"PUT"),
            413: request("POST", COMPLETIONS, b"", "Expect: 100-continue").replace(
                b"Content-Length: 0", b"Content-Length: 5000000"
            ),
        }
        for status, refused in refusals.items():
            async with await Wire.connect(on.url) as client:
                reply = await client.ask(refused)
                assert reply.status == status
                assert reply.closes  # the client may send the body all the same, or not
                assert await client.rest() == b""
        async with await Wire.connect(on.url) as client:
            old = head.replace(b"HTTP/1.1", b"HTTP/1.0")
            await client.send(old)
            async with await Wire.connect(on.url) as other:
                assert (await other.ask(HEALTH)).status == 200
            assert client.silent()
            assert (await client.ask(body)).status == 200
            assert await client.rest() == b""

    on_router(run)


@pytest.mark.parametrize("stream", [True, False])
def test_an_old_client_gets_no_chunks_and_a_closed_connection(stream: bool) -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            body = {**SHORT, "stream": stream}
            reply = await client.ask(
                request("POST", COMPLETIONS, body, "Connection: keep-alive", version="1.0")
            )
            assert reply.status == 200
            assert reply.header("transfer-encoding") is None
            assert reply.closes
            assert len(reply.events) == 1 if stream else text_of(reply)
            assert await client.rest() == b""

    on_router(run)


@pytest.mark.parametrize(
    "options", ["close", "Close", "keep-alive, close", "x,close", "close\r\nConnection: x"]
)
def test_a_client_that_asks_for_it_finds_its_connection_closed(options: str) -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            stream = {**SHORT, "stream": True}
            await client.send(request("POST", COMPLETIONS, stream, f"Connection: {options}") + HEALTH)
            reply = await client.reply()
            assert reply.closes
            assert reply.events
            assert await client.rest() == b""

    on_router(run)


def test_head_is_answered_like_get_without_the_body() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            for path in ("/health", "/ready", "/v1/models", "/metrics", "/narwhal/state", "/nope"):
                got = await client.ask(request("GET", path))
                head = await client.ask(request("HEAD", path), method="HEAD")
                assert head.status == got.status
                assert [name for name, _ in head.headers] == [name for name, _ in got.headers]
                assert head.header("content-type") == got.header("content-type")
                if path not in ("/metrics", "/narwhal/state"):
                    assert head.header("content-length") == str(len(got.body))
            assert (await client.ask(request("HEAD", CHAT), method="HEAD")).status == 405
            # Nothing of a body was sent that would now be taken for a reply.
            assert (await client.ask(HEALTH)).status == 200

    on_router(run)


def test_each_path_says_which_methods_it_answers() -> None:
    async def run(on: Routed) -> None:
        allowed = {
            "/health": "GET, HEAD, OPTIONS",
            "/v1/models": "GET, HEAD, OPTIONS",
            "/v1/models/sim-model": "GET, HEAD, OPTIONS",
            CHAT: "POST, OPTIONS",
            COMPLETIONS: "POST, OPTIONS",
            "/narwhal/maintenance": "POST, OPTIONS",
        }
        async with await Wire.connect(on.url) as client:
            for path, allow in allowed.items():
                reply = await client.ask(request("OPTIONS", path))
                assert (reply.status, reply.header("allow"), reply.header("content-length")) == (
                    204,
                    allow,
                    None,
                )
                for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
                    if method in allow:
                        continue
                    reply = await client.ask(request(method, path, b"{}" if method != "GET" else None))
                    assert (reply.status, reply.header("allow")) == (405, allow)
                    assert reply.code == "method_not_allowed"
                    assert reply.header("x-should-retry") == "false"
            assert (await client.ask(request("OPTIONS", "*"))).header("allow") == "GET, HEAD, POST, OPTIONS"
            reply = await client.ask(request("OPTIONS", "/nope"))
            assert (reply.status, reply.code) == (404, "not_found")
        for method in ("BREW", "get"):
            async with await Wire.connect(on.url) as client:
                reply = await client.ask(request(method, "/health"))
                assert (reply.status, reply.code) == (501, "method_unknown")
                assert await client.rest() == b""

    on_router(run)


@pytest.mark.parametrize(
    "target",
    [
        "/health?", "/health?verbose=1", "/health?a=/v1/x?y#", "http://narwhal/health", "HTTP://narwhal:80/health?q",
        "https://u@[::1]:9/health",
    ],
)  # fmt: skip
def test_a_target_may_have_a_query_or_name_the_host(target: str) -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            assert (await client.ask(request("GET", target))).json()["status"] == "ok"

    on_router(run)


@pytest.mark.parametrize("target", ["health", "narwhal:80", "?health", "http//x/health", "x://", "\xe9"])
def test_a_target_that_is_no_path_is_malformed(target: str) -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            reply = await client.ask(request("GET", target))
            assert (reply.status, reply.code) == (400, "malformed_http")
            assert await client.rest() == b""

    on_router(run)


@pytest.mark.parametrize(
    "target", ["/", "/v1", "/health/", "//health", "/%68ealth", "/v1/chat%2Fcompletions", "/v1/models/", "*"]
)
def test_other_paths_are_not_found_and_the_reply_says_what_there_is(target: str) -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            reply = await client.ask(request("GET", target))
            assert (reply.status, reply.code) == (404, "not_found")
            assert "/v1/chat/completions" in reply.error["message"]
            assert "/narwhal/maintenance" in reply.error["message"]
            assert (await client.ask(HEALTH)).status == 200

    on_router(run)


def test_a_model_is_found_by_its_name_with_slashes_as_they_are_or_escaped() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            for name in ("org/a%20m%C3%B6del", "org%2Fa%20m%C3%B6del", "org%2fa%20m%c3%b6del?x=y"):
                reply = await client.ask(request("GET", f"/v1/models/{name}"))
                assert reply.json()["id"] == "org/a mödel"
            assert (await client.ask(request("GET", "/v1/models"))).json()["data"][0]["id"] == "org/a mödel"
            for name in ("org", "org%252Fa%20m%C3%B6del", "%ff"):
                reply = await client.ask(request("GET", f"/v1/models/{name}"))
                assert (reply.status, reply.code, reply.error["param"]) == (404, "model_not_found", "model")

    on_router(run, options=SimOptions(model="org/a mödel"))


def test_a_refused_request_keeps_its_connection_where_the_rest_of_its_body_is_short() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            large = request("POST", COMPLETIONS, b"x" * 200_000)
            reply = await client.ask(large)
            assert (reply.status, reply.closes) == (413, False)
            for pieces in ((large[:1000], large[1000:] + HEALTH), (large + HEALTH,)):
                assert (await client.ask(*pieces)).status == 413
                assert (await client.reply()).status == 200
            # A chunked one, if its end has come already.
            chunks = chunked_request("/nope", [b"x" * 500, b"y"])
            assert (await client.ask(chunks + HEALTH)).status == 404
            assert (await client.reply()).status == 200
            reply = await client.ask(chunks[:-1])
            assert (reply.status, reply.closes) == (404, True)
            await client.send(chunks[-1:] + HEALTH)
            assert await client.rest() == b""

    on_router(run, serving={"max_request_bytes": 1000})


def test_every_completion_reply_has_an_id_of_its_own_and_the_journal_keeps_the_clients() -> None:
    async def run(on: Routed) -> None:
        pieces = [
            request("POST", COMPLETIONS, RAW, "X-Request-Id: mine-1/2:3"),
            request("POST", COMPLETIONS, {**SHORT, "stream": True}, "X-Request-Id: mine two"),
            request("POST", COMPLETIONS, b"[]", "X-Request-Id: " + "x" * 129),
            request("POST", CHAT, b"x" * 2000, "X-Request-Id: big"),
            request("POST", CHAT, b"", "X-Request-Id: \xe9"),
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-ID: cut\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nx\r\n",
        ]
        async with await Wire.connect(on.url) as client:
            replies = [await client.ask(piece) for piece in pieces]
        assert [reply.status for reply in replies] == [200, 200, 400, 413, 400, 400]
        ids = [reply.header("x-request-id") for reply in replies]
        assert len(set(ids)) == len(ids)
        rows = {row["request_id"]: row for row in await on.rows(len(ids))}
        assert [rows[one]["client_request_id"] for one in ids] == [
            "mine-1/2:3",
            None,
            None,
            "big",
            None,
            "cut",
        ]

    on_router(run, serving={"max_request_bytes": 1000})


def test_a_client_that_closes_its_sending_half_has_left() -> None:
    """Documented: a half-closed connection can't be told from one whose client is gone."""

    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            hang = body_for(CHAT, stream=True, sim={"fault": "hang"})
            await client.send(request("POST", CHAT, hang))
            await eventually(lambda: on.fleet.active)
            client.half_close()
            assert await client.rest() == b""
            await eventually(lambda: on.endings == {"disconnected": 1})
        async with await Wire.connect(on.url) as client:
            await client.send(request("POST", CHAT, hang)[:-1])
            client.half_close()
            assert await client.rest() == b""
            await eventually(lambda: on.endings == {"disconnected": 2})
        # What is answered on the spot is answered before the end is seen.
        async with await Wire.connect(on.url) as client:
            await client.send(HEALTH)
            client.half_close()
            assert (await client.reply()).status == 200
            with pytest.raises(Closed):
                await client.reply()

    on_router(run)
