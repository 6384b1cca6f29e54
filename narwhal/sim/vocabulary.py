"""The simulated engines' tokens: a small vocabulary that any text goes into and comes out of unchanged.

A token is one byte, two bytes, or a word with its leading space. Generated text is made of words, some of
them beyond ASCII and beyond the Basic Multilingual Plane; any other text falls back to bytes, two to a token.
A character's bytes may thus lie in two tokens, and the text of both then comes with the later one, as with
real models.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from itertools import product

FIRST_PAIR = 256
FIRST_WORD = FIRST_PAIR + 65536

_SYLLABLES = [c + v for c, v in product("bdfgklmnprstvz", "aeiou")]
_FOREIGN = (
    " naïve", " über", " señor", " façade", " œuvre", " Ångström", " γειά", " мир", " שלום", " سلام",
    " 世界", " こんにちは", " 안녕", " नमस्ते", " สวัสดี", " €", " 🐋", " 🦄", " 👩‍🔬", " 𝛼𝛽", " 𠮷", " e\u0301",
)  # fmt: skip

WORDS = (*(" " + a + b for a, b in product(_SYLLABLES, _SYLLABLES)), *_FOREIGN)
ARGUMENTS_OPEN = '{"text":"'
ARGUMENTS_CLOSE = '"}'

FIRST_SPECIAL = FIRST_WORD + len(WORDS)
OPEN_TOKEN, CLOSE_TOKEN, CALL_TOKEN, END_TOKEN = range(FIRST_SPECIAL, FIRST_SPECIAL + 4)
SIZE = FIRST_SPECIAL + 4

# The token that opens a call and the one that ends an answer have no text.
_NAMED = (*WORDS, ARGUMENTS_OPEN, ARGUMENTS_CLOSE, "", "")
_NUMBER = {word: FIRST_WORD + i for i, word in enumerate(WORDS)}
_SPLIT = re.compile(r" ?[^ ]+| ")


def encode(text: str) -> list[int]:
    """The token IDs of a text. `decode(encode(text)) == text`; words take one token each."""
    ids: list[int] = []
    other: list[str] = []  # a run of pieces that are no words
    for piece in _SPLIT.findall(text):
        number = _NUMBER.get(piece)
        if number is None:
            other.append(piece)
            continue
        if other:
            ids.extend(_in_bytes("".join(other)))
            other.clear()
        ids.append(number)
    if other:
        ids.extend(_in_bytes("".join(other)))
    return ids


def _in_bytes(text: str) -> list[int]:
    # Lone surrogates can stand in a JSON string; they have no UTF-8 form and become question marks.
    data = text.encode("utf-8", "replace")
    pairs = len(data) // 2
    ids = [FIRST_PAIR + pair for pair in struct.unpack(f">{pairs}H", data[: pairs * 2])]
    if len(data) % 2:
        ids.append(data[-1])
    return ids


def token_bytes(token: int) -> bytes:
    """The bytes of one token; those of U+FFFD for an ID outside the vocabulary."""
    if token >= FIRST_WORD:
        return _NAMED[token - FIRST_WORD].encode() if token < SIZE else b"\xef\xbf\xbd"
    return (token - FIRST_PAIR).to_bytes(2, "big") if token >= FIRST_PAIR else bytes((token,))


def decode(ids: Iterable[int]) -> str:
    """The text of a list of token IDs."""
    return b"".join(map(token_bytes, ids)).decode("utf-8", "replace")


def pieces(ids: Sequence[int]) -> list[str]:
    """The text that each token adds: none as long as it ends amid a character, as vLLM has it."""
    if not ids or (min(ids) >= FIRST_WORD and max(ids) < SIZE):
        return [_NAMED[i - FIRST_WORD] for i in ids]
    texts, held = [], b""
    for i in ids:
        held += token_bytes(i)
        text = held.decode("utf-8", "replace")
        if text.endswith("\ufffd"):
            text = ""
        else:
            held = b""
        texts.append(text)
    texts[-1] += held.decode("utf-8", "replace")
    return texts


def text_of(token: int) -> str:
    """The text of one word or special token."""
    return _NAMED[token - FIRST_WORD]


def words(count: int, start: int = 0) -> str:
    """A text of exactly `count` tokens."""
    return "".join(WORDS[(start + i) % len(WORDS)] for i in range(count))
