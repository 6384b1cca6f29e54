"""What requests ask: text or token IDs of about the wanted length, or prompts from a file.

A made-up prompt is a slice of one long random text, so that making it costs a copy, whatever its length.
It begins with a few random words of its own: two prompts share no prefix, which an engine could have in its
cache, unless a trace says they do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import orjson

from narwhal.harness.trace import BLOCK_TOKENS

# Short and common, so that most tokenizers make one token of each with the space before it.
_WORDS = re.findall(
    r"\w+",
    """
    the of and to in is that for it as was with be by on not he his but at are this have from or had
    an they which one you were all her she there would their we him been has when who will no more
    if out so up said what its about than into them can only other time new some could these two may
    first then do any like my now over such our man me even most made after also well many must
    before through back years where much your way down should because long each just state those
    people too little good world make very year still see work life being under day here come both
    between never last same another while house great water old part place right home small end put
    hand high line next went
    """,
)
_CORPUS_TOKENS = 1 << 16
_OWN_TOKENS = 6
_FIRST_ID = 1000  # below it lie the special tokens of most vocabularies


class PromptsError(Exception):
    """A file of prompts that can't be used; the message says which line and why."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one request asks: members of its body."""

    members: dict[str, Any]
    output_tokens: int | None = None  # the most it may take; None: as the load says


class MadeUp:
    """Prompts of random words, or of random token IDs."""

    def __init__(self, *, chat: bool, vocabulary: int | None, seed: int) -> None:
        """`vocabulary`: completions only; make token IDs below it instead of text."""
        source = Random(seed)
        self._chat = chat
        self._vocabulary = vocabulary
        self._ids: list[int] = []
        self._text = ""
        self._ends: list[int] = []  # of each word in the text
        if vocabulary is not None:
            self._ids = [self._id(source) for _ in range(_CORPUS_TOKENS)]
            return
        words = [" " + word for word in source.choices(_WORDS, k=_CORPUS_TOKENS)]
        self._text = "".join(words)
        end = 0
        for word in words:
            end += len(word)
            self._ends.append(end)

    @property
    def kind(self) -> str:
        """What they are, for a summary."""
        return "text" if self._vocabulary is None else f"token IDs below {self._vocabulary}"

    def make(self, source: Random, tokens: int, hash_ids: Sequence[int] = ()) -> Prompt:
        """A prompt of about so many tokens; with `hash_ids`, its blocks are those IDs'."""
        if not hash_ids:
            return self._prompt([self._piece(source, tokens)])
        left = tokens
        pieces = []
        for hash_id in hash_ids:
            size = min(left, BLOCK_TOKENS)
            if size <= 0:
                break
            pieces.append(self._piece(Random(hash_id), size))
            left -= size
        if left > 0:
            pieces.append(self._piece(source, left))
        return self._prompt(pieces)

    def _prompt(self, pieces: list[Any]) -> Prompt:
        if self._vocabulary is not None:
            return Prompt({"prompt": [token for piece in pieces for token in piece]})
        text = "".join(pieces).lstrip()
        return Prompt({"messages": [{"role": "user", "content": text}]} if self._chat else {"prompt": text})

    def _id(self, source: Random) -> int:
        assert self._vocabulary is not None
        return source.randrange(min(_FIRST_ID, self._vocabulary // 2), self._vocabulary)

    def _piece(self, source: Random, tokens: int) -> Any:
        own = min(tokens, _OWN_TOKENS)
        if self._vocabulary is not None:
            ids = [self._id(source) for _ in range(own)]
            for start, end in self._slices(source, tokens - own):
                ids += self._ids[start:end]
            return ids
        text = "".join(" " + word for word in source.choices(_WORDS, k=own))
        for start, end in self._slices(source, tokens - own):
            text += self._text[self._ends[start - 1] if start else 0 : self._ends[end - 1]]
        return text

    def _slices(self, source: Random, tokens: int) -> list[tuple[int, int]]:
        """Where to take so many tokens in the corpus, none of them empty."""
        slices = []
        start = source.randrange(_CORPUS_TOKENS)
        while tokens > 0:
            end = min(start + tokens, _CORPUS_TOKENS)
            slices.append((start, end))
            tokens -= end - start
            start = 0
        return slices


@dataclass(slots=True)
class FromFile:
    """Prompts of a file, in its order, over and over."""

    prompts: list[Prompt]
    _next: int = field(default=0)

    @property
    def kind(self) -> str:
        """What they are, for a summary."""
        return f"{len(self.prompts)} from a file"

    def make(self, source: Random, tokens: int, hash_ids: Sequence[int] = ()) -> Prompt:
        """The next one; what is asked for has no say."""
        prompt = self.prompts[self._next % len(self.prompts)]
        self._next += 1
        return prompt


def load_prompts(path: Path, *, chat: bool) -> FromFile:
    """Read a file with a prompt a line: plain text, or an object with `prompt` or `messages`, and perhaps
    `max_tokens` and anything else a body may have. Raises PromptsError."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptsError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    prompts = [
        _read(line, chat, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not prompts:
        raise PromptsError(f"{path}: there is no prompt in it")
    return FromFile(prompts)


def _read(line: str, chat: bool, where: str) -> Prompt:
    asked: Any = line
    members: dict[str, Any] = {}
    if line.lstrip().startswith("{"):
        try:
            members = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise PromptsError(f"{where}: begins like an object, but is not JSON: {error}") from None
        asked = members.pop("prompt", None)
    limit = members.pop("max_tokens", None)
    if limit is not None and (type(limit) is not int or limit < 1):
        raise PromptsError(f"{where}: max_tokens is {limit!r:.80}; allowed: an integer, 1 or more")
    if asked is None and not (chat and isinstance(members.get("messages"), list)):
        raise PromptsError(f"{where}: has no prompt" + (" and no messages" if chat else ""))
    if asked is not None and chat:
        if not isinstance(asked, str):
            raise PromptsError(f"{where}: a chat's prompt must be text")
        members["messages"] = [{"role": "user", "content": asked}]
    elif asked is not None:
        members["prompt"] = asked
    return Prompt(members, limit)
