"""What is compiled must be compiled from the files that lie here: Python would not say that it is not."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent.parent / "narwhal"
SOURCES = [
    *sorted(PACKAGE.rglob("*.pyx")),
    *(path.with_suffix(".py") for path in sorted(PACKAGE.rglob("*.pxd")) if path.with_suffix(".py").exists()),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_compiled_module_is_as_new_as_its_source(source: Path) -> None:
    built = source.with_suffix(EXTENSION_SUFFIXES[0])
    types = source.with_suffix(".pxd")
    assert built.exists(), "make build"
    changed = max(path.stat().st_mtime for path in (source, types) if path.exists())
    assert built.stat().st_mtime >= changed, "make build"
