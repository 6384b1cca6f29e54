"""How vLLM 0.32 writes what it sends: events, whole responses, errors, down to the order of the keys.

A stream's events differ in little but the text and the token ID, so what they share is put together once.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import orjson

from narwhal.sim import vocabulary
from narwhal.sim.directives import Output
from narwhal.sim.script import Piece, Script

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "vllm-0.32.0-tp1-51a7e0d2"
VERSION = "0.32.0"

_ERROR_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    429: "RateLimitError",
}


def error(message: str, status: int, param: str | None = None) -> bytes:
    """An error body."""
    kind = _ERROR_TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


def error_event(message: str, status: int) -> bytes:
    """An error in a stream that has status 200. Unlike all else, vLLM writes it with spaces."""
    return b"data: %b\n\n" % json.dumps(orjson.loads(error(message, status))).encode()


def _logprob(token: int) -> float:
    return -(token % 97 + 1) / 128


def _alternatives(token: int, count: int) -> list[tuple[int, str]]:
    """The tokens that came next to `token`, with their texts: with itself there are `count`."""
    start = vocabulary.FIRST_WORD + token % 997
    return [(other, vocabulary.text_of(other)) for other in range(start, start + count) if other != token][
        : count - 1
    ]


class Shape(ABC):
    """One request's way of being answered, streamed or whole."""

    ids: bool  # the request set return_token_ids
    _more_details: ClassVar[dict[str, Any]] = {}  # of the prompt's tokens, beside cached_tokens

    def __init__(
        self,
        *,
        request_id: str,
        created: int,
        model: str,
        body: dict[str, Any],
        script: Script,
        cached_tokens: int | None,
        reasoning_field: str,
    ) -> None:
        self.script = script
        self.ids = body.get("return_token_ids") is True
        options = body.get("stream_options")
        options = options if isinstance(options, dict) else {}
        self.include_usage = options.get("include_usage") is True
        self._continuous = self.include_usage and options.get("continuous_usage_stats") is True
        self._cached_tokens = cached_tokens
        self._reasoning_field = reasoning_field
        self._head = {"id": request_id, "object": "", "created": created, "model": model}
        self._logprobs = self._wanted_logprobs(body)

    @abstractmethod
    def _wanted_logprobs(self, body: dict[str, Any]) -> int | None:
        """How many alternatives to give for each token; None: no logprobs."""

    @abstractmethod
    def opening(self) -> list[bytes]:
        """The events before the first token."""

    @abstractmethod
    def event(self, pieces: Sequence[Piece], count: int, ids: bytes | None, final: bool) -> bytes:
        """The event of some tokens, the answer's first `count` now sent; `ids`: the value of token_ids."""

    @abstractmethod
    def whole(self, handoff: dict[str, Any] | None) -> bytes:
        """The response to a request that does not stream."""

    def silent(self, pieces: Sequence[Piece], final: bool) -> bool:
        """Whether these tokens make no event."""
        return False

    def usage_event(self) -> bytes:
        """The last event of a stream that was asked for usage."""
        usage = self.usage(len(self.script.pieces), details=True)
        value = {**self._head, "choices": [], "usage": usage, "system_fingerprint": FINGERPRINT}
        return b"data: %b\n\n" % orjson.dumps(value)

    def usage(self, generated: int, *, details: bool) -> dict[str, Any]:
        """The usage object. With `details`, the prefix cache's share where the engine reports it."""
        prompt = len(self.script.prompt_ids)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + generated,
            "completion_tokens": generated,
        }
        if details and self._cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self._cached_tokens} | self._more_details
        return usage

    def _whole_usage(self) -> dict[str, Any]:
        usage = self.usage(len(self.script.pieces), details=True)
        details = {
            "cached_tokens": self._cached_tokens,
            "created_cache_tokens": None,
            "multimodal_tokens": None,
        }
        usage["prompt_tokens_details"] = None if self._cached_tokens is None else details | self._more_details
        usage["completion_tokens_details"] = None
        return usage

    def _tail(self, count: int, final: bool) -> bytes:
        """What follows the choices: usage if asked for all along, the fingerprint at the end."""
        tail = b"]"
        if self._continuous:
            tail += b',"usage":' + orjson.dumps(self._running_usage(count))
        if final and not self.include_usage:
            tail += b',"system_fingerprint":"%b"' % FINGERPRINT.encode()
        return tail + b"}\n\n"

    def _running_usage(self, count: int) -> dict[str, Any]:
        return self.usage(count, details=False)


class ChatShape(Shape):
    """/v1/chat/completions."""

    def __init__(self, **figures: Any) -> None:
        super().__init__(**figures)
        self._head["object"] = "chat.completion.chunk"
        self._before = b"data: " + orjson.dumps(self._head)[:-1] + b',"choices":['
        self._call_id = "chatcmpl-tool-" + self.script.digest.hex()[:16]
        self._function = _function_name(figures["body"])
        self._prompt_text = (
            vocabulary.decode(self.script.prompt_ids)
            if figures["body"].get("return_prompt_text") is True
            else None
        )
        self._write: dict[Output, Callable[[Sequence[Piece]], bytes]] = {
            Output.TEXT: _text_writer("content"),
            Output.REASONING: _text_writer(self._reasoning_field),
            Output.REFUSAL: _text_writer("refusal"),
            Output.TOOL_CALLS: self._tool_calls_delta,
            Output.FUNCTION_CALL: self._function_call_delta,
        }

    _more_details: ClassVar[dict[str, Any]] = {"created_cache_tokens": 0}

    def _running_usage(self, count: int) -> dict[str, Any]:
        return super()._running_usage(count) | {"completion_tokens_details": None}

    def silent(self, pieces: Sequence[Piece], final: bool) -> bool:
        """vLLM writes no event for a token without text, unless it has something else to say of it."""
        spoken = final or self.ids or self._logprobs is not None
        return not spoken and not any(piece.text or piece.opens for piece in pieces)

    def _wanted_logprobs(self, body: dict[str, Any]) -> int | None:
        if body.get("logprobs") is not True:
            return None
        top = body.get("top_logprobs")
        return top if type(top) is int else 0

    def opening(self) -> list[bytes]:
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        value: dict[str, Any] = {**self._head, "choices": [choice]}
        if self._continuous:
            value["usage"] = self._running_usage(0)
        value["prompt_token_ids"] = self.script.prompt_ids if self.ids else None
        value["prompt_text"] = self._prompt_text
        return [b"data: %b\n\n" % orjson.dumps(value)]

    def event(self, pieces: Sequence[Piece], count: int, ids: bytes | None, final: bool) -> bytes:
        logprobs = b"null" if self._logprobs is None else orjson.dumps(self._logprob_list(pieces))
        finish = b"null"
        if final:
            finish = orjson.dumps(self.script.finish_reason) + b',"stop_reason":'
            finish += orjson.dumps(self.script.stop_reason)
        return b'%b{"index":0,"delta":%b,"logprobs":%b,"finish_reason":%b%b}%b' % (
            self._before,
            self._delta(pieces),
            logprobs,
            finish,
            b"" if ids is None else b',"token_ids":' + ids,
            self._tail(count, final),
        )

    def _delta(self, pieces: Sequence[Piece]) -> bytes:
        if len(pieces) == 1 and not pieces[0].text and not pieces[0].opens:
            return b"{}"
        return self._write[pieces[0].output](pieces)

    def _tool_calls_delta(self, pieces: Sequence[Piece]) -> bytes:
        calls: list[dict[str, Any]] = []
        for piece in pieces:
            if piece.opens:
                function = {"name": self._function}
                call_id = f"{self._call_id}{piece.call:02}"
                calls.append({"id": call_id, "type": "function", "index": piece.call, "function": function})
            elif calls and calls[-1]["index"] == piece.call:
                function = calls[-1]["function"]
                function["arguments"] = function.get("arguments", "") + piece.text
            else:
                calls.append({"index": piece.call, "function": {"arguments": piece.text}})
        return orjson.dumps({"content": None, "tool_calls": calls})

    def _function_call_delta(self, pieces: Sequence[Piece]) -> bytes:
        call = {"name": self._function} if pieces[0].opens else {}
        call["arguments"] = "".join(piece.text for piece in pieces)
        return orjson.dumps({"function_call": call})

    def _logprob_list(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        entries = []
        for piece in pieces:
            # As vLLM does: a token that completes no character is shown without text.
            entry = _chat_logprob(piece.token, piece.text)
            others = _alternatives(piece.token, self._logprobs or 0)
            top = [entry, *(_chat_logprob(*other) for other in others)] if self._logprobs else []
            entries.append({**entry, "top_logprobs": top})
        return {"content": entries}

    def whole(self, handoff: dict[str, Any] | None) -> bytes:
        script = self.script
        outputs = {piece.output for piece in script.pieces if piece.token != vocabulary.END_TOKEN}
        outputs = outputs or {Output.TEXT}
        texts = {output: script.text(output) if output in outputs else None for output in Output}
        # vLLM's parsers leave content null where there is only something else.
        message: dict[str, Any] = {
            "role": "assistant",
            "content": texts[Output.TEXT],
            "refusal": texts[Output.REFUSAL],
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        if Output.FUNCTION_CALL in outputs:
            message["function_call"] = {"name": self._function, "arguments": texts[Output.FUNCTION_CALL]}
        if Output.TOOL_CALLS in outputs:
            message["tool_calls"] = self._whole_calls()
        message[self._reasoning_field] = texts[Output.REASONING]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None if self._logprobs is None else self._logprob_list(script.pieces),
            "finish_reason": script.finish_reason,
            "stop_reason": script.stop_reason,
            "token_ids": script.token_ids if self.ids else None,
            "routed_experts": None,
        }
        value = {
            **self._head,
            "object": "chat.completion",
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": self._whole_usage(),
            "prompt_logprobs": None,
            "prompt_token_ids": script.prompt_ids if self.ids else None,
            "prompt_text": self._prompt_text,
            "kv_transfer_params": handoff,
            "ec_transfer_params": None,
            "metrics": None,
        }
        return orjson.dumps(value)

    def _whole_calls(self) -> list[dict[str, Any]]:
        arguments: dict[int, str] = {}
        for piece in self.script.pieces:
            if piece.output is Output.TOOL_CALLS:
                arguments[piece.call] = arguments.get(piece.call, "") + piece.text
        return [
            {
                "id": f"{self._call_id}{call:02}",
                "type": "function",
                "function": {"name": self._function, "arguments": text},
            }
            for call, text in arguments.items()
        ]


class CompletionShape(Shape):
    """/v1/completions."""

    def __init__(self, **figures: Any) -> None:
        super().__init__(**figures)
        self._head["object"] = "text_completion"
        self._before = b"data: " + orjson.dumps(self._head)[:-1] + b',"choices":['
        self._offset = 0
        self._prompt_ids = orjson.dumps(self.script.prompt_ids) if self.ids else b"null"

    def _wanted_logprobs(self, body: dict[str, Any]) -> int | None:
        count = body.get("logprobs")
        return count if type(count) is int else None

    def opening(self) -> list[bytes]:
        return []

    def event(self, pieces: Sequence[Piece], count: int, ids: bytes | None, final: bool) -> bytes:
        text = pieces[0].text if len(pieces) == 1 else "".join(piece.text for piece in pieces)
        prompt, self._prompt_ids = self._prompt_ids, b"null"  # with the first event only
        return (
            b'%b{"index":0,"text":%b,"logprobs":%b,"finish_reason":%b,"stop_reason":%b,"prompt_token_ids":%b%b}%b'
            % (
                self._before,
                orjson.dumps(text),
                b"null" if self._logprobs is None else orjson.dumps(self._logprob_lists(pieces)),
                orjson.dumps(self.script.finish_reason) if final else b"null",
                orjson.dumps(self.script.stop_reason) if final else b"null",
                prompt,
                b"" if ids is None else b',"token_ids":' + ids,
                self._tail(count, final),
            )
        )

    def _logprob_lists(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        offsets, top = [], []
        for piece in pieces:
            offsets.append(self._offset)
            self._offset += len(piece.text)
            others = _alternatives(piece.token, self._logprobs or 0)
            top.append({text: _logprob(token) for token, text in [(piece.token, piece.text), *others]})
        return {
            "text_offset": offsets,
            "token_logprobs": [_logprob(piece.token) for piece in pieces],
            "tokens": [piece.text for piece in pieces],
            "top_logprobs": top,
        }

    def whole(self, handoff: dict[str, Any] | None) -> bytes:
        script = self.script
        choice = {
            "index": 0,
            "text": script.text(),
            "logprobs": None if self._logprobs is None else self._logprob_lists(script.pieces),
            "finish_reason": script.finish_reason,
            "stop_reason": script.stop_reason,
            "token_ids": script.token_ids if self.ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": script.prompt_ids if self.ids else None,
            "routed_experts": None,
        }
        value = {
            **self._head,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": self._whole_usage(),
            "kv_transfer_params": handoff,
            "ec_transfer_params": None,
            "metrics": None,
        }
        return orjson.dumps(value)


def _text_writer(key: str) -> Callable[[Sequence[Piece]], bytes]:
    start = b'{"%b":' % key.encode()

    def write(pieces: Sequence[Piece]) -> bytes:
        text = pieces[0].text if len(pieces) == 1 else "".join(piece.text for piece in pieces)
        return start + orjson.dumps(text) + b"}"

    return write


def _chat_logprob(token: int, text: str) -> dict[str, Any]:
    return {"token": text, "logprob": _logprob(token), "bytes": list(text.encode())}


def _function_name(body: dict[str, Any]) -> str:
    """The function that calls are for: the one that tool_choice names, else the first offered."""
    choice, tools = body.get("tool_choice"), body.get("tools")
    for tool in [choice, *(tools if isinstance(tools, list) else [])]:
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
            name = tool["function"].get("name")
            if isinstance(name, str):
                return name
    return "lookup"
