"""What an awkward client or engine can make the router keep, tell, or do: no more than it should."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from typing import Any

import orjson
import pytest

from narwhal.logs import set_up_logging
from narwhal.serving.exchange import Exchange
from tests.http.sim_client import message
from tests.http.support import CHAT, COMPLETIONS, Routed, body_for, eventually, on_router

SECRET = "the narwhal's own secret"


def exchanges() -> int:
    return sum(isinstance(one, Exchange) for one in gc.get_objects())


@pytest.mark.parametrize("stream", [True, False])
def test_nothing_of_a_request_stays_once_it_has_ended(stream: bool) -> None:
    # Not until the garbage collector comes by, either: whole answers are large, and it comes by seldom.
    async def test(where: Routed) -> None:
        gc.collect()
        gc.disable()
        try:
            for fault in (None, "ids_missing", "bad_status"):
                wish = {"sim": {"fault": {"name": fault, "leg": "decode"}}} if fault else {}
                await where.ask(CHAT, body_for(CHAT, stream=stream) | wish)
                await where.ask(CHAT, {"model": 7})
            await eventually(lambda: not where.server._connections, "the clients are gone")
            assert exchanges() == 0
        finally:
            gc.enable()

    on_router(test)


def test_a_client_that_leaves_behind_a_long_pipeline_is_noticed() -> None:
    # Reading pauses behind so many later requests, and with it the notice of the connection's end.
    async def test(where: Routed) -> None:
        for reset in (False, True):
            client = await where.connect()
            slow = body_for(COMPLETIONS, sim={"fault": {"name": "hang", "leg": "decode"}})
            client.writer.write(message("POST", COMPLETIONS, slow))
            await eventually(lambda: where.fleet["d0"].stats["decode"].active == 1, "it decodes")
            client.writer.write(message("GET", "/health") * 4000)
            await eventually(
                lambda: any(one._reading_paused for one in where.server._connections), "reading has paused"
            )
            if reset:
                client.writer.transport.abort()
            else:
                client.writer.close()
            await eventually(lambda: not where.counts["in_flight"], "its leaving was noticed")
        assert where.endings == {"disconnected": 2}

    on_router(test)


def test_a_whole_answer_that_nobody_reads_is_held_and_not_served() -> None:
    async def test(where: Routed) -> None:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        host, port = where.url.removeprefix("http://").split(":")
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        event = {"choices": [{"index": 0, "delta": {"content": "x" * 900_000}, "token_ids": [1]}]}
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        events = [f"data: {orjson.dumps(one).decode()}\n\n" for one in [event] * 14 + [end]]
        body = body_for(CHAT, sim={"events": [*events, "data: [DONE]\n\n"]})
        await asyncio.get_running_loop().sock_sendall(sock, message("POST", CHAT, body))
        await eventually(lambda: not where.fleet.active and sum(where.seats) == 0, "the engines are done")
        assert (where.door.held, where.endings) == (1, {})
        sock.close()
        await eventually(lambda: where.endings == {"disconnected": 1}, "it was not served")

    on_router(test, serving={"max_request_bytes": 16 << 20, "max_response_bytes": 16 << 20})


def test_an_engine_that_says_anything_at_all_is_not_silent() -> None:
    ping = ": ping\n\n"
    hello = {"choices": [{"index": 0, "delta": {"content": "hi"}, "token_ids": [1]}]}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    first, last = (f"data: {orjson.dumps(event).decode()}\n\n" for event in (hello, end))

    async def test(where: Routed) -> None:
        wish = {"events": [first, *[ping] * 400, last, "data: [DONE]\n\n"]}
        answer = await where.ask(CHAT, body_for(CHAT, stream=True, sim=wish), wait_s=30)
        assert answer.body.count(b": ping") == 400
        assert where.endings == {"served": 1}

    on_router(test, serving={"stream_idle_timeout_s": 0.2})


def test_an_event_with_empty_data_passes_as_one_without() -> None:
    hello = {"choices": [{"index": 0, "delta": {"content": "hi"}, "token_ids": [1], "finish_reason": "stop"}]}
    text = f"data: {orjson.dumps(hello).decode()}\n\n"

    async def test(where: Routed) -> None:
        for empty in ("data:\n\n", "data: \n\n", "data\n\n"):
            wish = {"events": [empty, text, empty, "data: [DONE]\n\n"]}
            answer = await where.ask(CHAT, body_for(CHAT, stream=True, sim=wish))
            assert answer.ended == "whole"
            assert empty.encode() in answer.body
            assert (await where.ask(CHAT, body_for(CHAT, sim=wish))).json()["choices"][0]["message"][
                "content"
            ]
        assert where.endings == {"served": 6}

    on_router(test)


@pytest.mark.parametrize("status", [400, 500])
def test_what_an_engine_quotes_reaches_its_client_but_neither_the_journal_nor_the_log(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    quote = f"bad prompt: {SECRET}\nERROR forged"

    async def test(where: Routed) -> None:
        error: dict[str, Any] = {"error": {"message": quote, "code": status}}
        wish = {"events": [f"data: {orjson.dumps(error).decode()}\n\n"]}
        answer = await where.ask(CHAT, body_for(CHAT, stream=True, sim=wish))
        assert SECRET in answer.json()["error"]["message"]
        assert answer.status == status
        assert SECRET not in orjson.dumps(await where.row()).decode()
        assert SECRET not in caplog.text

    on_router(test, serving={"max_attempts": 1})


def test_a_line_of_the_log_is_one_line_whatever_it_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        set_up_logging("info", "text")
        logging.getLogger("narwhal").warning("it said %s", "a\nERROR forged\x1b[31m")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    (line,) = capsys.readouterr().err.splitlines()
    assert "a\\nERROR forged\\x1b[31m" in line


def test_stream_options_of_any_size_are_an_answer_and_no_fault_of_the_routers() -> None:
    async def test(where: Routed) -> None:
        options = {f"option{number}": number for number in range(5000)}
        answer = await where.ask(CHAT, body_for(CHAT, stream=True, stream_options=options))
        assert (answer.status, answer.json()["error"]["param"]) == (400, "stream_options")

    on_router(test)
