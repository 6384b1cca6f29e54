"""The events of an answer's second part, as the engine that wrote its first part would have sent them.

The rest of an answer comes as a text completion whose prompt ends with what was delivered already. Its events
get the first part's ID and date, and figures that count from the answer's own beginning: usage, and the text
offsets of logprobs. A chat's are put into a chat's form, logprobs too. All else stays as the engine wrote it,
byte for byte.

If the seam lies before the end of what was delivered, the first tokens come again. They must be the same, and
are left out.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from narwhal._fast.body import Body, Kind

_LISTS = ("text_offset", "token_logprobs", "tokens", "top_logprobs")
_PLACEHOLDER = "token_id:"  # an engine may write this in a token's place


class Join:
    """Rewrites one stream's events, in order."""

    def __init__(
        self,
        *,
        chat: bool,
        id: bytes,  # like `created`, as JSON writes it
        created: bytes,
        prompt_tokens: int,
        delivered: int,
        again: list[int],
        text_again: bytes,
        logprobs: bytes | None,
        top_logprobs: int,
        cached_tokens: int | None,
    ) -> None:
        """`delivered` tokens came before the seam; `again` are those that came after it, and `text_again` is
        their text as JSON writes it between quotes.

        `logprobs` are those of the event before the seam. A chat was asked for `top_logprobs` alternatives to
        each token. `cached_tokens` goes into a usage that says something of cached tokens; None takes that
        out of it.
        """
        self._chat = chat
        self._head = {"id": id, "created": created}
        if chat:
            self._head["object"] = b'"chat.completion.chunk"'
        self._prompt_tokens = prompt_tokens
        self._delivered = delivered
        self._again = again
        self._text_again: str = json.loads(b'"%b"' % text_again)
        self._offset = _next_offset(logprobs)
        self._top_logprobs = top_logprobs
        self._cached_tokens = cached_tokens

    def event(self, data: bytes) -> bytes | None:
        """One event's JSON; None for one that the client has had. Raises ValueError if it does not fit."""
        try:
            event = Body(data)
        except TypeError:
            raise ValueError("an event is no JSON object") from None
        if event.kind("error") not in (None, Kind.NULL) or event.kind("choices") is not Kind.ARRAY:
            return data
        put = dict(self._head)
        choices = (event.raw_value("choices") or b"")[1:-1].strip()
        if choices:
            choice = self._choice(Body(choices))
            if choice is None:
                return None
            put["choices"] = b"[%b]" % choice
        if event.kind("usage") is Kind.OBJECT:
            put["usage"] = self._usage(Body(event.raw_value("usage") or b"{}"), whole=not choices)
        return b"".join(event.edit(frozenset(), put))

    def _choice(self, choice: Body) -> bytes | None:
        put: dict[str, bytes] = {}
        logprobs = None
        if choice.kind("logprobs") is Kind.OBJECT:
            logprobs = choice.value("logprobs")
        text = choice.raw_value("text") or b'""'
        if self._again or self._text_again:
            left = self._left_out(choice)
            if left is None:
                return None
            skipped, text, ids = left
            put |= {"text": text, "token_ids": orjson.dumps(ids)}
            if skipped and logprobs is not None:
                logprobs = {name: logprobs[name][skipped:] for name in _LISTS}
                put["logprobs"] = orjson.dumps(logprobs)
        if self._chat:
            return self._chat_choice(choice, text, put.get("token_ids"), logprobs)
        if choice.kind("prompt_token_ids") is not None:
            put["prompt_token_ids"] = b"null"
        if logprobs is not None:
            raw = put.get("logprobs") or choice.raw_value("logprobs") or b"{}"
            offsets = [self._offset + offset for offset in logprobs["text_offset"]]
            put["logprobs"] = b"".join(Body(raw).edit(frozenset(), {"text_offset": orjson.dumps(offsets)}))
        return b"".join(choice.edit(frozenset(), put))

    def _left_out(self, choice: Body) -> tuple[int, bytes, list[int]] | None:
        """How many of an event's tokens came before, its other text and IDs; None if there are none."""
        ids: list[int] = choice.value("token_ids") or []
        text: str = choice.value("text") or ""
        known, new = self._again[: len(ids)], ids[len(self._again) :]
        if ids[: len(known)] != known:
            raise ValueError("other tokens came this time")
        self._again = self._again[len(ids) :]
        if len(text) <= len(self._text_again):
            same, self._text_again = self._text_again[: len(text)], self._text_again[len(text) :]
            text, rest = text[: len(same)], ""
        else:
            same, self._text_again = self._text_again, ""
            text, rest = text[: len(same)], text[len(same) :]
        ended = choice.kind("finish_reason") is Kind.STRING
        if text != same or (not new and (rest or ended)) or (not self._again and self._text_again):
            raise ValueError("the same tokens came with other text this time")
        return (len(known), orjson.dumps(rest), new) if new else None

    def _usage(self, usage: Body, *, whole: bool) -> bytes:
        tokens = usage.natural("completion_tokens")
        prompt = usage.natural("prompt_tokens")
        if tokens < 0 or prompt < 0:
            raise ValueError("its usage has no figures")
        put = {
            "prompt_tokens": b"%d" % self._prompt_tokens,
            "completion_tokens": b"%d" % (self._delivered + tokens),
            "total_tokens": b"%d" % (self._prompt_tokens + self._delivered + tokens),
        }
        drop: frozenset[str] = frozenset()
        if self._cached_tokens is None:
            drop = frozenset({"prompt_tokens_details"})
        elif usage.kind("prompt_tokens_details") is Kind.OBJECT:
            put["prompt_tokens_details"] = b'{"cached_tokens":%d}' % self._cached_tokens
        if self._chat and not whole:
            put["completion_tokens_details"] = b"null"
        return b"".join(usage.edit(drop, put))

    def _chat_choice(
        self, choice: Body, text: bytes, ids: bytes | None, logprobs: dict[str, Any] | None
    ) -> bytes:
        # In the order in which vLLM writes it.
        raw, finish = choice.raw_value, choice.raw_value("finish_reason") or b"null"
        return b'{"index":0,"delta":%b,"logprobs":%b,"finish_reason":%b%b%b}' % (
            b"{}" if text == b'""' else b'{"content":%b}' % text,
            b"null" if logprobs is None else orjson.dumps({"content": self._chat_logprobs(logprobs)}),
            finish,
            b"" if finish == b"null" else b',"stop_reason":' + (raw("stop_reason") or b"null"),
            b',"token_ids":' + (ids or raw("token_ids") or b"null"),
        )

    def _chat_logprobs(self, logprobs: dict[str, Any]) -> list[dict[str, Any]]:
        entries = []
        lists = (logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"])
        for token, logprob, top in zip(*lists, strict=True):
            others = self._alternatives(token, logprob, top)
            entries.append({**_entry(token, logprob), "top_logprobs": others})
        return entries

    def _alternatives(self, token: str, logprob: float, top: dict[str, float]) -> list[dict[str, Any]]:
        # A text completion has one entry for all alternatives of the same text, a chat has each of them. At
        # temperature 0 the token itself is one of those asked for, so missing ones show.
        if not self._top_logprobs:
            return []
        if len(top) < self._top_logprobs or top.get(token) != logprob:
            raise ValueError(
                "two alternatives to a token have the same text, and a chat would tell them apart"
            )
        return [_entry(*item) for item in list(top.items())[: self._top_logprobs]]


def _entry(token: str, logprob: float) -> dict[str, Any]:
    if token.startswith(_PLACEHOLDER):
        raise ValueError("the engine writes IDs for tokens, of which a chat would have the text as well")
    return {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8", "replace"))}


def _next_offset(logprobs: bytes | None) -> int:
    """Where the text of the next token begins, in characters."""
    lists = orjson.loads(logprobs or b"{}")
    offsets, tokens = lists.get("text_offset"), lists.get("tokens")
    return offsets[-1] + len(tokens[-1]) if offsets and tokens else 0
