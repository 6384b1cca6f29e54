"""The side-by-side bench: other routers are taken in where they are found, and left out where they fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.http.commands import WAIT_S, environment

# What stands in for narwhal-inference: it passes bytes on to the decode engine of its fleet file.
PASSING_ON = """
import asyncio, json, sys
fleet, port = (sys.argv[sys.argv.index(name) + 1] for name in ("--fleet", "--port"))
engines = {engine["role"]: engine["url"] for engine in json.load(open(fleet))["engines"]}
assert set(engines) == {"prefill", "decode"}

async def copy(source, sink):
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    sink.close()

async def client(reader, writer):
    there, back = await asyncio.open_connection("127.0.0.1", int(engines["decode"].rpartition(":")[2]))
    await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)

async def serve():
    async with await asyncio.start_server(client, "127.0.0.1", int(port)) as server:
        await server.serve_forever()

asyncio.run(serve())
"""


def compare(folder: Path, **commands: str) -> str:
    """What the bench prints where only these commands can be found, which are Python texts."""
    for name, text in commands.items():
        command = folder / name.replace("_", "-")
        command.write_text(f"#!{sys.executable}\n{text}")
        command.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "bench.compare", "--rounds", "1", "--seconds", "0.2", "--streams", "4"],
        capture_output=True, text=True, timeout=3 * WAIT_S, env=environment(PATH=str(folder)), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def rows(printed: str, name: str) -> list[list[str]]:
    """The router's rows in the tables."""
    found = [line.split() for line in printed.splitlines() if line.strip().startswith(f"{name} ")]
    return [row for row in found if row[1] not in ("to", "failed,")]


def assert_measured(row: list[str]) -> None:
    assert float(row[1]) > 0
    assert row[-1] != "×"
    assert not row[-1].isdigit()  # none failed


def test_each_case_is_measured_and_nothing_fails(tmp_path: Path) -> None:
    printed = compare(tmp_path)
    assert len(rows(printed, "narwhal")) == 4
    for row in rows(printed, "narwhal"):
        assert_measured(row)
    assert "Not on the PATH, so left out: narwhal-serve" in printed


def test_narwhal_inference_is_taken_in_if_it_is_installed(tmp_path: Path) -> None:
    printed = compare(tmp_path, narwhal_serve=PASSING_ON, narwhal_profile="")
    assert len(rows(printed, "narwhal-inference")) == 4
    for row in rows(printed, "narwhal-inference"):
        assert_measured(row)


def test_routers_that_fail_are_left_out_with_what_they_said(tmp_path: Path) -> None:
    printed = compare(
        tmp_path,
        narwhal_serve=PASSING_ON,
        narwhal_profile="raise SystemExit('[p0] no curve fits')",
        vllm_router="print('starting', flush=True); raise SystemExit('no such option')",
    )
    assert len(rows(printed, "narwhal")) == 4  # the others are measured all the same
    assert not rows(printed, "narwhal-inference") + rows(printed, "vllm-router")
    printed = " ".join(printed.split())
    said = "narwhal-profile ended with status 1: [p0] no curve fits"
    assert f"narwhal-inference failed, so it is left out: {said}" in printed
    assert (
        "vllm-router failed, so it is left out: it ended with status 1: starting; no such option" in printed
    )
    assert "Traceback" not in printed
