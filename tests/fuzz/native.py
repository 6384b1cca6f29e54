"""The extensions, built for fuzzing: with coverage that libFuzzer reads and, where it runs, AddressSanitizer.

The C files are those of the ordinary build; the objects go to a folder of their own under build/fuzz and are
found before the ordinary ones by `use`.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shlex
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import narwhal._fast

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "fuzz"
COVERAGE = Path(__file__).with_name("coverage.c")
COUNTERS = 1 << 14

_OPTIONS = ["-shared", "-fPIC", "-g1", "-O1", "-fwrapv", "-fno-strict-aliasing", "-fno-omit-frame-pointer"]
# Python's own allocator packs objects into pools, where an overrun would meet the next object. Freed memory
# is kept from use for a megabyte's time only: with the usual 256, the caches see no address twice, and all
# of Python is five times slower. What Python leaks at its exit is not ours.
_SANITIZED = {
    "PYTHONMALLOC": "malloc",
    "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=1:thread_local_quarantine_size_kb=64",
}


@dataclass(frozen=True)
class Native:
    """A build of the extensions, and how a process runs with it."""

    folder: Path
    sanitizer: tuple[Path, ...] = ()  # the libraries to load first

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to load it."""
        if not self.sanitizer:
            return dict(os.environ)
        return os.environ | _SANITIZED | {"LD_PRELOAD": ":".join(map(str, self.sanitizer))}


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[:1]


def _sanitizer() -> tuple[Path, ...]:
    """AddressSanitizer's library, if the compiler has it and this Python runs with it.

    C++'s is loaded with it, or it would not find how exceptions are thrown, which libFuzzer's bindings do.
    """
    found = []
    for name in ("libasan.so", "libstdc++.so.6"):
        command = [*_compiler(), f"-print-file-name={name}"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        found.append(Path(said))
    native = Native(BUILD, tuple(found))
    command = [sys.executable, "-c", "import ctypes"]
    if not all(path.is_absolute() for path in found):
        return ()
    probe = subprocess.run(command, env=native.environment, capture_output=True, check=False)
    return native.sanitizer if probe.returncode == 0 else ()


def build() -> Native:
    """Build what is not up to date."""
    sanitizer = _sanitizer()
    native = Native(BUILD / ("asan" if sanitizer else "plain"), sanitizer)
    native.folder.mkdir(parents=True, exist_ok=True)
    coverage = native.folder / "coverage.o"
    _compile(COVERAGE, coverage, ["-c", "-fPIC", "-O2"])
    options = [*_OPTIONS, "-fsanitize-coverage=trace-pc", f"-I{sysconfig.get_path('include')}", str(coverage)]
    if sanitizer:
        options.append("-fsanitize=address")
    with ThreadPoolExecutor(2) as pool:
        sources = sorted(Path(narwhal._fast.__path__[0]).glob("*.c"))
        done = pool.map(
            lambda source: _compile(source, native.folder / f"{source.stem}.so", options), sources
        )
        list(done)
    return native


def _compile(source: Path, target: Path, options: list[str]) -> None:
    newest = max(path.stat().st_mtime for path in (source, Path(__file__), COVERAGE))
    if not target.exists() or target.stat().st_mtime < newest:
        subprocess.run([*_compiler(), str(source), *options, "-o", str(target)], check=True)


def use(folder: Path) -> None:
    """Have this process import the extensions from there."""
    narwhal._fast.__path__.insert(0, str(folder))


@cache
def guide_fuzzer() -> None:
    """Tell libFuzzer, once, of the counters of the extensions that were imported from a build like this.

    To be called from within atheris.Fuzz: were libFuzzer loaded before, it would not find the custom mutator.
    """
    core = ctypes.CDLL(importlib.import_module("atheris.core_with_libfuzzer").__file__)
    for name, module in sorted(sys.modules.items()):
        if not name.startswith("narwhal._fast.") or not str(module.__file__).endswith(".so"):
            continue
        extension = ctypes.CDLL(module.__file__)
        counters = (ctypes.c_uint8 * COUNTERS).in_dll(extension, "narwhal_counters")
        start = ctypes.addressof(counters)
        # Each counter's address, and flags. There are no real addresses to tell, and nothing prints them.
        table = (ctypes.c_size_t * (2 * COUNTERS))()
        table[::2] = list(range(start, start + COUNTERS))
        _tell(core.__sanitizer_cov_8bit_counters_init, counters)
        _tell(core.__sanitizer_cov_pcs_init, table)
        _KEPT.append(table)


_KEPT: list[Any] = []


def _tell(init: Any, table: Any) -> None:
    start = ctypes.addressof(table)
    init(ctypes.c_void_p(start), ctypes.c_void_p(start + ctypes.sizeof(table)))
