"""A fleet of vLLM engines on this machine's CPU: brought up, described by a fleet.yaml, and taken down.

Each engine is one process group, pinned to one core, with ports of its own and its log in a file. What runs
is written to state.json before anything is waited for, so that another process can always take it down. A
process ID alone could by then be someone else's: it counts only with the start time it had.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from .environment import Say, ensure_model, ensure_python

HOST = "127.0.0.1"
START_TIMEOUT_S = 240.0
TERM_TIMEOUT_S = 10.0  # a polite end; after that the process group is killed
KILL_TIMEOUT_S = 60.0  # on a busy machine the system takes its time to take memory back
POLL_S = 0.2
LOG_TAIL_LINES = 25
LOG_NOISE = re.compile(r'\] Route: |"GET /(health|metrics) ')
# vLLM's block on CPU. Only whole blocks cross from engine to engine.
BLOCK_TOKENS = 128
MAX_MODEL_LEN = 2048


class FleetError(Exception):
    """The fleet could not be started or ended. The message holds the tail of the log that matters."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine that was started, and what is needed to reach it, read its log and end it."""

    id: str
    role: str  # prefill, decode or both
    port: int
    side_channel_port: int  # where NIXL's handshake listens
    core: int
    pid: int  # of the process group's leader
    started: int  # the leader's start time in clock ticks since boot: tells it from a later one of that ID
    log: str

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether the engine's main process runs."""
        return self.pid in _group(self)

    @property
    def healthy(self) -> bool:
        """Whether the engine answers on /health."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5.0) as reply:
                return bool(reply.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines of the engine's log that may tell something."""
        try:
            text = Path(self.log).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            return f"(no log: {error})"
        return "\n".join([line for line in text.splitlines() if not LOG_NOISE.search(line)][-lines:])

    def metrics(self) -> dict[str, float]:
        """The engine's /metrics, by name with labels, less the labels that are the same for all of them."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10.0) as reply:
            return _parse_metrics(reply.read().decode())


@dataclass(frozen=True, slots=True)
class Fleet:
    """Engines that were started together, and the folder that describes them."""

    folder: Path
    model: str
    engines: tuple[Engine, ...]

    @property
    def config(self) -> Path:
        """The fleet file for `narwhal serve --fleet`."""
        return self.folder / "fleet.yaml"

    def by_role(self, role: str) -> Engine:
        """The first engine of a role. Raises LookupError."""
        for engine in self.engines:
            if engine.role == role:
                return engine
        raise LookupError(f"no engine with role {role}")

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """The fleet that `folder` describes, running or not; None if it describes none. Raises FleetError."""
        path = folder / "state.json"
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            return cls(folder, state["model"], tuple(Engine(**engine) for engine in state["engines"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise FleetError(
                f"{path} can't be read ({error!r}); end its engines by hand and remove it"
            ) from error

    @classmethod
    def up(
        cls,
        folder: Path,
        roles: Mapping[str, int],
        *,
        model: str = "tiny",
        engine_args: Sequence[str] = (),
        start_timeout_s: float = START_TIMEOUT_S,
        say: Say = print,
    ) -> Self:
        """Start `roles` (how many engines of each), wait until all are healthy, and return the fleet.

        As a context manager it goes down at the end of the block; else it stays up when this process ends.
        What an earlier run left running in the same folder is ended first. If an engine dies, or is not
        healthy in time, all are ended. Raises SetupError and FleetError.
        """
        python = ensure_python(say)
        weights = ensure_model(python, say)
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if earlier := cls.load(folder):
            earlier.down()
        fleet = cls(folder, model, ())
        try:
            # Taken before any engine starts: the ports are held until the engine they are for is started.
            for engine in _launch(python, weights, folder, roles, model, engine_args):
                fleet = cls(folder, model, (*fleet.engines, engine))
                fleet._write_state()
            fleet._write_config()
            fleet._wait_until_healthy(start_timeout_s, say)
        except BaseException:
            fleet.down()
            raise
        return fleet

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def down(self) -> None:
        """End every process of every engine, and forget the fleet. Raises FleetError if one stays."""
        for signum, timeout_s in ((signal.SIGTERM, TERM_TIMEOUT_S), (signal.SIGKILL, KILL_TIMEOUT_S)):
            for engine in self.engines:
                if _group(engine):
                    with suppress(ProcessLookupError):
                        os.killpg(engine.pid, signum)
            if _wait(lambda: not any(_group(engine) for engine in self.engines), timeout_s):
                break
        else:
            left = {engine.id: _group(engine) for engine in self.engines if _group(engine)}
            raise FleetError(f"these processes did not end within {KILL_TIMEOUT_S:.0f} s of SIGKILL: {left}")
        for engine in self.engines:
            with suppress(ChildProcessError):  # ours only if this process started it
                os.waitpid(engine.pid, 0)
        for path in (self.folder / "state.json", self.config):
            path.unlink(missing_ok=True)

    def _write_state(self) -> None:
        state = {"model": self.model, "engines": [asdict(engine) for engine in self.engines]}
        _write(self.folder / "state.json", json.dumps(state, indent=2) + "\n")

    def _write_config(self) -> None:
        lines = [f"model: {json.dumps(self.model)}", "slo: {ttft_s: 30.0, tpot_s: 1.0}", "engines:"]
        lines += [f'  - {{id: {e.id}, url: "{e.url}", role: {e.role}}}' for e in self.engines]
        _write(self.config, "\n".join(lines) + "\n")

    def _wait_until_healthy(self, timeout_s: float, say: Say) -> None:
        started = time.monotonic()
        waiting = list(self.engines)
        while waiting:
            for engine in list(waiting):
                if engine.healthy:
                    waiting.remove(engine)
                    took_s = time.monotonic() - started
                    say(f"{engine.id} ({engine.role}) is up at {engine.url} after {took_s:.0f} s")
                elif not engine.alive:
                    raise FleetError(
                        f"engine {engine.id} died; the end of {engine.log}:\n{engine.log_tail()}"
                    )
            if waiting and time.monotonic() - started > timeout_s:
                tails = "\n".join(f"the end of {engine.log}:\n{engine.log_tail()}" for engine in waiting)
                names = ", ".join(engine.id for engine in waiting)
                raise FleetError(f"not healthy after {timeout_s:.0f} s: {names}\n{tails}")
            time.sleep(POLL_S)


def _launch(
    python: Path,
    weights: Path,
    folder: Path,
    roles: Mapping[str, int],
    model: str,
    engine_args: Sequence[str],
) -> Iterator[Engine]:
    """Start the engines one after another, without waiting for any."""
    names = [(f"{role[0]}{number}", role) for role, count in roles.items() for number in range(count)]
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as held:
        ports = [(held.enter_context(_held_port()), held.enter_context(_held_port())) for _ in names]
        for (name, role), (http, side), core in zip(names, ports, itertools.cycle(cores), strict=False):
            port, side_port = _release(http), _release(side)
            log = folder / f"{name}.log"
            command = _command(python, weights, model, port, engine_args)
            pid = _spawn(command, weights.parent, _environment(side_port, core), core, log)
            yield Engine(name, role, port, side_port, core, pid, _start_time(pid), str(log))


def _command(python: Path, weights: Path, model: str, port: int, engine_args: Sequence[str]) -> list[str]:
    transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
    options: dict[str, str | int] = {
        "--host": HOST,
        "--port": port,
        "--model": weights.name,
        "--served-model-name": model,
        "--seed": 0,
        "--dtype": "float32",
        "--max-model-len": MAX_MODEL_LEN,
        "--max-num-seqs": 16,
        "--kv-transfer-config": json.dumps(transfer),
        "--tool-call-parser": "hermes",
    }
    flags = ["--enforce-eager", "--enable-prompt-tokens-details", "--enable-auto-tool-choice"]
    pairs = [str(part) for option in options.items() for part in option]
    # The wheel's own `vllm` command fails on its version look-up; the module works.
    return [str(python), "-m", "vllm.entrypoints.openai.api_server", *pairs, *flags, *engine_args]


def _environment(side_channel_port: int, core: int) -> dict[str, str]:
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
        "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel_port),
        "UCX_TLS": "tcp,sm,self",
        "PYTHONUNBUFFERED": "1",
    }


def _spawn(command: Sequence[str], folder: Path, environment: Mapping[str, str], core: int, log: Path) -> int:
    """Start a command in a session of its own, pinned to a core. Returns its process ID."""
    allowed = os.sched_getaffinity(0)
    with log.open("wb") as output:
        os.sched_setaffinity(0, {core})  # the child inherits it
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,  # the model goes by a relative name, which /v1/models repeats
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise FleetError(f"{command[0]} can't be started: {error}") from error
        finally:
            os.sched_setaffinity(0, allowed)
    process.returncode = 0  # `down` reaps it, perhaps in another process: Popen need not warn
    return process.pid


@contextmanager
def _held_port() -> Iterator[socket.socket]:
    with socket.socket() as held:
        held.bind((HOST, 0))
        yield held


def _release(held: socket.socket) -> int:
    port: int = held.getsockname()[1]
    held.close()
    return port


def _group(engine: Engine) -> list[int]:
    """The running processes of an engine's group, zombies left out; none if the group is not the engine's."""
    members = []
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()):
        if (fields := _stat(pid)) is None:
            continue
        state, group, started = fields[0], int(fields[2]), int(fields[19])
        if group != engine.pid or state in ("Z", "X"):
            continue
        if started < engine.started or (pid == engine.pid and started != engine.started):
            return []
        members.append(pid)
    return members


def _start_time(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _parse_metrics(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            head, _, labels = name.rstrip("}").partition("{")
            kept = [
                label
                for label in labels.split(",")
                if label and not label.startswith(("engine=", "model_name="))
            ]
            found[f"{head}{{{','.join(kept)}}}" if kept else head] = float(value)
    return found


def _write(path: Path, text: str) -> None:
    """Write a file whole: nobody reads half of it."""
    half = path.with_name(path.name + ".new")
    half.write_text(text, encoding="utf-8")
    half.replace(path)


def _wait(condition: Callable[[], bool], timeout_s: float) -> bool:
    ends = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > ends:
            return False
        time.sleep(POLL_S)
    return True
