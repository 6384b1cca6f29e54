"""`narwhal check`: what it says of a fleet, engine by engine, and of the fleet file's keys."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from narwhal.checking import keys
from narwhal.config import describe
from narwhal.profiles import store
from narwhal.sim import Fault, FaultName, SimEngine, SimFleet, SimOptions
from tests.http.commands import run, started
from tests.http.test_sim_process import CERTIFICATE

PAGES = Path(__file__).parents[2] / "docs"


def fleet_file(folder: Path, engines: dict[str, tuple[str, str]], **sections: Any) -> str:
    """A fleet file of engines by ID, each with its URL and role."""
    path = folder / "fleet.yaml"
    entries = [{"id": name, "url": url, "role": role} for name, (url, role) in engines.items()]
    base = {"model": "sim-model", "slo": {"ttft_s": 1, "tpot_s": 1}, "engines": entries}
    path.write_text(yaml.safe_dump(base | sections, sort_keys=False))
    return str(path)


async def check(path: str, *options: str, **env: str) -> tuple[int, dict[str, str], str]:
    """The exit status, the paragraphs by the engine they are about, and all that was said."""
    async with started("check", "--fleet", path, *options, COLUMNS="300", **env) as command:
        ended = await command.ended()
    assert ended.err == ""
    told = {}
    for paragraph in ended.out.split("\n\n"):
        name, colon, text = paragraph.strip().partition(": ")
        if colon and " " not in name and "/" not in name:
            told[name] = text
    return ended.code, told, ended.out


@asynccontextmanager
async def answering(answer: Callable[[asyncio.StreamWriter], None]) -> AsyncIterator[str]:
    """A server that reads a request's head, gives one answer, and closes; its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        answer(writer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def foreign(writer: asyncio.StreamWriter) -> None:
    body = b'{"data":[{"id":"sim-model","owned_by":"somebody"}]}'
    writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


def nothing_here(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")


def test_a_fleet_whose_engines_fit_is_said_to_be_usable(tmp_path: Path) -> None:
    async def main() -> None:
        options = SimOptions(api_key="secret", max_model_len=4096)
        async with SimFleet(prefill=1, decode=1, options=options) as fleet, answering(foreign) as other:
            config = fleet.config(engine={"api_key_env": "FLEET_KEY"})
            config["engines"].append({"id": "o", "url": other, "role": "both", "dialect": "openai"})
            path = tmp_path / "fleet.yaml"
            path.write_text(yaml.safe_dump(config))
            code, told, out = await check(str(path), FLEET_KEY="secret")
            assert (code, told) == (0, {})
            assert "3 of 3 engines usable for sim-model" in out
            assert "4096" in out
            assert "only a request shows that" in out.lower()

    asyncio.run(main())


def test_each_engine_that_does_not_fit_is_told_of_with_what_to_do(tmp_path: Path) -> None:
    expected = {
        "gone": ["Connection refused", "Is it running"],
        "sick": ["/health was answered with 503", "log"],
        "mute": ["GET /health was not answered within 2 s", "--timeout"],
        "other_model": ["does not serve the model sim-model, but llama", "--served-model-name sim-model"],
        "locked": ["401", "FLEET_KEY", "not one it takes"],
        "untrusted": ["TLS failed", "engine.ca_file"],
        "plain": ["write https:// in engines[6].url"],
        "foreign": ["nothing says that it is vLLM", "dialect: openai"],
        "no_engine": ["/health", "404", "probably no engine", "engines[8].url"],
        "short": [],
        "good": [],
    }

    async def main() -> None:
        async with AsyncExitStack() as stack:

            async def engine(**options: Any) -> SimEngine:
                one = SimEngine(SimOptions(**options))
                await one.start()
                stack.push_async_callback(one.stop)
                return one

            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(CERTIFICATE)
            gone = await engine()
            sick = await engine()
            sick.faults.set(Fault(FaultName.UNHEALTHY, status=503))
            secret = await engine(tls=tls)
            # Its backlog takes the connection, and nobody ever reads it.
            mute = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            urls = {
                "gone": gone.url,
                "sick": sick.url,
                "mute": f"http://127.0.0.1:{mute.getsockname()[1]}",
                "other_model": (await engine(model="llama")).url,
                "locked": (await engine(api_key="another")).url,
                "untrusted": secret.url,
                "plain": secret.url.replace("https", "http"),
                "foreign": await stack.enter_async_context(answering(foreign)),
                "no_engine": await stack.enter_async_context(answering(nothing_here)),
                "short": (await engine(max_model_len=2048)).url,
                "good": (await engine()).url,
            }
            await gone.stop()  # only now, or another would get its port
            path = fleet_file(
                tmp_path,
                {name: (url, "both") for name, url in urls.items()},
                engine={"api_key_env": "FLEET_KEY"},
            )
            code, told, out = await check(path, "--timeout", "2", FLEET_KEY="secret")
        assert code == 1
        for name, parts in expected.items():
            assert [part for part in parts if part not in told.get(name, "")] == [], told.get(name)
            assert bool(told.get(name)) is bool(parts), told.get(name)
        assert "2048: short" in out
        assert "2 of 11 engines usable" in out
        assert "secret" not in out.replace(path, "")

    asyncio.run(main())


def test_of_handoffs_nothing_is_said_when_no_engine_could_make_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with answering(nothing_here) as one, answering(nothing_here) as other:
            path = fleet_file(tmp_path, {"p": (one, "prefill"), "d": (other, "decode")})
            code, _, out = await check(path)
        assert code == 1
        assert "0 of 2 engines usable" in out
        assert "kv-transfer-config" not in out

    asyncio.run(main())


@pytest.mark.parametrize("content", ['{"format": ', "[]", '{"format": "narwhal-profiles", "version": 99}'])
def test_a_profile_file_that_a_router_would_not_start_with_is_a_problem_of_the_fleet_file(
    tmp_path: Path, content: str
) -> None:
    profiles = tmp_path / "profiles.json"
    profiles.write_text(content)
    path = fleet_file(tmp_path, {"e": ("http://127.0.0.1:9", "both")}, profiles={"path": str(profiles)})
    ended = run("check", "--fleet", path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"{path}: profiles.path: {profiles} is no ")


def test_engines_without_a_profile_are_told_of_and_are_no_problem(tmp_path: Path) -> None:
    async def main() -> None:
        async with SimFleet(both=1) as fleet:
            path = tmp_path / "fleet.yaml"
            path.write_text(yaml.safe_dump(fleet.config(profiles={"path": "profiles.json"})))
            code, _, out = await check(str(path))
            assert code == 0
            assert "profiles.json is not there yet" in out
            store.write(tmp_path / "profiles.json", {})
            code, _, out = await check(str(path))
            assert code == 0
            assert "no profile of engine b0 to go by" in out

    asyncio.run(main())


def test_every_key_of_the_fleet_file_is_printed_with_what_it_allows() -> None:
    ended = run("check", "--keys", COLUMNS="300")
    assert ended.returncode == 0
    for row in describe():
        assert f"{row.path}  (" in ended.stdout
        assert row.allowed in ended.stdout


def test_the_page_on_the_fleet_file_is_what_the_command_prints() -> None:
    assert (PAGES / "configuration.md").read_text() == keys.markdown(), (
        "write it anew: narwhal check --keys --markdown"
    )
