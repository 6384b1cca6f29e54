"""Hypothesis strategies for JSON as text: every spelling the grammar allows, and texts that just miss it.

Text is generated, not values: white space, escapes and number forms are what a reader of structure can get
wrong, and a serialiser would hide them. How a text is spelt follows from one drawn number, which costs far
less than drawing each space.
"""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

Text = st.SearchStrategy[str]

SPELLINGS = st.integers(0, 2**32 - 1).map(Random)
_SPACES = ["", "", "", "", " ", "\n", "\t", "\r\n ", "         "]
_SHORT_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_ODD_STRINGS = r"""\uD83D \uDE00 \uDE00\uD83D \u0000 \\\" \"token_ids\":[1] \"} \\"""
_ODD_NUMBERS = """0 -0 1 -1 12 1.0 1e2 1E+2 0e-1 -0.5 2147483647 2147483648 9999999999 10000000000
    9223372036854775807 9223372036854775808 18446744073709551617 1000000000000000000000000000001"""


def _in_spaces(text: str, spelling: Random) -> str:
    return spelling.choice(_SPACES) + text + spelling.choice(_SPACES)


def _escaped(character: str, spelling: Random) -> str:
    if character in _SHORT_ESCAPES and spelling.random() < 0.5:
        return "\\" + _SHORT_ESCAPES[character]
    if character < " " or character in '"\\' or spelling.random() < 0.1:
        units = character.encode("utf-16-be").hex(" ", 2).split()
        return "".join("\\u" + (unit.upper() if spelling.random() < 0.5 else unit) for unit in units)
    return character


def spelt(value: str, spelling: Random) -> str:
    """The string as JSON, some of its characters escaped."""
    return '"' + "".join(_escaped(character, spelling) for character in value) + '"'


def padded(texts: Text) -> Text:
    """The text with white space on both sides."""
    return st.builds(_in_spaces, texts, SPELLINGS)


def array(items: list[str], spelling: Random) -> str:
    """An array of these, with white space everywhere."""
    return f"[{','.join(_in_spaces(item, spelling) for item in items) or spelling.choice(_SPACES)}]"


def array_of(items: Text, max_size: int = 4) -> Text:
    """An array of such items."""
    return st.builds(array, st.lists(items, max_size=max_size), SPELLINGS)


def object_(members: list[tuple[str, str]], spelling: Random) -> str:
    """An object of these members (names, and texts of values), with white space everywhere."""
    parts = [
        f"{_in_spaces(spelt(name, spelling), spelling)}:{_in_spaces(text, spelling)}"
        for name, text in members
    ]
    return f"{{{','.join(parts) or spelling.choice(_SPACES)}}}"


def object_of(names: st.SearchStrategy[str], values: Text, max_size: int = 4) -> Text:
    """An object of such members."""
    return st.builds(object_, st.lists(st.tuples(names, values), max_size=max_size), SPELLINGS)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.sampled_from(_ODD_NUMBERS.split()) | st.integers().map(str)
STRINGS = st.builds(spelt, NAMES, SPELLINGS) | st.sampled_from(_ODD_STRINGS.split()).map('"{}"'.format)
SCALARS = NUMBERS | STRINGS | st.sampled_from(["null", "true", "false", '""', "[]", "{}"])
VALUES = st.recursive(SCALARS, lambda inner: array_of(inner) | object_of(NAMES, inner), max_leaves=8)

# What a slip of an engine, a proxy or an attacker could put somewhere into a text.
_ASCII_SLIPS = r'" \ \u \u12 { } [ ] , : ,, 0 - + . e 1 00 null tru NaN Infinity -Infinity //'
_SLIPS = [
    *(slip.encode() for slip in _ASCII_SLIPS.split()),
    *(b" ", b"\n", b"\0", b"\x1f", b"\x7f", b"\xef\xbb\xbf"),
    *(b"\xc3\xa9", b"\xf0\x9f\x98\x80"),
    *(b"\x80", b"\xc0\x80", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xe0\x9f\xbf"),
    *(b"\xf0\x8f\xbf\xbf", b"\xf5\x80\x80\x80", b"\xff"),
]


@st.composite
def mangled(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> bytes:
    """A text's bytes with a slip or two: something put in, left out or overwritten, or the end cut off."""
    data = draw(texts).encode()
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.sampled_from([0, 0, 1, 1, 2, len(data)])))
        data = data[:at] + draw(st.sampled_from([b"", *_SLIPS])) + data[end:]
    return data
