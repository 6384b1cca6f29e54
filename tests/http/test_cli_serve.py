"""`narwhal serve` as a process: how it starts, what it says of a bad start, and how it stops."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

from narwhal.sim import Fault, FaultName, SimFleet
from tests.http.commands import Ended, Running, run, started
from tests.http.sim_client import Answer, Client, ask, message
from tests.http.test_sim_engine import CHAT, body_for

BAD = """\
model: m
slo: {ttft_s: -1, tpot_s: 0.05}
engines:
  - {id: p0, url: "http://127.0.0.1:1", role: prefil}
serving:
  prot: 8000
"""


def fleet_file(folder: Path, fleet: SimFleet, **serving: object) -> str:
    path = folder / "fleet.yaml"
    path.write_text(fleet.yaml(serving=serving))
    return str(path)


class Stream:
    """A streamed answer of which the first bytes are there."""

    def __init__(self, client: Client, begun: bytes) -> None:
        self._client = client
        self._begun = begun

    @classmethod
    async def begin(cls, url: str) -> Stream:
        client = await Client.connect(url)
        client.writer.write(message("POST", CHAT, body_for(CHAT, stream=True)))
        async with asyncio.timeout(10):
            return cls(client, await client.reader.readuntil(b"data: "))

    async def rest(self) -> Answer:
        """The whole answer, once its connection is closed."""
        async with asyncio.timeout(10):
            whole = self._begun + await self._client.reader.read()
        await self._client.close()
        reader = asyncio.StreamReader()
        reader.feed_data(whole)
        reader.feed_eof()
        return await Client.read_from(reader)


async def no_longer_accepts(url: str) -> None:
    """Wait until connections are refused."""
    async with asyncio.timeout(10):
        while True:
            try:
                client = await Client.connect(url)
            except ConnectionError:  # refused; reset, if it was in the line when the door closed
                return
            await client.close()


def is_cut_off(answer: Answer) -> bool:
    """Whether a stream ended with the event that tells its client so."""
    *_, last = answer.blocks
    return answer.ended == "whole" and json.loads(last)["error"]["code"] == "failed"


def test_all_problems_of_a_fleet_file_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(BAD)
    for command in ("serve", "check"):
        ended = run(command, "--fleet", str(path))
        assert (ended.returncode, ended.stdout) == (2, "")
        lines = ended.stderr.splitlines()
        assert [line.split(": ")[0] for line in lines] == [f"{path}:{line}" for line in (2, 4, 6)]
        assert [line.split(": ")[1] for line in lines] == ["slo.ttft_s", "engines[0].role", "serving.prot"]
        assert "did you mean port" in lines[2].split("; allowed: ")[0]


def test_an_address_in_use_is_told_without_a_traceback(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = tmp_path / "fleet.yaml"
        path.write_text(
            'model: m\nslo: {ttft_s: 1, tpot_s: 1}\nengines: [{id: b, url: "http://h:1", role: both}]'
        )
        port = taken.getsockname()[1]
        ended = run("serve", "--fleet", str(path), "--port", str(port))
        assert ended.returncode == 1
        assert f"can't listen on 127.0.0.1 port {port}" in ended.stderr
        assert "--port or serving.port" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_fleet_file_that_is_not_there_is_told_by_name(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    ended = run("serve", "--fleet", str(path))
    assert (ended.returncode, ended.stderr) == (2, f"{path}: can't be read: No such file or directory\n")


def test_without_a_command_the_whole_help_is_shown() -> None:
    ended = run()
    assert (ended.returncode, ended.stdout) == (2, "")
    for command in ("serve", "check", "demo"):
        assert f"\n    {command} " in ended.stderr


def test_a_stop_lets_a_stream_finish_and_takes_no_new_connection(tmp_path: Path) -> None:
    async def stop(router: Running, stall: Fault) -> tuple[Answer, Ended]:
        url = await router.url()
        assert urlsplit(url).port != 9  # the command line outranks the file
        # A connection that idles must not hold the stop up.
        idle = await Client.connect(url)
        assert (await idle.ask("GET", "/health")).status == 200
        stream = await Stream.begin(url)
        router.child.send_signal(signal.SIGTERM)
        await no_longer_accepts(url)
        assert await idle.reader.read() == b""
        await idle.close()
        stall.after = 1000  # the engine goes on
        return await stream.rest(), await router.ended()

    async def main() -> None:
        async with SimFleet(prefill=1, decode=1) as fleet:
            stall = Fault(FaultName.STALL, after=2)
            fleet["d0"].faults.set(stall)
            path = fleet_file(tmp_path, fleet, port=9)
            options = ("--fleet", path, "--port", "0", "--log-format", "json", "--log-level", "debug")
            async with started("serve", *options) as router:
                answer, ended = await stop(router, stall)
        assert answer.ended == "whole"
        assert answer.blocks[-1] == b"[DONE]"
        assert ended.code == 0
        rows = [json.loads(line) for line in ended.err.splitlines()]
        assert rows
        assert all({"at", "level", "logger", "message"} <= row.keys() for row in rows)
        assert rows[-1]["message"] == "stopped"
        assert "requests under way: 1; they have" in ended.err
        # The address stands on standard output, where a script finds it, and nowhere else.
        assert ended.out.count("http://") == 1
        assert not any("http://127" in row["message"] for row in rows)

    asyncio.run(main())


def test_what_does_not_end_in_time_is_ended_with_an_event_that_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with SimFleet(prefill=1, decode=1) as fleet:
            fleet["d0"].faults.set(Fault(FaultName.STALL, after=2))
            path = fleet_file(tmp_path, fleet, port=0, graceful_timeout_s=0.1)
            async with started("serve", "--fleet", path) as router:
                stream = await Stream.begin(await router.url())
                router.child.send_signal(signal.SIGINT)
                assert is_cut_off(await stream.rest())
                ended = await router.ended()
        assert ended.code == 0
        assert "did not end in time" in ended.err

    asyncio.run(main())


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with SimFleet(prefill=1, decode=1) as fleet:
            fleet["d0"].faults.set(Fault(FaultName.STALL, after=2))
            path = fleet_file(tmp_path, fleet, port=0, graceful_timeout_s=3600)
            async with started("serve", "--fleet", path) as router:
                url = await router.url()
                stream = await Stream.begin(url)
                router.child.send_signal(signal.SIGTERM)
                await no_longer_accepts(url)
                router.child.send_signal(signal.SIGTERM)
                assert is_cut_off(await stream.rest())
                ended = await router.ended()
        assert ended.code == 1
        assert "Traceback" not in ended.err

    asyncio.run(main())


def test_a_router_told_to_stop_says_so_to_whoever_asks_on_an_open_connection(tmp_path: Path) -> None:
    async def main() -> None:
        async with SimFleet(prefill=1, decode=1) as fleet:
            fleet["d0"].faults.set(Fault(FaultName.STALL, after=2))
            path = fleet_file(tmp_path, fleet, port=0)
            async with started("serve", "--fleet", path) as router:
                url = await router.url()
                assert (await ask(url, "GET", "/ready")).json() == {"status": "ready"}
                half = await Client.connect(url)
                head, _, rest = message("POST", CHAT, body_for(CHAT)).partition(b"\r\n")
                half.writer.write(head)
                stream = await Stream.begin(url)
                router.child.send_signal(signal.SIGTERM)
                await no_longer_accepts(url)
                half.writer.write(b"\r\n" + rest)
                late = await half.read()
                assert (late.status, late.json()["error"]["code"]) == (503, "stopping")
                await half.close()
                router.child.send_signal(signal.SIGTERM)
                assert is_cut_off(await stream.rest())
                await router.ended()

    asyncio.run(main())
