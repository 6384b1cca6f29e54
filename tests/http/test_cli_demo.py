"""`narwhal demo` as a process: what it shows in a pipe and in a terminal, and that what it prints can be
pasted."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import socket
import subprocess
import sys

import pytest

from tests.http.commands import WAIT_S, Running, environment, output, run, started


def test_the_demo_in_a_pipe_prints_plain_text_and_its_books_agree() -> None:
    async def main() -> None:
        async with started("demo", "--load-seconds", "0.5") as demo:
            ended = await demo.ended()
        assert (ended.code, ended.err) == (0, "")
        out = ended.out
        assert "\x1b" not in out
        assert "\r" not in out
        assert "One engine read your prompt" in out
        assert re.search(r"Prefill on p\d, decode on d\d", out)
        for row in ("TTFT, steady", "TTFT, burst", "TPOT, all"):
            assert re.search(rf"{row} +[\d.]+ ms +[\d.]+ ms +[\d.]+ ms +\d+ ms +\d+%", out), out
        assert re.search(r"Goodput: of [\d.]+ requests per second, [\d.]+ met both", out)
        assert re.search(r"Refused: \d+ with 429 queue_full: .*Retry-After: 1", out, re.DOTALL)
        assert "The router's books agree" in out

    asyncio.run(main())


async def _snippets(demo: Running) -> tuple[str, str]:
    said = await demo.says("Stop: Ctrl-C")
    curl = re.search(r"^curl .*$", said, re.MULTILINE)
    python = re.search(r"^from openai import .*\n.*\n.*$", said, re.MULTILINE)
    assert curl
    assert python
    return curl[0], python[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_the_serving_demo_prints_works_as_pasted_until_it_is_stopped(number: signal.Signals) -> None:
    async def main() -> None:
        async with started("demo", "--serve") as demo:
            curl, python = await _snippets(demo)
            if number is signal.SIGINT:
                async with asyncio.TaskGroup() as group:
                    streamed = group.create_task(output("/bin/bash", "-c", curl))
                    answer = group.create_task(output(sys.executable, "-c", python))
                assert streamed.result().rstrip().endswith("data: [DONE]")
                assert answer.result().startswith("One engine read your prompt")
            demo.child.send_signal(number)
            ended = await demo.ended()
        assert (ended.code, ended.err) == (0, "")

    asyncio.run(main())


def test_a_port_in_use_is_told_with_the_option_that_sets_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("demo", "--port", str(port))
    assert ended.returncode == 1
    assert (
        ended.stderr
        == f"narwhal demo: can't listen on 127.0.0.1 port {port}: Address already in use (--port)\n"
    )


def _until(terminal: int, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        seen += os.read(terminal, 4096)
    return seen


def _rest(terminal: int) -> bytes:
    rest = b""
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:  # what Linux says of a terminal that nobody has open any more
            return rest
        rest += data


def test_in_a_terminal_the_load_has_a_progress_bar_and_ctrl_c_ends_it_cleanly() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "narwhal", "demo"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="xterm", NO_COLOR="1"),
        start_new_session=True,
    ) as demo:
        os.close(theirs)
        try:
            seen = _until(ours, b"answered")
            demo.send_signal(signal.SIGINT)
            seen += _rest(ours)
            assert demo.wait(WAIT_S) == 130
        finally:
            if demo.poll() is None:
                demo.kill()
            os.close(ours)
    assert b"of 125 answered" in seen
    assert b"\x1b[?25h" in seen  # the cursor is shown again
    assert b"\x1b[3" not in seen  # no colour
    assert b"Traceback" not in seen
