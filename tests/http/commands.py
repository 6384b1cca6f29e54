"""The command `narwhal` as a process of its own, as a user runs it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

WAIT_S = 30.0
_URL = re.compile(r"http://[\w.:\[\]]+")
# What would change how a command writes.
_NOT_PASSED_ON = ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM")


def environment(**more: str) -> Mapping[str, str]:
    """The environment for a command."""
    return {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON} | more


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "narwhal", *args],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=environment(**env),
        check=False,
    )


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Running:
    """A command that runs."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self.child = child
        self.said = ""

    async def says(self, text: str) -> str:
        """Wait for a line with this text on its standard output; all lines up to there."""
        assert self.child.stdout is not None
        async with asyncio.timeout(WAIT_S):
            while text not in self.said:
                line = await self.child.stdout.readline()
                assert line, f"it ended without {text!r}; it said {self.said!r}"
                self.said += line.decode()
        return self.said

    async def url(self) -> str:
        """The URL it says that it serves on."""
        found = _URL.search(await self.says("http://"))
        assert found
        return found[0]

    async def ended(self) -> Ended:
        """Wait for its end."""
        async with asyncio.timeout(WAIT_S):
            out, err = await self.child.communicate()
        assert self.child.returncode is not None
        return Ended(self.child.returncode, self.said + out.decode(), err.decode())


@asynccontextmanager
async def process(*command: str, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process with pipes, which is ended at the latest when the block is left."""
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment(**env)
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
            await child.communicate()


@asynccontextmanager
async def started(*args: str, **env: str) -> AsyncIterator[Running]:
    """`narwhal` in a process."""
    async with process(sys.executable, "-m", "narwhal", *args, **env) as child:
        yield Running(child)


async def output(*command: str) -> str:
    """What a process prints, which must end well."""
    async with process(*command) as child, asyncio.timeout(WAIT_S):
        out, err = await child.communicate()
        assert child.returncode == 0, err.decode()
        return out.decode()
