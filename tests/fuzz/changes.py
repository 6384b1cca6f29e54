"""Changes to an input that respect its structure, more or less: what bytes picked at random seldom do.

libFuzzer changes bytes. Most of what it makes of JSON is not JSON any more, and is refused at the first byte
that it touched. These change a token, a value, a member or a line, so that most of what comes is read on.
"""

from __future__ import annotations

import re
from random import Random
from typing import NamedTuple

from tests.fast.engine_streams import EMPTIES, NUMBERS, SPACES, STRINGS

# Any bytes, cut into what would be tokens if they were JSON.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},:]|[ \t\r\n]+|[^\s\[\]{},:"]+|.', re.DOTALL)
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n|$)")
_LINE_ENDS = (b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n", b"")

_WHOLE = tuple(
    f"{number}".encode() for number in (0, 1, 9, 10, -1, 2**31 - 1, 2**31, 10**10, 2**63 - 1, 2**63, 2**64)
)
VALUES = tuple(
    text.encode()
    for text in (
        *NUMBERS, *EMPTIES, *(f'"{text}"' for text in STRINGS),
        *("true", "false", "-0", "1E+2", "2147483647", "[1,2]", "[true]", '{"a":[1]}', '[{"a":"b"}]', "NaN"),
    )
)  # fmt: skip


# The first and last of each length in UTF-8, and what lies just outside.
_SEQUENCES = """1f 7f 80 c1bf c280 dfbf e09fbf e0a080 ed9fbf eda080 ee8080 efbfbf f08fbfbf f0908080 f48fbfbf
    f4908080 f5808080 c2 e0a0 f09080 c241 e0a041 ff"""
SEQUENCES = tuple(bytes.fromhex(digits) for digits in _SEQUENCES.split())


class _Part(NamedTuple):
    """A member of an object or an item of a list: places of tokens."""

    in_object: bool
    start: int
    value: int
    end: int


def json_text(data: bytes, random: Random, names: tuple[bytes, ...]) -> bytes:
    """Change one member or item, or now and then a token; `names` are the keys that mean something."""
    tokens: list[bytes] = _TOKEN.findall(data) or [b"{}"]
    parts = _parts(tokens)
    if not parts or random.random() < 0.05:
        return b"".join(_break(tokens, random))
    part = random.choice(parts)
    in_object, start, value, end = part
    other = random.choice([other for other in parts if other.in_object == in_object])
    member = b'"%b":' % random.choice(names) if in_object else b""
    change = random.randrange(10)
    if change < 2:
        number = tokens[value:end][-1].isdigit() and random.random() < 0.7
        tokens[value:end] = [random.choice(_WHOLE if number else VALUES)]
    elif change == 2:
        tokens[start:value] = [member]
    elif change == 3:
        tokens[start:start] = [member, random.choice(VALUES), b","]
    elif change == 4:
        tokens[end:end] = [b",", *tokens[start:end]] * random.choice((1, 1, 1, 2, 40))
    elif change == 5:
        tokens[start:end] = tokens[other.start : other.end]
    elif change == 6:
        tokens[value:end] = tokens[other.value : other.end]
    elif change == 7:
        del tokens[start - (tokens[start - 1] == b",") : end + (tokens[start - 1] != b"," == tokens[end])]
    elif change == 8:
        at = random.randrange(start, end)
        tokens[at] = _respelt(tokens[at], random)
    else:
        opening, closing = random.choice(((b"[", b"]"), (b'{"%b":' % random.choice(names), b"}")))
        deep = random.choice((*[1] * 20, 300))
        tokens[value:end] = [opening * deep, *tokens[value:end], closing * deep]
    return b"".join(tokens)


def _parts(tokens: list[bytes]) -> list[_Part]:
    found = []
    begun: list[tuple[bool, int]] = []
    for at, token in enumerate(tokens):
        if token in (b",", b"]", b"}") and begun:
            in_object, start = begun.pop()
            if start < at:
                colon = (
                    tokens.index(b":", start, at)
                    if in_object and b":" in tokens[start : at - 1]
                    else start - 1
                )
                found.append(_Part(in_object, start, colon + 1, at))
            if token == b",":
                begun.append((in_object, at + 1))
        elif token in (b"[", b"{"):
            begun.append((token == b"{", at + 1))
    return found


def _break(tokens: list[bytes], random: Random) -> list[bytes]:
    """Leave out a token, put in another or a space, or end after it."""
    at = random.randrange(len(tokens))
    new = random.choice((b"", random.choice(tokens), random.choice(SPACES).encode(), random.choice(VALUES)))
    return [*tokens[:at], new, *tokens[at + random.choice((0, 1, 1, len(tokens))) :]]


def _respelt(token: bytes, random: Random) -> bytes:
    """A letter of a string as an escape or in another case, or odd bytes in it; space behind what is none."""
    at = random.randrange(len(token))
    letter = token[at : at + 1]
    if not letter.isalnum() or not token.startswith(b'"'):
        return token + random.choice(SPACES).encode()
    if random.random() < 0.3:
        return token[:at] + random.choice(SEQUENCES) + token[at:]
    if random.random() < 0.8:
        return token[:at] + b"\\u%04x" % letter[0] + token[at + 1 :]
    return token[:at] + letter.swapcase() + token[at + 1 :]


def lines(data: bytes, random: Random, words: tuple[bytes, ...]) -> bytes:
    """Change one line or its end; `words` are what may stand in one."""
    found = _LINE.findall(data)
    at = random.randrange(len(found))
    line = found[at]
    change = random.randrange(6)
    if change == 0:
        found[at] = line.rstrip(b"\r\n") + random.choice(_LINE_ENDS)
    elif change == 1:
        place = random.randrange(len(line) + 1)
        found[at] = line[:place] + random.choice(words) + line[place:]
    elif change == 2:
        found[at:at] = [random.choice(words) + random.choice(_LINE_ENDS)]
    elif change == 3:
        found[at:at] = [random.choice(found)]
    elif change == 4:
        del found[at]
    else:
        found[at] = random.choice(words) + line[line.find(b":") + 1 :]
    return b"".join(found)
