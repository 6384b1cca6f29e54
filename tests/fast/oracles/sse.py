"""Server-sent events, read line by line over the whole stream."""

from __future__ import annotations

from typing import NamedTuple

BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    type: bytes
    data: bytes


def blocks(stream: bytes) -> tuple[list[bytes], bytes]:
    """The complete blocks of the stream, and what is left."""
    found: list[bytes] = []
    block = b""
    filled = False
    for line in stream.splitlines(keepends=True):
        text = line.rstrip(b"\r\n")
        if text == line:
            return found, block + line
        blank = not (text.removeprefix(BOM) if not found and not block else text)
        block += line
        if blank and filled:
            found.append(block)
            block = b""
            filled = False
        else:
            filled = filled or not blank
    return found, block


def events(stream: bytes) -> list[Event]:
    """What a client is told of the stream (WHATWG HTML, section 9.2.6)."""
    dispatched = []
    kind = data = b""
    for line in stream.removeprefix(BOM).splitlines(keepends=True):
        text = line.rstrip(b"\r\n")
        if text == line:
            break
        if not text:
            if data:
                dispatched.append(Event(kind, data.removesuffix(b"\n")))
            kind = data = b""
            continue
        name, _, value = text.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data += value + b"\n"
        elif name == b"event":
            kind = value
    return dispatched
