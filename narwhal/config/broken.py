"""What is probably wrong with a text that is no YAML.

PyYAML tells where it got stuck and what its grammar would have had there. The cause is mostly one of a few,
and often on an earlier line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from narwhal.config.problems import Problem

if TYPE_CHECKING:
    import yaml

_SHOWN = 60  # characters of a line that a message repeats
_GLUED = re.compile(r"(?:- +)?[\w.-]+:(?!//)[^\s]+$")  # `port:8000`, where YAML wants a space
_CONFLICT = re.compile(r"<{7} |={7}$|>{7} ")
_QUOTED = 'the value in quotes: KEY: "VALUE"'
_ALIKE = "the keys of a section indented alike"


def explain(text: str, error: yaml.MarkedYAMLError) -> Problem:
    """The problem, on the line where it can be put right."""
    lines = re.split(r"\r\n|[\r\n\x85\u2028\u2029]", text)  # as PyYAML counts them
    told, context = error.problem or "", error.context or ""
    mark = error.problem_mark or error.context_mark
    number = mark.line if mark else -1
    since = error.context_mark.line if error.context_mark else number
    for where, line in enumerate(lines):
        if _CONFLICT.match(line):
            return _problem(where, f"a merge conflict, {_shown(line)}", "one version of it")
    if "that cannot start any token" in told and mark:
        return _stray(lines[number], number, mark.column)
    if told.startswith("mapping values are not allowed") and mark:
        return _misplaced_colon(lines, number, mark.column)
    if told.startswith("could not find expected ':'"):
        return _glued(lines, since) or _problem(since, f"no colon in {_shown(lines[since])}", "KEY: VALUE")
    if "quoted scalar" in context and "end of stream" in told:
        return _problem(since, "a quote that is not closed", "a second one at the value's end")
    if told.startswith("found unknown escape character"):
        return _problem(number, "a backslash in double quotes", "two of them for one, or single quotes")
    if context.startswith("while parsing a flow"):
        opening, closing = "{}" if "mapping" in context else "[]"
        seen = f"neither `,` nor `{closing}` after an entry (the `{opening}` is on line {since + 1})"
        return _problem(number, seen, f"`,` between entries, `{closing}` at the end")
    if told.startswith("expected <block end>"):
        if "<scalar>" in told:
            return _problem(number, "text after a closing quote", "one pair of quotes around the whole value")
        return _problem(number, "a line that is indented unlike those above it", _ALIKE)
    if told.startswith("found undefined alias"):
        return _problem(number, "a value that begins with * and names no anchor", _QUOTED)
    if "another document" in told:
        return _problem(number, "a second document, after `---`", "one")
    return _problem(number, " ".join(part for part in (context, told) if part), "YAML")


def _problem(number: int, seen: str, allowed: str) -> Problem:
    return Problem("", number + 1, f"broken YAML: {seen}", allowed)


def _stray(line: str, number: int, column: int) -> Problem:
    """A character that nothing begins with."""
    stray = line[column : column + 1]
    if stray != "\t":
        return _problem(number, f"a value that begins with {stray!a}", _QUOTED)
    where = "between words" if line[:column].strip() else "in the indentation"
    return _problem(number, f"a tab {where}", "spaces")


def _misplaced_colon(lines: list[str], number: int, column: int) -> Problem:
    """A colon where no key can be."""
    line = lines[number]
    above = next((one for one in range(number - 1, -1, -1) if lines[one].strip()), -1)
    if ": " in line[:column]:
        return _problem(number, "a second colon followed by a space", _QUOTED)
    glued = _glued(lines, above) if above >= 0 else None
    if glued is not None:
        return glued
    if above >= 0 and ": " in lines[above] and _indentation(line) > _indentation(lines[above]):
        return _problem(number, "a line indented deeper than the one above, which is complete", _ALIKE)
    return _problem(number, "a colon where no key can be", _ALIKE)


def _glued(lines: list[str], number: int) -> Problem | None:
    """The line's missing space, if that is what it lacks."""
    found = _GLUED.match(lines[number].strip())
    if found is None:
        return None
    key, _, value = found[0].partition(":")
    return _problem(number, f"no space after the colon in {_shown(found[0])}", _shown(f"{key}: {value}"))


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _shown(line: str) -> str:
    line = line.strip()
    return ascii(line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "...")
