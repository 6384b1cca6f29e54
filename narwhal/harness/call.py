"""One request on its way: from the moment it is handed over until its sample is complete.

All of it is callbacks of the connection, so that a request that can go out at once goes out at once, and the
end of an answer is dated when it comes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson

from narwhal._fast.link import EngineLink
from narwhal._fast.recorder import Recorder
from narwhal.engines.pool import ConnectionFailed, Pool
from narwhal.harness.endpoint import Endpoint
from narwhal.harness.sample import Outcome, Sample, TokensFrom

REFUSALS = (429, 503)
_DETAIL_LENGTH = 300
_LONGEST_WAIT_S = 3600.0


class Call:
    """One request. It is what a link calls a leg, and the owner of its recorder."""

    __slots__ = (
        "_done", "_epoch", "_link", "_loop", "_over", "_pool", "_recorder", "_request", "_retries",
        "_sent_again", "_streamed", "_timer", "sample",
    )  # fmt: skip

    def __init__(
        self,
        pool: Pool,
        request: bytes,
        sample: Sample,
        *,
        streamed: bool,
        epoch: float,
        retries: int,
        done: Callable[[Call], None],
        on_data: Callable[[bytes], object] | None = None,
    ) -> None:
        """`epoch` is the run's begin (monotonic). A refusal with Retry-After is sent again up to `retries`
        times. `done` is called once, when the sample is complete; `on_data` with each event's JSON."""
        self._pool = pool
        self._request = request
        self._streamed = streamed
        self._epoch = epoch
        self._retries = retries
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._link: EngineLink | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._recorder = Recorder(self, on_data=on_data) if streamed else None
        self._sent_again = False
        self._over = False
        self.sample = sample

    def begin(self) -> None:
        """Send it, as soon as there is a connection."""
        self._timer = None
        self._sent_again = False
        link = self._pool.take()
        if link is not None:
            self._send(link)
        else:
            self._pool.open(self._opened, self._failed)

    def give_up(self, kind: str | None, detail: str = "") -> None:
        """End it now, as a failure of this kind; None: it is just not waited for."""
        if self._over:
            return
        if self._timer is not None:
            self._timer.cancel()
        if self._link is not None:
            self._link.abort()
        if kind is None:
            self._end(Outcome.UNFINISHED)
        else:
            self._fail(kind, detail)

    def _send(self, link: EngineLink) -> None:
        self._link = link
        if self._recorder is not None:
            self._recorder.expect()
        if self.sample.sent_s is None:
            self.sample.sent_s = time.monotonic() - self._epoch
        link.start([self._request], len(self._request), self, self._recorder)

    def _opened(self, link: EngineLink) -> bool:
        if self._over:
            return False
        self._send(link)
        return True

    def _failed(self, error: ConnectionFailed) -> None:
        if not self._over:
            self._fail("no_connection", str(error))

    # What the link calls.

    def on_lost(self, why: str, stale: bool) -> None:
        """No reply will come, or no more of it."""
        heard = self._link is not None and self._link.heard
        self._link = None
        if self._over:
            return
        if stale and not self._sent_again:
            # The connection had been closed while it was idle, as any server may do.
            self._sent_again = True
            self._pool.open(self._opened, self._failed)
        else:
            self._fail("broken_reply" if heard else "connection_lost", why)

    def on_reply(self, status: int, body: bytes, retry_after_s: int) -> None:
        """A reply that came whole."""
        self._link = None
        if self._over:
            return
        self.sample.status = status
        if status != 200:
            self._turned_down(status, body, retry_after_s)
        elif self._streamed:
            self._fail("no_stream", _quoted(body))
        else:
            self._whole(body)

    def on_output(self) -> None:
        """The first output has come; its time is told at the end."""

    def on_end(self) -> None:
        """A stream is over."""
        recorder, sample = self._recorder, self.sample
        self._link = None
        if self._over:
            return
        assert recorder is not None
        sample.status = 200
        if recorder.output_events or recorder.ids_counted:
            sample.first_s = recorder.first_at - self._epoch
            sample.last_s = recorder.last_at - self._epoch
            sample.gaps = recorder.gaps()
        if recorder.prompt_tokens >= 0:
            sample.input_tokens, sample.input_from = recorder.prompt_tokens, TokensFrom.USAGE
        sample.output_tokens, sample.output_from = _output_tokens(recorder)
        if recorder.failure == "engine_error":
            raw = recorder.error_object or b""
            self._fail(f"error_event: {_reason(_object(raw))}", _message(_object(raw), raw))
        elif recorder.cut_short is not None and not recorder.finished:
            self._fail("cut_short", recorder.cut_short)
        elif recorder.failure is not None and recorder.cut_short is None:
            self._fail("bad_event", recorder.failure_message or "")
        else:
            self._served(
                no_done=recorder.cut_short is not None,
                no_usage=recorder.completion_tokens < 0,
                output_after_done=recorder.dropped_after_done > 0,
                no_output=sample.first_s is None,
            )

    # What came.

    def _whole(self, body: bytes) -> None:
        reply = _object(body)
        choices = reply.get("choices")
        if not isinstance(choices, list):
            self._fail("bad_reply", _quoted(body))
            return
        sample = self.sample
        usage = reply.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if type(prompt) is int:
            sample.input_tokens, sample.input_from = prompt, TokensFrom.USAGE
        ids: list[Any] = [choice.get("token_ids") for choice in choices if isinstance(choice, dict)]
        if ids and all(isinstance(entry, list) for entry in ids):
            sample.output_tokens, sample.output_from = sum(map(len, ids)), TokensFrom.TOKEN_IDS
        elif type(output) is int:
            sample.output_tokens, sample.output_from = output, TokensFrom.USAGE
        self._served(no_usage=type(output) is not int, no_output=not choices)

    def _turned_down(self, status: int, body: bytes, retry_after_s: int) -> None:
        envelope = _object(body)
        error = envelope.get("error", envelope)
        reason = f"{status} {_reason(error)}".strip()
        detail = _message(error, body)
        if status not in REFUSALS:
            self._fail(f"status {reason}", detail)
            return
        self.sample.refusals[reason] += 1
        self.sample.retry_after_s = retry_after_s if retry_after_s >= 0 else None
        if retry_after_s >= 0 and self._retries > 0:
            self._retries -= 1
            self._timer = self._loop.call_later(min(retry_after_s, _LONGEST_WAIT_S), self.begin)
            return
        self.sample.reason, self.sample.detail = reason, detail
        self._end(Outcome.REFUSED)

    # The end.

    def _served(self, **oddities: bool) -> None:
        self.sample.oddities = tuple(name for name, seen in oddities.items() if seen)
        self._end(Outcome.SERVED)

    def _fail(self, kind: str, detail: str) -> None:
        self.sample.reason, self.sample.detail = kind, detail[:_DETAIL_LENGTH]
        self._end(Outcome.FAILED)

    def _end(self, outcome: Outcome) -> None:
        self._over = True
        self._link = None
        self._recorder = None
        self.sample.ended_s = time.monotonic() - self._epoch
        self.sample.outcome = outcome
        self._done(self)


async def ask(
    endpoint: Endpoint,
    path: str,
    body: dict[str, Any],
    *,
    timeout_s: float,
    on_data: Callable[[bytes], object] | None = None,
) -> Sample:
    """One request by itself, due now."""
    now = time.monotonic()
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    call = Call(
        endpoint.pool,
        endpoint.request(path, orjson.dumps(body), "ask"),
        Sample(0),
        streamed=body.get("stream") is True,
        epoch=now,
        retries=0,
        done=lambda _: done.set_result(None),
        on_data=on_data,
    )
    call.begin()
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.shield(done)
    except TimeoutError:
        call.give_up("timeout", f"no whole answer within {timeout_s:g} s")
    except asyncio.CancelledError:
        call.give_up(None)
        raise
    return call.sample


def _output_tokens(recorder: Recorder) -> tuple[int, TokensFrom]:
    ids = recorder.ids_counted
    if ids is not None:
        return ids, TokensFrom.TOKEN_IDS
    if recorder.completion_tokens >= 0:
        return recorder.completion_tokens, TokensFrom.USAGE
    return recorder.output_events, TokensFrom.EVENTS


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _reason(error: Any) -> str:
    """An envelope's code, or its type where the code only repeats a status."""
    if not isinstance(error, dict):
        return ""
    code, kind = error.get("code"), error.get("type")
    return str(code if isinstance(code, str) and not code.isdecimal() else kind or code or "")[:80]


def _message(error: Any, raw: bytes) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return message[:_DETAIL_LENGTH] if isinstance(message, str) else _quoted(raw)


def _quoted(raw: bytes) -> str:
    return raw[:_DETAIL_LENGTH].decode(errors="replace")
