"""The README's recipe for a router before simulated engines works as pasted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from pathlib import Path

from tests.http.commands import WAIT_S, Running, environment
from tests.http.sim_client import ask
from tests.http.test_sim_engine import CHAT

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_two_simulated_engines_and_the_router_start_as_pasted_and_end_together(tmp_path: Path) -> None:
    (recipe,) = re.findall(r"^```\n(\(printf .*?\))$\n```$", README, re.MULTILINE | re.DOTALL)
    assert recipe.count("\n") == 2
    recipe = recipe.replace("serve --fleet sim.yaml", "serve --fleet sim.yaml --port 0")
    command = tmp_path / "narwhal"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m narwhal "$@"\n')
    command.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"

    async def main() -> None:
        # A group of its own, as a terminal gives it; a Ctrl-C goes to all of the group.
        child = await asyncio.create_subprocess_exec(
            "/bin/bash", "-c", recipe, cwd=tmp_path, env=environment(PATH=path, PYTHONPATH=str(ROOT)),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            router = Running(child)
            said = await router.says("narwhal serves my-model")
            assert "2 of 2 engines usable for my-model" in said
            body = {"model": "my-model", "messages": [{"role": "user", "content": "How does a whale sleep?"}]}
            url = re.findall(r"http://[\d.:]+", said.splitlines()[-1])[0]
            assert (await ask(url, "POST", CHAT, body)).status == 200
            os.killpg(child.pid, signal.SIGINT)
            # The engines hold these pipes open as well: their end is the end of all.
            async with asyncio.timeout(WAIT_S):
                await child.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):  # none of the group is left
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()

    asyncio.run(main())
