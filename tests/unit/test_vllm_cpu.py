"""The fleet tool's promises about processes and caches, without a vLLM: small programs stand in for it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tools.vllm_cpu import environment, fleet
from tools.vllm_cpu.fleet import Engine, Fleet

# A leader with a child; neither ends on SIGTERM, and the child says when both are there.
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    print("ready", flush=True)
time.sleep(60)
"""


def silent(_: str) -> None:
    pass


def start(program: str, folder: Path) -> Engine:
    """An engine whose process runs `program` and has said that it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == "ready\n"
    process.returncode = 0  # `down` reaps it
    return Engine(
        "p0", "prefill", 1, 2, 0, process.pid, fleet._start_time(process.pid), str(folder / "p0.log")
    )


def test_down_ends_every_process_of_an_engine_even_those_that_ignore_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "TERM_TIMEOUT_S", 0.1)
    engine = start(STUBBORN, tmp_path)
    assert len(fleet._group(engine)) == 2
    Fleet(tmp_path, "tiny", (engine,)).down()
    assert not fleet._group(engine)


def test_down_works_from_another_process_by_what_the_folder_says(tmp_path: Path) -> None:
    engine = start(STUBBORN.replace("SIG_IGN", "SIG_DFL"), tmp_path)
    Fleet(tmp_path, "tiny", (engine,))._write_state()
    command = [sys.executable, "tools/vllm_cpu_fleet.py"]
    done = subprocess.run([*command, "status", "--dir", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert "not answering" in done.stdout
    done = subprocess.run([*command, "down", "--dir", tmp_path], capture_output=True, text=True)
    assert done.stdout == "ended p0\n"
    assert not engine.alive
    assert Fleet.load(tmp_path) is None
    os.waitpid(engine.pid, 0)


def test_a_process_that_got_a_dead_engines_id_is_left_alone(tmp_path: Path) -> None:
    other = start(STUBBORN, tmp_path)
    stale = replace(other, started=other.started - 1)
    try:
        assert not stale.alive
        assert not fleet._group(stale)
    finally:
        os.killpg(other.pid, 9)
        os.waitpid(other.pid, 0)


def test_an_engine_that_dies_at_the_start_shows_its_log_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "ensure_python", lambda say: Path(sys.executable))
    monkeypatch.setattr(fleet, "ensure_model", lambda python, say: tmp_path)
    programs = iter(("import time; time.sleep(60)", "print('no memory left'); raise SystemExit(3)"))
    monkeypatch.setattr(fleet, "_command", lambda *_: [sys.executable, "-c", next(programs)])
    started: list[Engine] = []
    launch = fleet._launch

    def launch_and_note(*asked: Any) -> Iterator[Engine]:
        for engine in launch(*asked):
            started.append(engine)
            yield engine

    monkeypatch.setattr(fleet, "_launch", launch_and_note)
    with pytest.raises(fleet.FleetError, match=r"engine d0 died; .*\nno memory left"):
        Fleet.up(tmp_path / "state", {"prefill": 1, "decode": 1}, say=silent)
    assert [engine.id for engine in started] == ["p0", "d0"]
    assert not any(fleet._group(engine) for engine in started)
    assert Fleet.load(tmp_path / "state") is None


def test_a_state_file_that_can_not_be_read_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"model": "tiny", "engines": [{"id": "p0"}]}')
    with pytest.raises(fleet.FleetError, match=r"state\.json can't be read"):
        Fleet.load(tmp_path)


def test_what_was_left_half_made_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "thing"
    folder.mkdir(parents=True)
    (folder / "half").touch()

    def make() -> None:
        assert not folder.exists()
        folder.mkdir()

    environment._make_once(folder, make, silent)
    assert [path.name for path in folder.iterdir()] == [environment.MARKER]


def test_two_runs_make_a_thing_once(tmp_path: Path) -> None:
    folder = tmp_path / "thing"
    made: list[int] = []
    making, waiting = threading.Event(), threading.Event()

    def make() -> None:
        making.set()
        assert waiting.wait(10.0)
        folder.mkdir()
        made.append(1)

    def run(say: Callable[[str], None]) -> threading.Thread:
        thread = threading.Thread(target=environment._make_once, args=(folder, make, say))
        thread.start()
        return thread

    first = run(silent)
    assert making.wait(10.0)
    second = run(lambda line: waiting.set())  # says so when it finds that it has to wait
    first.join()
    second.join()
    assert made == [1]


def test_a_step_that_fails_says_which_and_what_it_printed() -> None:
    program = "print('no such version'); raise SystemExit(1)"
    with pytest.raises(
        environment.SetupError, match=r"installing it failed with status 1; .*\nno such version"
    ):
        environment._run([sys.executable, "-c", program], "installing it")
