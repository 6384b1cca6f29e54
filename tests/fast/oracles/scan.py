"""The scanner's oracle: slow and obvious.

Python's json says whether a text is valid. A tokenizer of regular expressions then builds a tree that knows
where everything lies, and each fact is read off the tree as its definition says. Excision cuts one member and
parses what is left again, until there is nothing to cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from narwhal._fast.scan import Scan
from tests.fast.oracles import grammar

CUT = {"token_ids", "prompt_token_ids", "prompt_text"}
OUTPUT = {"text", "content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call"}
READ_AT_TOP = {"choices", "usage", "error"} | CUT
READ_IN_CHOICE = {"delta", "message", "finish_reason"} | OUTPUT | CUT
READ_IN_DELTA = OUTPUT | CUT
READ_IN_USAGE = {"prompt_tokens", "completion_tokens", "prompt_tokens_details"}

ABSENT, NULL, VALID, MALFORMED = range(4)
MAX_RUNS = 32

_TOKEN = re.compile(rb'[ \t\r\n]*("[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},:]|[^\s\[\]{},:"]+)', re.DOTALL)


Token = tuple[bytes, int, int]  # text, start, end


@dataclass
class Node:
    """A value: where it lies, and what json reads in it (numbers stay as written, objects pairs)."""

    kind: str  # of "null", "boolean", "integer", "float", "string", "list", "object"
    start: int
    end: int
    text: bytes
    items: list[Node] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)

    def get(self, name: str) -> Node | None:
        """The member's value, unless it is missing or null."""
        for member in self.members:
            if member.name == name and member.value.kind != "null":
                return member.value
        return None


@dataclass
class Member:
    """A member of an object."""

    name: str
    start: int
    value: Node


def loads(data: bytes) -> Any:
    """What the text says: objects as lists of pairs. Raises ValueError if it is not JSON."""
    return grammar.loads(data, object_pairs_hook=lambda pairs: pairs)


def _tree(data: bytes) -> Node:
    tokens = [(match[1], match.start(1), match.end(1)) for match in _TOKEN.finditer(data)]
    return _node(data, iter(tokens[1:]), tokens[0])


def _node(data: bytes, tokens: Iterator[Token], first: Token) -> Node:
    text, start, end = first
    if text == b"[":
        items = []
        while (token := next(tokens))[0] != b"]":
            if token[0] != b",":
                items.append(_node(data, tokens, token))
        return Node("list", start, token[2], data[start : token[2]], items=items)
    if text == b"{":
        members = []
        while (token := next(tokens))[0] != b"}":
            if token[0] != b",":
                next(tokens)  # the colon
                members.append(Member(_name(token[0]), token[1], _node(data, tokens, next(tokens))))
        return Node("object", start, token[2], data[start : token[2]], members=members)
    if text[:1] == b'"':
        kind = "string"
    elif text in (b"null", b"true", b"false"):
        kind = "null" if text == b"null" else "boolean"
    else:
        kind = "float" if re.search(rb"[.eE]", text) else "integer"
    return Node(kind, start, end, text)


def _name(key: bytes) -> str:
    name: str = json.loads(key) if b"\\" in key else key[1:-1].decode()
    return name


class NoEventError(ValueError):
    """The text is not an event."""


def _require(condition: bool) -> None:
    if not condition:
        raise NoEventError


def _check_names(node: Node, names: set[str]) -> None:
    read = [member.name for member in node.members if member.name in names]
    _require(len(read) == len(set(read)))


def _is_empty(node: Node) -> bool:
    if node.kind in ("list", "object"):
        return not node.items and not node.members
    return node.kind == "null" or node.text == b'""'


def _natural(node: Node | None) -> int:
    if node is None or node.kind != "integer" or node.text.startswith(b"-") or int(node.text) >= 2**63:
        return -1
    return int(node.text)


def _fault(node: Node) -> str | None:
    if node.kind == "integer":
        if node.text.startswith(b"-"):
            return "a negative number"
        return "a number beyond 2147483647" if int(node.text) > 2147483647 else None
    return {
        "null": "a null in the list",
        "boolean": "a Boolean",
        "float": "a number with a fraction or an exponent",
        "string": "a string",
        "list": "a nested list",
        "object": "an object",
    }[node.kind]


def _choices(root: Node) -> list[Node]:
    choices = root.get("choices")
    return choices.items if choices else []


def _deltas(root: Node, name: str) -> list[Node]:
    return [part for choice in _choices(root) if (part := choice.get(name)) and part.kind == "object"]


def _check(root: Node) -> None:
    _require(root.kind == "object")
    _check_names(root, READ_AT_TOP)
    choices, usage = root.get("choices"), root.get("usage")
    _require(choices is None or choices.kind == "list")
    for choice in _choices(root):
        _require(choice.kind == "object")
        _check_names(choice, READ_IN_CHOICE)
        delta, reason = choice.get("delta"), choice.get("finish_reason")
        _require(delta is None or delta.kind == "object")
        _require(reason is None or reason.kind == "string")
    for delta in _deltas(root, "delta"):
        _check_names(delta, READ_IN_DELTA)
    for message in _deltas(root, "message"):
        _check_names(message, CUT)
    _require(sum(map(_runs, _places(root))) <= MAX_RUNS)
    if usage is not None:
        _require(usage.kind == "object")
        _check_names(usage, READ_IN_USAGE)
        if details := usage.get("prompt_tokens_details"):
            _check_names(details, {"cached_tokens"})


def _id_lists(choice: Node) -> list[Node]:
    """The values of the choice's own token_ids and of its delta's, in the order they are written."""
    found = [member.value for member in choice.members if member.name == "token_ids"]
    if (delta := choice.get("delta")) is not None:
        found += [member.value for member in delta.members if member.name == "token_ids"]
    return sorted(found, key=lambda node: node.start)


def _ids(root: Node) -> tuple[int, int, str | None]:
    state, count, faults = ABSENT, 0, []
    for choice in _choices(root):
        lists = 0
        for node in _id_lists(choice):
            state = max(state, NULL)
            if node.kind == "list":
                state = max(state, VALID)
                lists += 1
                if lists > 1:
                    faults.append("two lists for one choice")
                reasons = [_fault(item) for item in node.items]
                count += reasons.count(None)
                faults += [reason for reason in reasons if reason]
            elif node.kind != "null":
                faults.append("not a list")
    return (MALFORMED, count, faults[0]) if faults else (state, count, None)


def _places(root: Node) -> list[Node]:
    """The objects whose token-ID fields are to be cut."""
    return [root, *_choices(root), *_deltas(root, "delta"), *_deltas(root, "message")]


def _runs(place: Node) -> int:
    """How often token-ID fields stand side by side there: each run is one cut."""
    return len([cut for cut, _ in groupby(member.name in CUT for member in place.members) if cut])


def _first_cut(root: Node) -> tuple[int, int] | None:
    for place in _places(root):
        for i, member in enumerate(place.members):
            if member.name in CUT:
                if i > 0:
                    return place.members[i - 1].value.end, member.value.end
                if len(place.members) > 1:
                    return member.start, place.members[1].start
                return member.start, member.value.end
    return None


def kept(data: bytes) -> list[int]:
    """Where the bytes lie that stay: cut one token-ID field, with one comma beside it, and look again."""
    places = list(range(len(data)))
    while (cut := _first_cut(_tree(data))) is not None:
        del places[slice(*cut)]
        data = data[: cut[0]] + data[cut[1] :]
    return places


def excise(data: bytes) -> bytes:
    """The event without its token-ID fields."""
    return bytes(data[place] for place in kept(data))


def scan(data: bytes) -> Scan:
    """What scan() should say but for its spans. Raises ValueError if the text is not an event."""
    loads(data)
    root = _tree(data)
    _check(root)
    ids, id_count, ids_error = _ids(root)
    carriers = [*_choices(root), *_deltas(root, "delta")]
    usage, error = root.get("usage"), root.get("error")
    details = usage.get("prompt_tokens_details") if usage else None
    cached = [member.value for member in details.members if member.name == "cached_tokens"] if details else []
    return Scan(
        has_output=any(
            member.name in OUTPUT and not _is_empty(member.value)
            for carrier in carriers
            for member in carrier.members
        ),
        finished=any(
            (reason := choice.get("finish_reason")) is not None and not _is_empty(reason)
            for choice in _choices(root)
        ),
        choices=len(_choices(root)) if root.get("choices") else -1,
        ids=ids,
        id_count=id_count,
        ids_error=ids_error,
        error_object=(error.start, error.end) if error else None,
        has_usage=usage is not None,
        prompt_tokens=_natural(usage.get("prompt_tokens")) if usage else -1,
        completion_tokens=_natural(usage.get("completion_tokens")) if usage else -1,
        cached_tokens=_natural(cached[0]) if cached else -1,
        cached_value=(cached[0].start, cached[0].end) if cached else None,
        spans=(),
    )


Pairs = list[tuple[str, Any]]


def without_ids(value: Any) -> Any:
    """What loads() read, less the token-ID fields: a second opinion on what is left, free of positions."""

    def less(value: Any, inside: Callable[[str, Any], Any]) -> Any:
        if not _is_pairs(value):
            return value
        return [(name, inside(name, part)) for name, part in value if name not in CUT]

    def in_choice(name: str, part: Any) -> Any:
        return less(part, lambda _, part: part) if name in ("delta", "message") else part

    def at_top(name: str, part: Any) -> Any:
        return [less(choice, in_choice) for choice in part] if name == "choices" and part else part

    return less(value, at_top)


def _is_pairs(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, tuple) for item in value)
