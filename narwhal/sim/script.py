"""What a simulated engine will answer: a pure function of the prompt, the seed and what the request asks for.

So a prompt gives the same tokens on any engine, split over two or not, and a test can say beforehand what
must come. As with a real engine, whether tokens are streamed has no say in which they are, and each hangs on
all tokens before it, whoever wrote these: a prompt that ends with the beginning of an answer gets its rest.
"""

from __future__ import annotations

import hashlib
import sys
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple

import orjson

from narwhal.sim import directives, vocabulary
from narwhal.sim.directives import Directives, Output

DEFAULT_COMPLETION_TOKENS = 16  # vLLM's max_tokens for /v1/completions
DEFAULT_CHAT_TOKENS = 64  # where a simulated model stops by itself when a chat sets no limit
ASSISTANT = "<|assistant|>\n"


class Piece(NamedTuple):
    """What one token adds to the answer."""

    token: int
    output: Output
    text: str
    call: int = 0  # tool_calls: which call
    opens: bool = False  # the token that opens a tool or function call; it carries no text


class RequestError(Exception):
    """A request the engine turns down as vLLM does."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.message, self.status, self.param = message, status, param


@dataclass(frozen=True, slots=True)
class Script:
    """A planned answer."""

    prompt_ids: list[int]
    pieces: list[Piece]
    finish_reason: str
    stop_reason: str | int | None
    digest: bytes  # of the prompt, seed not included

    @property
    def token_ids(self) -> list[int]:
        return [piece.token for piece in self.pieces]

    def text(self, output: Output = Output.TEXT) -> str:
        """All that comes under one kind of output."""
        return "".join(piece.text for piece in self.pieces if piece.output is output)


def prompt_ids(chat: bool, body: dict[str, Any]) -> list[int]:
    """The token IDs of a request's prompt. Raises RequestError."""
    if not chat:
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
            prompt = prompt[0]
        if isinstance(prompt, str):
            ids = vocabulary.encode(prompt)
        elif isinstance(prompt, list) and all(
            type(token) is int and 0 <= token < 1 << 31 for token in prompt
        ):
            ids = prompt
        else:
            raise RequestError("prompt must be one string or one list of token IDs", param="prompt")
        if not ids:
            raise RequestError("The prompt cannot be empty", param="prompt")
        return ids
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list with at least one message", param="messages")
    parts = []
    if body.get("tools"):
        parts.append(f"<|tools|>\n{orjson.dumps(body['tools']).decode()}\n")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError(f"messages[{index}] must be an object with a role", param="messages")
        parts.append(f"<|{message['role']}|>\n{_content(message.get('content'))}\n")
    parts.append(ASSISTANT)
    return vocabulary.encode("".join(parts))


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def limit(body: dict[str, Any]) -> int | None:
    """The most tokens the request allows, if it says."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise RequestError(f"{name} must be at least 1, got {value}.", param=name)
        return value
    return None


def plan(
    chat: bool,
    body: dict[str, Any],
    wishes: Directives,
    *,
    default_seed: int = 0,
    max_model_len: int = 1 << 20,
    spoiled: bool = False,
) -> Script:
    """The answer to a request; if its KV cache is spoiled, a wrong one. Raises RequestError."""
    ids = prompt_ids(chat, body)
    most = limit(body)
    free = max_model_len - len(ids)
    if len(ids) + (most or 1) > max_model_len:
        raise RequestError(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{most or 1} output tokens and your prompt contains at least {len(ids)} input tokens. Please "
            "reduce the length of the input prompt or the number of requested output tokens.",
            param="input_tokens",
        )
    if most is None:
        most = free if chat else DEFAULT_COMPLETION_TOKENS
    given = None if wishes.text is None else vocabulary.encode(wishes.text)
    if given is not None and isinstance(body.get("prompt"), list):
        given = given[_written(ids, given) :]
    length = wishes.output_tokens if given is None else len(given) + 1
    if length is None and most == free:
        # Nothing but the context limits it: a chat, or the rest of one.
        length = DEFAULT_CHAT_TOKENS - _said(ids)
    digest = hashlib.blake2b(array("q", ids).tobytes(), digest_size=16).digest()
    seed = body.get("seed")
    source = _Model(ids, repr((default_seed if seed is None else seed, spoiled)))
    outputs = _outputs(chat, body, wishes)
    tokens = _pieces(outputs, (length or most + 1) - 1, given, wishes.tool_calls, source)
    if length is not None:
        tokens = chain(tokens, (Piece(vocabulary.END_TOKEN, Output.TEXT, ""),))
    pieces = list(islice(tokens, most))
    finish = "length"
    if length is not None and length <= most:
        finish = next((_CALLS[output] for output in outputs if output in _CALLS), "stop")
    return Script(ids, pieces, wishes.finish_reason or finish, wishes.stop_reason, digest)


class _Model:
    """Picks words by all the tokens before."""

    def __init__(self, ids: list[int], seed: str) -> None:
        self._state = zlib.crc32(array("q", ids).tobytes(), zlib.crc32(seed.encode()))

    def word(self) -> int:
        mixed = self._state * 0x9E3779B1 & 0xFFFFFFFF
        token = vocabulary.FIRST_WORD + (mixed * len(vocabulary.WORDS) >> 32)
        self._state = zlib.crc32(token.to_bytes(8, sys.byteorder), self._state)
        return token


def _written(ids: list[int], given: list[int]) -> int:
    """How much of a given answer a prompt ends with."""
    longest = min(len(ids), len(given))
    return next((size for size in range(longest, 0, -1) if ids[-size:] == given[:size]), 0)


def _said(ids: list[int]) -> int:
    """How much of a chat's answer a prompt ends with."""
    for said in range(min(DEFAULT_CHAT_TOKENS, len(ids))):
        end = len(ids) - said
        if vocabulary.decode(ids[max(0, end - len(ASSISTANT)) : end]).endswith(ASSISTANT):
            return said
    return 0


def expected_output(body: dict[str, Any], default_seed: int = 0) -> tuple[list[int], str]:
    """The token IDs and text with which any simulated engine answers a body. Raises RequestError."""
    script = plan("messages" in body, body, directives.read(body.get("sim")), default_seed=default_seed)
    return script.token_ids, script.text()


_CALLS = {Output.TOOL_CALLS: "tool_calls", Output.FUNCTION_CALL: "function_call"}


def _outputs(chat: bool, body: dict[str, Any], wishes: Directives) -> tuple[Output, ...]:
    if not chat:
        return (Output.TEXT,)
    if not wishes.output and body.get("tools") and body.get("tool_choice") not in (None, "auto", "none"):
        return (Output.TOOL_CALLS,)
    return wishes.output or (Output.TEXT,)


def _shares(total: int, parts: int) -> list[int]:
    return [total // parts + (i < total % parts) for i in range(parts)]


def _pieces(
    outputs: tuple[Output, ...], length: int, given: list[int] | None, calls: int, source: _Model
) -> Iterator[Piece]:
    for output, share in zip(outputs, _shares(length, len(outputs)), strict=True):
        if output in _CALLS:
            for call, tokens in enumerate(_shares(share, calls if output is Output.TOOL_CALLS else 1)):
                yield from _call(output, call, tokens, source)
        elif given is not None and output is Output.TEXT:
            for token, text in zip(given, vocabulary.pieces(given), strict=True):
                yield Piece(token, output, text)
        else:
            for token in _words(share, source):
                yield Piece(token, output, vocabulary.text_of(token))


def _call(output: Output, call: int, tokens: int, source: _Model) -> Iterator[Piece]:
    """A call's tokens: the one that opens it, then its arguments, an object with one string."""
    if tokens:
        yield Piece(vocabulary.CALL_TOKEN, output, "", call, opens=True)
    if tokens > 1:
        yield Piece(vocabulary.OPEN_TOKEN, output, vocabulary.ARGUMENTS_OPEN, call)
    for token in _words(tokens - 3, source):
        yield Piece(token, output, vocabulary.text_of(token), call)
    if tokens > 2:
        yield Piece(vocabulary.CLOSE_TOKEN, output, vocabulary.ARGUMENTS_CLOSE, call)


def _words(count: int, source: _Model) -> Iterator[int]:
    # One at a time, so that an answer cut short costs no more than what is sent of it.
    for _ in range(count):
        yield source.word()
