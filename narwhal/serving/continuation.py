"""Going on elsewhere with an answer whose engine was lost: when that is exact, and what to ask for.

A model writes its next token by the tokens before it. So an answer of which the prompt's and the delivered
token IDs are known can be gone on with by any engine of the same model: the prompt is then all of these IDs,
and the limit on tokens is less by those delivered. Text completions take such a prompt; chats don't, so their
rest is asked for as a text completion, and its events are put into a chat's form (join.py).

It is done only where the client can't tell: where what an engine does next depends on the IDs alone. Fields
of a request are let through by name, each for a reason below; with any other, the answer is not gone on with.
What is judged by the answer itself (a tool call, reasoning, a character cut in two) is in `_fast/recall`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from narwhal._fast.body import Body, Kind
from narwhal._fast.recall import Recall
from narwhal.request import CompletionRequest, Route
from narwhal.serving.join import Join

_DEFAULT_TOKENS = 16  # what an engine writes for a text completion without max_tokens


def _any(value: Any) -> bool:
    return True


def _nothing(value: Any) -> bool:
    return value in (None, False, [], "", 0)


# Where what comes next depends on the field by the tokens so far, or not at all.
_FREE: Mapping[str, Callable[[Any], bool]] = dict.fromkeys(
    (
        "model", "stream", "stream_options", "stream_interval", "user", "priority", "cache_salt",
        "n", "best_of",  # 1, since others are refused
        "max_tokens",  # is made less
        "min_tokens",  # likewise
        "temperature", "top_p", "top_k", "min_p", "logit_bias", "allowed_token_ids",
        "repetition_penalty",  # counts tokens of the prompt and of the answer alike
        "seed",  # at temperature 0; else see `of`
        "ignore_eos", "stop_token_ids", "include_stop_str_in_output",
        "skip_special_tokens", "spaces_between_special_tokens",
        "logprobs", "return_token_ids",
        "add_special_tokens", "truncate_prompt_tokens", "truncation_side",  # their work is done
    ),
    _any,
)  # fmt: skip
# These would count the answer's tokens from the seam on, or match text across it.
_IDLE: Mapping[str, Callable[[Any], bool]] = dict.fromkeys(
    (
        "presence_penalty", "frequency_penalty", "stop", "bad_words", "use_beam_search", "echo", "suffix",
        "tools", "functions", "prompt_logprobs", "prompt_embeds", "kv_transfer_params",
    ),
    _nothing,
)  # fmt: skip
_CHECKS: Mapping[Route, Mapping[str, Callable[[Any], bool]]] = {
    Route.COMPLETIONS: {
        **_FREE,
        **_IDLE,
        "prompt": _any,
        "return_tokens_as_token_ids": _any,
        "response_format": lambda value: value in (None, {"type": "text"}),
    },
    Route.CHAT: {
        **_FREE,
        **_IDLE,
        "response_format": lambda value: value in (None, {"type": "text"}),
        "tool_choice": lambda value: value in (None, "none"),
        "modalities": lambda value: value in (None, ["text"]),
        # Text only: token IDs don't bring pictures along. Looked at when it matters, since it may be large.
        "messages": _any,
        "top_logprobs": _any,
        "max_completion_tokens": _any,
        # What makes messages a prompt, of which the IDs are known by then.
        **dict.fromkeys(
            (
                "chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message",
                "documents", "parallel_tool_calls", "return_prompt_text",
            ),
            _any,
        ),
        # OpenAI's, without effect on what is written.
        **dict.fromkeys(("metadata", "store", "service_tier"), _any),
    },
}  # fmt: skip
_LEFT_OUT = frozenset(
    {"echo", "suffix", "add_special_tokens", "truncate_prompt_tokens", "truncation_side", "response_format"}
)
_OF_CHATS = frozenset(_CHECKS[Route.CHAT]) - frozenset(_CHECKS[Route.COMPLETIONS]) | {"tools", "functions"}
_LARGE = frozenset({"messages", "prompt", "documents"})


class Continuation:
    """What is kept of one answer to go on with it, and what comes of that."""

    def __init__(self, request: CompletionRequest, *, sampled: bool, limit: int) -> None:
        self.recall = Recall(request.route is Route.CHAT, limit)
        self.cached_tokens: int | None = (
            None  # of the prompt, as the first producer found them; set by others
        )
        self._request = request
        self._sampled = sampled
        most = request.max_tokens
        if most is None and request.route is Route.COMPLETIONS:
            most = _DEFAULT_TOKENS
        self._most = most

    @classmethod
    def of(cls, request: CompletionRequest, limit: int) -> Continuation | None:
        """For a request whose answer could be gone on with; None for others.

        `limit` bounds what is kept of the answer, in bytes.
        """
        body, checks = request.body, _CHECKS[request.route]
        keys: list[str] = body.keys()
        for key in keys:
            if body.kind(key) is Kind.NULL or key in _LARGE:
                continue
            check = checks.get(key)
            if check is None or (check is not _any and not check(_value(body, key))):
                return None
        sampled = body.kind("temperature") not in (Kind.INT, Kind.FLOAT) or _value(body, "temperature") != 0
        # A seed's promise hangs on every number drawn so far. And only at temperature 0 it can be told
        # whether a text completion's alternatives are all that a chat would have.
        if sampled and (body.natural("top_logprobs") > 0 or body.kind("seed") not in (None, Kind.NULL)):
            return None
        return cls(request, sampled=sampled, limit=limit)

    @property
    def possible(self) -> bool:
        """Whether it can be gone on with as it is now."""
        recall = self.recall
        if not recall.plain or recall.finished or not recall.tokens or recall.prompt_ids is None:
            return False
        if self._sampled and recall.seam < recall.tokens:
            return False  # what was drawn after the seam would not be drawn again
        return (self._most is None or recall.tokens < self._most) and self._text_only()

    @property
    def complete(self) -> bool:
        """Whether the last token came, so that nothing is missing that an engine would have to write."""
        return self.recall.finished and self.prompt_tokens is not None

    @property
    def unlimited(self) -> bool:
        """Whether the model's context is its only limit, which then has to be known."""
        return self._most is None

    def rest(self, context_tokens: int | None) -> tuple[CompletionRequest, Join] | None:
        """What to ask for, and what puts the answer to it behind what was delivered; None if nothing can be.

        `context_tokens` is the model's context, for a request that is `unlimited`.
        """
        recall, request = self.recall, self._request
        prompt = _ids(recall.prompt_ids or b"[]")
        delivered = _ids(b"[%b]" % recall.ids_before_the_seam)
        again = _ids(b"[%b]" % recall.ids_since_the_seam)
        if prompt is None or delivered is None or again is None or not self.possible:
            return None
        most = self._most
        if most is None:
            if context_tokens is None:
                return None
            most = context_tokens - len(prompt)
        left = most - len(delivered)
        if left <= len(again):
            return None
        put = {
            "prompt": orjson.dumps([*prompt, *delivered]),
            "max_tokens": b"%d" % left,
        }
        at_least = request.body.natural("min_tokens")
        if at_least > 0:
            put["min_tokens"] = b"%d" % max(0, at_least - len(delivered))
        drop = _LEFT_OUT
        top = 0
        if request.route is Route.CHAT:
            drop |= _OF_CHATS
            if request.body.kind("logprobs") is Kind.TRUE:
                top = max(0, request.body.natural("top_logprobs"))
                put["logprobs"] = b"%d" % top
            else:
                drop |= {"logprobs"}
        join = Join(
            chat=request.route is Route.CHAT,
            id=recall.id or b"null",
            created=recall.created or b"null",
            prompt_tokens=len(prompt),
            delivered=len(delivered),
            again=again,
            text_again=recall.text_since_the_seam,
            logprobs=recall.logprobs_at_the_seam,
            top_logprobs=top,
            cached_tokens=self.cached_tokens,
        )
        return (
            request.as_completion(
                Body(b"".join(request.body.edit(drop, put))), left, len(prompt) + len(delivered)
            ),
            join,
        )

    def tail(self, tokens: int, *, usage_told: bool) -> bytes:
        """What is missing of a stream that is `complete` with so many tokens: the usage, if it is wanted and
        was not told, and [DONE]."""
        recall, prompt_tokens = self.recall, self.prompt_tokens or 0
        if usage_told or not self._request.include_usage:
            return b"data: [DONE]\n\n"
        what = b"chat.completion.chunk" if self._request.route is Route.CHAT else b"text_completion"
        return (
            b'data: {"id":%b,"object":"%b","created":%b,"model":%b,"choices":[],"usage":'
            b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}\n\ndata: [DONE]\n\n'
        ) % (
            recall.id or b"null",
            what,
            recall.created or b"null",
            orjson.dumps(self._request.model),
            prompt_tokens,
            prompt_tokens + tokens,
            tokens,
        )

    @property
    def prompt_tokens(self) -> int | None:
        """The prompt's length, if its IDs are known."""
        ids = _ids(self.recall.prompt_ids or b"null")
        return None if ids is None else len(ids)

    def _text_only(self) -> bool:
        if self._request.route is Route.COMPLETIONS:
            return True
        messages = _value(self._request.body, "messages")
        return isinstance(messages, list) and all(
            isinstance(message, dict) and _is_text(message.get("content")) for message in messages
        )


def _is_text(content: Any) -> bool:
    if isinstance(content, list):
        return all(isinstance(part, dict) and part.get("type") == "text" for part in content)
    return content is None or isinstance(content, str)


def _value(body: Body, key: str) -> Any:
    # An integer of thousands of digits is no value of any field that is asked for.
    try:
        return body.value(key)
    except ValueError:
        return ...


def _ids(text: bytes) -> list[int] | None:
    try:
        ids = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
        return None
    return ids
