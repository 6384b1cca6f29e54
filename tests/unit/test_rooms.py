"""A room imports only from rooms to its left in the order of the design; `sim` stands apart, `_fast` below.

Python files are read by their syntax tree, so an import inside a function or for type checking counts too.
Cython files have no such tree; their import lines are read as text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[2] / "narwhal"

# From left to right; rooms in one place may import each other.
ORDER = (
    ("config", "outcomes", "request"),
    ("profiles",),
    ("fleet",),
    ("placement",),
    ("admission",),
    ("engines",),
    ("monitoring",),
    ("accounting",),
    ("serving",),
    ("harness",),
    ("checking",),
    ("profiling",),
    ("operating",),
    ("demo",),
    ("cli",),
)
PLACE = {room: place for place, rooms in enumerate(ORDER) for room in rooms}

# What each room may import, besides itself.
ALLOWED: dict[str, set[str]] = {
    room: {other for other in PLACE if PLACE[other] <= place} | {"_fast"} for room, place in PLACE.items()
}
ALLOWED["harness"] -= {"serving", "fleet", "placement", "admission"}  # it measures anyone's endpoint
ALLOWED["demo"] |= {"sim"}  # it runs simulated engines
ALLOWED["cli"] |= {"sim", "logs"}  # likewise; and it says how the process logs
for room in ("checking", "harness", "operating", "demo", "cli"):
    ALLOWED[room] |= {"arguments"}
ALLOWED["arguments"] = ALLOWED["logs"] = set()
ALLOWED["sim"] = {"profiles", "arguments"}  # an engine knows nothing of the router; it shares the curves
ALLOWED["_fast"] = set()  # for everyone's use, so it uses nobody
ALLOWED["__init__"] = set()
ALLOWED["__main__"] = {"cli"}


class Imported(NamedTuple):
    """One import: where it stands, and the module it names (`narwhal.fleet.table`)."""

    line: int
    module: str


def imports_of_python(text: str, package: list[str]) -> Iterator[Imported]:
    """All of them. `package` is that of the file (`["narwhal", "fleet"]`), for relative imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Imported(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            yield from named(node.lineno, module, [alias.name for alias in node.names])


CYTHON_FROM = re.compile(r"^[ \t]*from[ \t]+([\w.]+)[ \t]+c?import[ \t]+(\([^)]*\)|[^\n#]*)", re.MULTILINE)
CYTHON_IMPORT = re.compile(r"^[ \t]*c?import[ \t]+([^\n#(]+)$", re.MULTILINE)


def imports_of_cython(text: str, package: list[str]) -> Iterator[Imported]:
    """Likewise, read as text."""
    for match in CYTHON_FROM.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        dots = len(match[1]) - len(match[1].lstrip("."))
        base = package[: len(package) + 1 - dots] if dots else []
        module = ".".join([*base, match[1].lstrip(".")]).strip(".")
        yield from named(line, module, re.findall(r"\w+", match[2]))
    for match in CYTHON_IMPORT.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        for name in match[1].split(","):
            yield Imported(line, name.split()[0])


def named(line: int, module: str, names: list[str]) -> Iterator[Imported]:
    """`from narwhal import fleet` imports a room; from a room, the names in it don't matter."""
    if module == "narwhal":
        yield from (Imported(line, f"narwhal.{name}") for name in names)
    else:
        yield Imported(line, module)


def complaints(path: Path, text: str) -> Iterator[str]:
    """What is wrong in one file; `path` is relative to the package's parent (`narwhal/fleet/table.py`)."""
    room = path.with_suffix("").parts[1]
    reader = imports_of_python if path.suffix in (".py", ".pyi") else imports_of_cython
    if room not in ALLOWED:
        yield f"{path}: `{room}` is no room of the design; give it a place in the order of rooms"
        return
    for line, module in reader(text, list(path.parent.parts)):
        parts = module.split(".")
        other = parts[1] if parts[0] == "narwhal" and len(parts) > 1 else room
        is_room = other in ALLOWED or (PACKAGE / other).exists() or (PACKAGE / f"{other}.py").exists()
        if other != room and is_room and other not in ALLOWED[room]:
            allowed = ", ".join(sorted(ALLOWED[room])) or "none"
            yield f"{path}:{line} imports {module}, but of the rooms `{room}` may import only: {allowed}"


def test_each_room_imports_only_from_rooms_to_its_left() -> None:
    files = [path for pattern in ("*.py", "*.pyx", "*.pxd", "*.pyi") for path in PACKAGE.rglob(pattern)]
    assert files
    found = [
        complaint
        for path in sorted(files)
        for complaint in complaints(path.relative_to(PACKAGE.parent), path.read_text())
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("narwhal/profiles/x.py", "from narwhal.fleet.table import Phase"),
        ("narwhal/fleet/x.py", "import narwhal.admission.door"),
        ("narwhal/fleet/x.py", "from narwhal import os, admission"),
        ("narwhal/fleet/x.py", "from ..placement import place"),
        ("narwhal/config/x.py", "def f():\n    from narwhal.profiles import x"),
        ("narwhal/accounting/x.py", "if TYPE_CHECKING:\n    from narwhal.serving import x"),
        ("narwhal/engines/dialects/x.py", "from ...serving.http import x"),
        ("narwhal/serving/x.py", "from narwhal.sim import SimFleet"),
        ("narwhal/sim/x.py", "from narwhal.config import Role"),
        ("narwhal/sim/x.py", "from narwhal._fast.scan import scan"),
        ("narwhal/outcomes.py", "from narwhal.cli import main"),
        ("narwhal/_fast/x.pyx", "from narwhal.outcomes cimport (\n    Ending,\n)"),
        ("narwhal/_fast/x.pyx", "cdef f():\n    from narwhal.request import read"),
        ("narwhal/_fast/x.pxd", "cimport libc.math, narwhal.fleet.table as t"),
        ("narwhal/_fast/x.pyx", "from narwhal import fleet"),
        ("narwhal/_fast/x.pyx", "from ..fleet import table"),
        ("narwhal/lobby/x.py", ""),
    ],
)
def test_an_import_against_the_order_is_found(path: str, text: str) -> None:
    found = list(complaints(Path(path), text))
    assert len(found) == 1
    assert found[0].startswith(path)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "narwhal/admission/x.py",
            "from narwhal.placement.place import place\nfrom narwhal._fast import json",
        ),
        ("narwhal/request.py", "from narwhal.outcomes import Ending\nfrom narwhal._fast.body import Body"),
        (
            "narwhal/sim/x.py",
            "from narwhal import profiles\nfrom narwhal import __version__\nfrom . import y",
        ),
        ("narwhal/cli.py", "import narwhal\nfrom narwhal.sim import SimFleet\nimport asyncio"),
        ("narwhal/_fast/x.pyx", "from libc.string cimport memchr\nfrom narwhal._fast.json cimport (Cursor,)"),
        ("narwhal/_fast/x.pyx", "from .json cimport Cursor\ncimport cython"),
    ],
)
def test_an_import_along_the_order_is_left_alone(path: str, text: str) -> None:
    assert list(complaints(Path(path), text)) == []
