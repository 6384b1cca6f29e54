"""YAML to nodes that know their lines.

PyYAML's node graph is kept as it is, since plain Python values would have lost their lines. Two things are
done to it: a mapping's keys are read with duplicates found and merge keys (`<<`) resolved, and scalars are
read more strictly than YAML 1.1 does, where `1:30` is ninety and `010` is eight.

Every input ends in a node or a ConfigError: the size, the depth of nesting and the effort of merging are
bounded.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TypeGuard

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from narwhal.config.broken import explain
from narwhal.config.problems import ConfigError, Problem

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 32
_SHOWN = 60  # characters of a value that a message repeats

_TAG = "tag:yaml.org,2002:"
_MERGE = _TAG + "merge"
_PLAIN = (_TAG + "map", _TAG + "seq")
_STR, _INT, _FLOAT, _BOOL, _NULL = (_TAG + name for name in ("str", "int", "float", "bool", "null"))
_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)\Z")
_REAL = re.compile(r"[-+]?(?:[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")
_INT_DIGITS = 18  # more is out of every key's range; as a float it is refused for that and costs nothing


class Unreadable:
    """A value that is no text, number, Boolean or null: a list, a mapping, a date, an octal number."""


UNREADABLE = Unreadable()
Scalar = str | int | float | bool | None | Unreadable


class _Loader(yaml.SafeLoader):
    """SafeLoader, but nesting is bounded (the composer calls itself for each level)."""

    depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_DEPTH} levels of nesting", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def compose(text: str | bytes, source: str) -> Node | None:
    """The root node of the one document in `text`; None when there is nothing in it.

    Raises ConfigError for what is no YAML, or more of it than is reasonable.
    """
    size = len(text)
    if size > MAX_FILE_BYTES:
        raise ConfigError(
            source, [Problem("", 0, f"a file of {size} bytes", f"at most {MAX_FILE_BYTES} bytes")]
        )
    if isinstance(text, bytes):
        text = _decode(text, source)
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = Problem("", line, f"the character {text[error.position]!a}", "printable text")
    except yaml.MarkedYAMLError as error:
        problem = explain(text, error)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # PyYAML lets Python's own errors through for numbers out of range in escapes and directives.
        problem = Problem("", 0, f"broken YAML: {error}", "YAML")
    raise ConfigError(source, [problem])


def _decode(raw: bytes, source: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        seen = f"the byte 0x{raw[error.start]:02x} at offset {error.start}"
        raise ConfigError(source, [Problem("", line, seen, "UTF-8 text")]) from None


def line_of(node: Node) -> int:
    """The node's line in the file, from 1."""
    return int(node.start_mark.line) + 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping with its value."""

    line: int  # of the key
    value: Node


class Mappings:
    """Reads mappings and what they merge. Each is read once however often it is named, so that aliases to
    aliases can't multiply."""

    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems
        self._known: dict[int, dict[str, Entry]] = {}

    def entries(self, node: MappingNode, path: str, depth: int = 0) -> dict[str, Entry]:
        """The mapping's keys in order, with merge keys resolved as YAML has it: the mapping's own keys win,
        then the first merged one. Adds a problem for each duplicate key and each key that is no text."""
        known = self._known.get(id(node))
        if known is not None:
            return known
        own: dict[str, Entry] = {}
        self._known[id(node)] = own  # a mapping that merges itself finds what was read so far
        merged: list[Node] = []
        for key, value in node.value:
            line = line_of(key)
            if key.tag == _MERGE:
                merged.extend(value.value if isinstance(value, SequenceNode) else [value])
                continue
            # `8000:` and `on:` are a number and a Boolean to YAML; as keys they can only be meant as text.
            if not isinstance(key, ScalarNode):
                self._problems.append(Problem(path, line, f"the key {show(key)}", "keys that are text"))
            elif key.value in own:
                full = f"{path}.{key.value}" if path else key.value
                first = f"the key given once (it is on line {own[key.value].line} too)"
                self._problems.append(Problem(full, line, "a duplicate key", first))
            else:
                own[key.value] = Entry(line, value)
        for other in merged:
            if is_mapping(other) and depth < MAX_DEPTH:
                for name, entry in list(self.entries(other, path, depth + 1).items()):
                    own.setdefault(name, entry)
            else:
                allowed = f"a mapping to merge, at most {MAX_DEPTH} deep"
                self._problems.append(
                    Problem(f"{path}.<<" if path else "<<", line_of(other), show(other), allowed)
                )
        return own


def is_mapping(node: Node) -> TypeGuard[MappingNode]:
    """Whether this is a mapping, and no tag makes something else of it."""
    return isinstance(node, MappingNode) and node.tag in _PLAIN


def is_list(node: Node) -> TypeGuard[SequenceNode]:
    """Whether this is a list, and no tag makes something else of it."""
    return isinstance(node, SequenceNode) and node.tag in _PLAIN


def scalar(node: Node) -> Scalar:
    """The node's value, if it is one. Numbers are decimal; what YAML 1.1 reads in base 2, 8, 16 or 60 is not
    taken for one."""
    if not isinstance(node, ScalarNode):
        return UNREADABLE
    text: str = node.value
    if node.tag == _NULL:
        return None
    if node.tag == _BOOL:
        return text.lower() in ("true", "yes", "on")
    plain = node.style is None
    if plain and node.tag in (_INT, _FLOAT, _STR):
        if _DECIMAL.match(text) and len(text) <= _INT_DIGITS:
            return int(text)
        if _REAL.match(text):  # `1e3` too, which is text in YAML 1.1 and a number everywhere else
            return float(text)
        if node.tag == _FLOAT and text.lower().lstrip("+-") in (".inf", ".nan"):
            return float(text.lower().replace(".", ""))
    return text if node.tag == _STR else UNREADABLE


def show(node: Node) -> str:
    """The node for a message: as written, but bounded, on one line, and printable everywhere."""
    if isinstance(node, MappingNode | SequenceNode):
        what = "a mapping" if isinstance(node, MappingNode) else "a list"
        tagged = "" if node.tag in _PLAIN else f" tagged {json.dumps(node.tag[:_SHOWN])}"
        return f"{what} of {len(node.value)}{tagged}"
    text: str = node.value
    if len(text) > _SHOWN:
        text = text[: _SHOWN - 3] + "..."
    shown = json.dumps(text)
    return shown if isinstance(scalar(node), str) else shown[1:-1] or "nothing"
