"""`narwhal sim` as a process of its own, and engines that speak TLS."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from narwhal.sim import SimEngine, SimOptions, command, expected_output
from narwhal.sim.faults import FaultName
from tests.http.sim_client import Client, ask
from tests.http.test_sim_engine import CHAT, PREFILL, body_for

CERTIFICATE = Path(__file__).parents[1] / "data" / "tls" / "localhost.pem"
RUN = """
import argparse, sys
from narwhal.sim import command
parser = argparse.ArgumentParser()
command.add_arguments(parser)
sys.exit(command.run(parser.parse_args()))
"""


@asynccontextmanager
async def process(*options: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`narwhal sim` in a process, and its URL."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUN, *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        line = (await child.stdout.readline()).decode()
        yield child, re.findall(r'url: "(.*)"', line)[0]
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


def test_a_handoff_crosses_processes_and_dies_with_its_producer() -> None:
    async def main() -> None:
        engine = SimEngine(SimOptions(role="decode", gone_handoff_s=0.01))
        await engine.start()
        body = body_for(CHAT)
        first = body | {"max_tokens": 1, "kv_transfer_params": PREFILL}
        async with process("--role", "prefill", "--speed", "100") as (child, url):
            handoffs = [(await ask(url, "POST", CHAT, first)).json()["kv_transfer_params"] for _ in range(2)]
            decode = [
                body | {"kv_transfer_params": handoff, "stream": True, "return_token_ids": True}
                for handoff in handoffs
            ]
            good, again = [await ask(engine.url, "POST", CHAT, decode[0]) for _ in range(2)]
            assert good.token_ids == expected_output(body)[0] != again.token_ids
            child.send_signal(signal.SIGKILL)
            await child.wait()
            gone = await ask(engine.url, "POST", CHAT, decode[1])
            assert gone.events[-1]["error"]["code"] == 500
        await engine.stop()

    uvloop.run(main())


def test_engines_that_share_a_pipe_each_write_their_line_whole() -> None:
    async def main() -> None:
        # Such a pipe keeps writes apart: a read gives one.
        here, there = os.pipe2(os.O_DIRECT)
        unbuffered = os.environ | {"PYTHONUNBUFFERED": "1"}
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", RUN, stdout=there, env=unbuffered)
        os.close(there)
        try:
            line = await asyncio.to_thread(os.read, here, 65536)
            assert re.fullmatch(rb'- \{id: sim-\d+, url: "http://[\d.:]+", role: both\}\n', line)
        finally:
            os.close(here)
            child.terminate()
            assert await child.wait() == 0

    uvloop.run(main())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_cleanly_with_streams_running(number: signal.Signals) -> None:
    async def main() -> None:
        async with process("--fault", '{"name": "stall", "after": 1}') as (child, url):
            client = await Client.connect(url)
            waiting = asyncio.create_task(client.ask("POST", CHAT, body_for(CHAT, stream=True)))
            started = b'sim:requests_started_total{leg="whole"} 1.0'
            while started not in (await ask(url, "GET", "/metrics")).body:
                pass
            child.send_signal(number)
            assert await child.wait() == 0
            assert (await waiting).ended == "reset"
            assert child.stderr is not None
            assert await child.stderr.read() == b""
            await client.close()

    uvloop.run(main())


def parse(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(options)


def test_the_faults_are_listed_with_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(parse("--list-faults")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(FaultName)
    assert all(len(line.split()) > 3 for line in lines)


def test_a_port_in_use_is_said_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    async def port_in_use(engine: SimEngine) -> int:
        await engine.start()
        return engine.port

    with asyncio.Runner() as runner:
        engine = SimEngine()
        port = runner.run(port_in_use(engine))
        assert command.run(parse("--port", str(port))) == 1
        said = (
            f"narwhal sim: can't listen on 127.0.0.1 port {port}: Address already in use (--host, --port)\n"
        )
        assert capsys.readouterr().err == said
        runner.run(engine.stop())


def test_what_an_engine_can_not_start_with_is_said_by_the_name_of_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse("--port", "99999")
    assert "--port: '99999' is no port" in capsys.readouterr().err
    assert command.run(parse("--tls-cert", str(tmp_path / "none.pem"))) == 1
    assert (
        "none.pem can't be used: No such file or directory (--tls-cert, --tls-key)" in capsys.readouterr().err
    )
    assert command.run(parse("--host", "192.0.2.1")) == 1  # an address for documentation, no machine's
    assert "can't listen on 192.0.2.1 port 0: Cannot assign requested" in capsys.readouterr().err


def test_a_wrong_fault_is_turned_down_with_the_names_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--fault", "none-such")
    assert "die_after" in capsys.readouterr().err


def test_an_engine_with_a_certificate_speaks_tls_and_can_still_reset() -> None:
    async def main() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        engine = SimEngine(SimOptions(tls=context))
        await engine.start()
        assert engine.url.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
        client = await Client.connect(engine.url, trusting)
        body = body_for(CHAT, stream=True, return_token_ids=True)
        assert (await client.ask("POST", CHAT, body)).token_ids == expected_output(body)[0]
        cut = await client.ask("POST", CHAT, body | {"sim": {"fault": {"name": "die_after", "after": 2}}})
        assert cut.ended != "whole"
        await client.close()
        await engine.stop()

    asyncio.run(main())
