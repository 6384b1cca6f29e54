"""Events as an engine could write them, spelt in every way that JSON allows, as some bytes pick them.

The bytes come from Hypothesis or from a fuzzer: each picks one of a few options, and where they end the first
option is picked, which is the plainest. An odd stream also has what no engine should write: unknown fields
with values, repeated keys, values of the wrong type, a second choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
Spell = Callable[[], str]

SPACES = ("", "", "", "", "", "", " ", "\r\n\t")
STRINGS = (
    *("a", " word", "é", "\U0001f600", "\u2028", "\x7f", "function", "null"),
    *(r"\"", r"\\", r"\/", r"\n", r"\u0000", r"\ud83d", r"\uDE00", r"\ud83d\ude00", r"\u0061", r"\\\""),
    *('\\"token_ids\\":[1]', "[{,:}]", "longer than eight bytes"),
)
NUMBERS = ("0", "1", "-1", "2.50", "1e2", "-0.0", "2147483648", "9223372036854775808", "1" + "0" * 40)
NATURALS = ("0", "1", "2", "3", "10", "4294967296")
EMPTIES = ("null", '""', "[]", "{}", "[ ]", "{\n}")


class Writer:
    """Writes events by the bytes of `picks`."""

    def __init__(self, picks: bytes, chat: bool, odd: bool) -> None:
        self._picks = iter(picks)
        self._chat = chat
        self._odd = odd

    def _below(self, limit: int) -> int:
        return next(self._picks, 0) % limit

    def _one(self, options: Sequence[T]) -> T:
        return options[self._below(len(options))]

    def _padded(self, text: str) -> str:
        return self._one(SPACES) + text + self._one(SPACES)

    def string(self) -> str:
        """A string."""
        return '"' + "".join(self._one(STRINGS) for _ in range(self._below(4))) + '"'

    def number(self) -> str:
        """A number."""
        return self._one(NUMBERS)

    def natural(self) -> str:
        """A whole number from 0."""
        return self._one(NATURALS)

    def value(self, depth: int = 0) -> str:
        """Any value, nested a little."""
        kind = self._below(6 if depth < 3 else 4)
        if kind == 4:
            return self.list_of(lambda: self.value(depth + 1))
        if kind == 5:
            return self.object_of({"x": lambda: self.value(depth + 1), "y": self.number})
        return (self.string, self.number, lambda: self._one(EMPTIES), lambda: self._one(("true", "false")))[
            kind
        ]()

    def list_of(self, item: Spell) -> str:
        """A list of up to three such items."""
        return "[" + ",".join(self._padded(item()) for _ in range(self._below(4))) + "]"

    def object_of(self, fields: dict[str, Spell], *always: str) -> str:
        """An object with some of these fields, and each of `always`."""
        names = [name for name in fields if name in always or self._below(2)]
        for _ in range(self._below(3) if names else 0):
            names.append(names.pop(self._below(len(names))))
        members = [(self._key(name), fields[name]) for name in names]
        if self._below(8) == 7:
            members.append(('"odd"', lambda: self._one(EMPTIES)))
        if self._odd and self._below(16) == 15:
            name = self._one(("odd", "audio", *fields))
            members.append((self._key(name) if name in fields else f'"{name}"', self.value))
        return "{" + ",".join(f"{self._padded(key)}:{self._padded(spell())}" for key, spell in members) + "}"

    def _key(self, name: str) -> str:
        at = self._below(4 * len(name)) - 3 * len(name)
        return f'"{name}"' if at < 0 else f'"{name[:at]}\\u{ord(name[at]):04x}{name[at + 1 :]}"'

    def _maybe(self, spell: Spell) -> Spell:
        # The spelling, or now and then an empty value.
        return lambda: spell() if self._below(5) < 4 else self._one(EMPTIES)

    def _ids(self) -> dict[str, Spell]:
        ids = self._maybe(lambda: self.list_of(self.natural))
        return {"token_ids": ids, "prompt_token_ids": ids, "prompt_text": self._maybe(self.string)}

    def _function(self) -> str:
        strings = self._maybe(self.string)
        return self.object_of({"name": strings, "arguments": strings})

    def _call(self) -> str:
        fields = {
            "index": self.natural,
            "id": self._maybe(self.string),
            "type": lambda: self._one(('"function"', "null", r'"\u0066unction"')),
            "function": self._maybe(self._function),
        }
        return self.object_of(fields, "index", "id", "function")

    def _delta(self) -> str:
        strings = ("content", "role", "reasoning", "reasoning_content", "refusal")
        fields = {
            **dict.fromkeys(strings, self._maybe(self.string)),
            "tool_calls": self._maybe(lambda: self.list_of(self._call)),
            "function_call": self._maybe(self._function),
            **self._ids(),
        }
        return self.object_of(fields)

    def _item(self) -> str:
        return self.object_of({"token": self.string, "logprob": self.number})

    def _logprobs(self) -> str:
        def lists(item: Spell) -> Spell:
            return self._maybe(lambda: self.list_of(item))

        if self._chat:
            return self.object_of(dict.fromkeys(("content", "refusal"), lists(self._item)))
        fields = {
            "tokens": lists(self.string),
            "token_logprobs": lists(lambda: self._one(("null", *NUMBERS))),
            "top_logprobs": lists(lambda: self._item() if self._below(2) else "null"),
            "text_offset": lists(self.natural),
        }
        return self.object_of(fields)

    def _choice(self) -> str:
        answer = {"delta": self._maybe(self._delta)} if self._chat else {"text": self._maybe(self.string)}
        fields = {
            **answer,
            "index": lambda: "0",
            "logprobs": self._maybe(self._logprobs),
            "finish_reason": self._maybe(self.string),
            "stop_reason": self._maybe(lambda: self._one((*NATURALS, '"stop"', '"\\u0000"'))),
            **self._ids(),
        }
        return self.object_of(fields, *answer)

    def _choices(self) -> str:
        if self._odd and self._below(16) == 15:
            return self.list_of(self._choice)
        return f"[{self._padded(self._choice())}]" if self._below(6) < 5 else self._one(EMPTIES)

    def _usage(self) -> str:
        details = {"cached_tokens": self.number, "multimodal_tokens": self._item, "more": self.number}
        fields = {
            **dict.fromkeys(("prompt_tokens", "total_tokens", "completion_tokens", "more"), self.natural),
            "prompt_tokens_details": self._maybe(lambda: self._plain(details)),
            "completion_tokens_details": self._maybe(self._item),
        }
        return self._plain(fields)

    def _plain(self, fields: dict[str, Spell]) -> str:
        # An object that isn't looked into for what it may have.
        odd, self._odd = self._odd, False
        text = self.object_of(fields)
        self._odd = odd
        return text

    def event(self) -> str:
        """One event's text."""
        metadata = ("id", "created", "model", "service_tier", "system_fingerprint", "more")
        fields = {
            **dict.fromkeys(metadata, self.value),
            "object": self.value,
            "choices": self._choices,
            "usage": self._maybe(self._usage),
            "metrics": self._maybe(lambda: self._plain({"queue_time_ms": self.number, "more": self.value})),
            **self._ids(),
        }
        return self._padded(self.object_of(fields, "choices"))

    def stream(self) -> list[bytes]:
        """Up to five events."""
        return [self.event().encode() for _ in range(1 + self._below(5))]
