"""Builds the Cython extensions of narwhal/_fast; everything else is in pyproject.toml."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DIRECTIVES = {
    "language_level": "3",
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": True,
}

extensions = [
    Extension(f"narwhal._fast.{path.stem}", [str(path)], extra_compile_args=["-O3", "-fno-strict-aliasing"])
    for path in sorted(Path("narwhal/_fast").glob("*.pyx"))
]

setup(ext_modules=cythonize(extensions, compiler_directives=DIRECTIVES, nthreads=0))
