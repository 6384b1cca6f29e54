"""Chunked transfer coding, decoded with regular expressions over the whole input."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

_TEXT = rb"[\t\x20-\x7e\x80-\xff]*"
_NAME = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]+)([ \t]*;" + _TEXT + rb")?")
_SIZE_LINE_BEGUN = re.compile(rb"(([0-9A-Fa-f]+)([ \t]*;" + _TEXT + rb")?\r?|([0-9A-Fa-f]+)[ \t]*)?")
_TRAILER = _NAME + rb":" + _TEXT + rb"\r\n"
_TRAILERS = re.compile(rb"(" + _TRAILER + rb")*\r\n")
_TRAILERS_BEGUN = re.compile(rb"(" + _TRAILER + rb")*(\r|" + _NAME + rb"(:" + _TEXT + rb"\r?)?)?")


class Decoded(NamedTuple):
    verdict: Literal["more", "end", "bad"]
    payload: bytes  # all of it, up to the first malformed byte
    unused: bytes


def decode(data: bytes) -> Decoded:
    payload = b""
    while True:
        line, crlf, rest = data.partition(b"\r\n")
        form = (_SIZE_LINE if crlf else _SIZE_LINE_BEGUN).fullmatch(line)
        size = int(re.split(rb"[^0-9A-Fa-f]", line)[0] or b"0", 16) if form else 0
        if not form or len(line.rstrip(b"\r")) > 1024 or size > 2**62:
            return Decoded("bad", payload, b"")
        if not crlf:
            return Decoded("more", payload, b"")
        if size == 0:
            break
        payload += rest[:size]
        end = rest[size : size + 2]
        if end != b"\r\n":
            return Decoded("more" if b"\r\n".startswith(end) else "bad", payload, b"")
        data = rest[size + 2 :]
    if trailers := _TRAILERS.match(rest):
        if trailers.end() > 16384:
            return Decoded("bad", payload, b"")
        return Decoded("end", payload, rest[trailers.end() :])
    begun = _TRAILERS_BEGUN.fullmatch(rest) and len(rest) <= 16384
    return Decoded("more" if begun else "bad", payload, b"")
