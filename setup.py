"""Builds the Cython extensions; everything else is in pyproject.toml.

These are the modules of narwhal/_fast, and the plain Python modules beside which a .pxd lies: it gives their
classes C types and nothing else. docs/design.md says why they are compiled.
"""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

FAST = {
    "language_level": "3",
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": True,
}
# Here Python's own meaning of indices, division and annotations holds.
TYPED = {"language_level": "3", "annotation_typing": False, "cpow": True, "embedsignature": True}

FLAGS = ["-g0", "-fno-strict-aliasing", "-Wno-maybe-uninitialized"]
QUIET = "--quiet" in sys.argv  # setuptools' option, which Cython does not see
JOBS = len(os.sched_getaffinity(0))


def extension(path: Path, optimisation: str) -> Extension:
    """The module that a source file makes."""
    name = ".".join(path.with_suffix("").parts)
    return Extension(name, [str(path)], extra_compile_args=[optimisation, *FLAGS])


package = Path("narwhal")
typed = [
    path.with_suffix(".py") for path in sorted(package.rglob("*.pxd")) if path.with_suffix(".py").exists()
]
modules = [
    *cythonize(
        [extension(path, "-O3") for path in sorted(package.glob("_fast/*.pyx"))],
        compiler_directives=FAST,
        nthreads=JOBS,
        quiet=QUIET,
    ),
    *cythonize(
        [extension(path, "-O1") for path in typed], compiler_directives=TYPED, nthreads=JOBS, quiet=QUIET
    ),
]
# The longest first, so that no core is left alone with one at the end.
modules.sort(key=lambda module: Path(module.sources[0]).stat().st_size, reverse=True)
setup(
    ext_modules=modules,
    options={"build_ext": {"parallel": JOBS}},
)
