"""What became of a leg that failed, as an ending, and whether another attempt may help."""

from __future__ import annotations

from typing import Any

import orjson

from narwhal.engines.leg import LegLost, Reply
from narwhal.engines.pool import ConnectionFailed, Exhausted
from narwhal.fleet.health import Evidence
from narwhal.fleet.table import Phase
from narwhal.outcomes import Ending

# An engine's 4xx that are not about the request: its key, its routes, its load.
_NOT_THE_CLIENTS = frozenset({401, 403, 404, 405, 407, 408, 421, 425, 426, 429})


_MESSAGE_LENGTH = 4000  # characters of an engine's message that are passed on


class AttemptFailed(Exception):
    """An attempt failed in a way that another may mend."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.message)
        self.ending = ending


class LegFailure(AttemptFailed):
    """A leg failed, which speaks against its engine."""

    def __init__(
        self, ending: Ending, engine: int, phase: Phase, evidence: Evidence, *, slow: bool = False
    ) -> None:
        """`engine` by index; `slow`: it failed by taking too long, and would again."""
        super().__init__(ending)
        self.engine = engine
        self.phase = phase
        self.evidence = evidence
        self.slow = slow


# What an ending of the table says of the engine, where nothing more is known.
_EVIDENCE = {
    "engine_error": Evidence.STATUS,
    "broken_stream": Evidence.STREAM,
    "token_ids": Evidence.TOKEN_IDS,
}
_BY_STATUS = {408: Evidence.TIMEOUT, 429: Evidence.OVERLOAD, 503: Evidence.OVERLOAD}


def of_reply(reply: Reply, where: str, engine: int, phase: Phase) -> Ending | LegFailure:
    """What to raise for a reply that is not what the leg asked for."""
    ending = of_status(reply, where)
    if ending.name == "engine_rejected":
        return ending
    fallback = Evidence.STREAM if reply.status == 200 else Evidence.STATUS
    return LegFailure(ending, engine, phase, _BY_STATUS.get(reply.status, fallback))


def of_connecting(failed: ConnectionFailed, where: str, engine: int, phase: Phase) -> Ending | LegFailure:
    """What to raise for a connection that could not be opened."""
    if isinstance(failed, Exhausted):
        # The engine has no part in it, and another attempt would only be one more who wants a socket.
        return Ending("sockets_exhausted", f"the router could not connect to {where}: {failed}")
    ending = Ending("connect_failed", f"{where} can't be reached: {failed}")
    return LegFailure(ending, engine, phase, Evidence.CONNECTION)


def of_loss(lost: LegLost, where: str, engine: int, phase: Phase) -> LegFailure:
    """What to raise for a connection that was lost."""
    evidence = Evidence.STREAM if lost.heard else Evidence.CONNECTION
    return LegFailure(Ending("broken_stream", f"{where}: {lost}"), engine, phase, evidence)


def of_stream(ending: Ending, engine: int) -> Ending | LegFailure:
    """What to raise for a stream that ended like this."""
    evidence = _EVIDENCE.get(ending.name)
    return ending if evidence is None else LegFailure(ending, engine, Phase.DECODE, evidence)


def of_status(reply: Reply, where: str) -> Ending:
    """An ending for a reply that is not what the leg asked for. `where` names engine and leg."""
    status = reply.status
    error = _error_in(reply.body)
    message = _message(error)
    if 400 <= status < 500 and status not in _NOT_THE_CLIENTS:
        return _the_clients_own(status, error, message, where)
    if status == 200 and not (error and message):
        return Ending("broken_stream", f"{where} answered with something other than an event stream")
    said = f": {message}" if message else ""
    logged = f"{where} answered {status}"
    return Ending("engine_status", f"{logged}{said}", logged=logged)


def of_error_event(raw: bytes | None, where: str) -> Ending:
    """An ending for an error object in a stream."""
    error = _error_in(raw or b"")
    message = _message(error)
    code = _status_code(error)
    if code is not None and 400 <= code < 500 and code not in _NOT_THE_CLIENTS:
        return _the_clients_own(code, error, message, where)
    said = f": {message}" if message else ""
    logged = f"{where} sent an error in its stream"
    status = code if code is not None and 500 <= code < 600 else None
    return Ending("engine_error", f"{logged}{said}", status=status, logged=logged)


def _status_code(error: dict[str, Any] | None) -> int | None:
    code = error.get("code") if error else None
    if isinstance(code, str) and len(code) == 3 and code.isascii() and code.isdigit():
        return int(code)
    return code if isinstance(code, int) and not isinstance(code, bool) else None


def _message(error: dict[str, Any] | None) -> str:
    """An engine's words, bounded. Some servers put them under `detail`."""
    if error is None:
        return ""
    said = error.get("message") or error.get("detail") or ""
    text = said if isinstance(said, str) else orjson.dumps(said).decode()
    return text if len(text) <= _MESSAGE_LENGTH else text[: _MESSAGE_LENGTH - 1] + "…"


def _the_clients_own(status: int, error: dict[str, Any] | None, message: str, where: str) -> Ending:
    param = error.get("param") if error else None
    code = error.get("code") if error else None
    return Ending(
        "engine_rejected",
        message or f"the engine answered {status}",
        param=param if isinstance(param, str) else None,
        status=status,
        code=code if isinstance(code, str | int) else None,
        logged=f"{where} answered {status}",
    )


def _error_in(body: bytes) -> dict[str, Any] | None:
    parsed = _object(body)
    if parsed is None:
        text = body[: 4 * _MESSAGE_LENGTH].decode(errors="replace").strip()
        # A page for browsers says nothing to a client of an API.
        return {"message": text} if text and not text.startswith("<") else None
    inner = parsed.get("error")
    if isinstance(inner, dict):
        return inner
    if isinstance(inner, str):
        return {"message": inner}
    return parsed


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        parsed = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None
