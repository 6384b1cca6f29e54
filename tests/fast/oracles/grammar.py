"""JSON text as the router takes it: what Python's json reads, less what RFC 8259 does not have."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

MAX_DEPTH = 256
_NO_BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^\[\]{}"]', re.DOTALL)


def _depth(data: bytes) -> int:
    """How deep the brackets of well-formed text are nested."""
    depth = deepest = 0
    for bracket in _NO_BRACKET.sub(b"", data):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def loads(data: bytes, **hooks: Any) -> Any:
    """The value, by json's hooks. Raises ValueError for what is no JSON, or is nested too deeply."""
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _depth(data) > MAX_DEPTH:
        raise ValueError("nested too deeply")
    return json.loads(data.decode(), parse_constant=_refuse, **hooks)
