"""One leg: a request sent to an engine, and what became of it.

The caller awaits `future`; callbacks of the engine's connection complete it. A reused connection that turns
out to have been closed before a byte of the reply came says nothing of the engine, so the request is sent
once more on a fresh one.
"""

from __future__ import annotations

from typing import Protocol

from narwhal._fast.link import EngineLink
from narwhal._fast.relay import Relay
from narwhal.engines.pool import ConnectionFailed, Pool


class Reply:
    """A reply that was collected whole."""

    __slots__ = ("body", "retry_after_s", "status")

    def __init__(self, status: int, body: bytes, retry_after_s: int) -> None:
        self.status = status
        self.body = body
        self.retry_after_s = retry_after_s  # -1: the engine said nothing


class LegLost(Exception):
    """The engine's connection was lost before a whole reply came; the message says how."""

    def __init__(self, why: str, *, heard: bool) -> None:
        """`heard`: a part of the reply had come."""
        super().__init__(why)
        self.heard = heard


class Answer(Protocol):
    """What takes the outcome of a leg: a future has these."""

    def done(self) -> bool:
        """Whether nobody waits for it any more."""

    def set_result(self, result: Reply | None, /) -> None:
        """There is a reply, or (None) a stream has ended."""

    def set_exception(self, exception: Exception, /) -> None:
        """There is none: ConnectionFailed or LegLost."""


class Leg:
    """One engine call under way."""

    __slots__ = ("_link", "_paused", "_pieces", "_pool", "_relay", "_size", "future")

    def __init__(
        self,
        pool: Pool,
        pieces: list[bytes | memoryview],
        size: int,
        future: Answer,
        relay: Relay | None = None,
    ) -> None:
        """Send `pieces` (`size` bytes, head and body) to the pool's engine.

        `future` gets the Reply, or ConnectionFailed, or LegLost. With a relay, a reply that is an event
        stream goes there, and its owner completes the future.
        """
        self.future = future
        self._pool = pool
        self._pieces = pieces
        self._size = size
        self._relay = relay
        self._paused = False
        self._link: EngineLink | None = None
        link = pool.take()
        if link is not None:
            self._send(link)
        else:
            pool.open(self._opened, self._failed)

    def abort(self) -> None:
        """Close the connection: the engine sees the client's leaving and stops working for it."""
        if self._link is not None:
            self._link.abort()
            self._link = None

    def pause(self) -> None:
        """Stop reading from the engine."""
        self._paused = True
        if self._link is not None:
            self._link.pause()

    def resume(self) -> None:
        """Read from the engine again."""
        self._paused = False
        if self._link is not None:
            self._link.resume()

    def _send(self, link: EngineLink) -> None:
        self._link = link
        link.start(self._pieces, self._size, self, self._relay)
        if self._paused:
            link.pause()

    def _opened(self, link: EngineLink) -> bool:
        if self.future.done():
            return False
        self._send(link)
        return True

    def _failed(self, error: ConnectionFailed) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def on_reply(self, status: int, body: bytes, retry_after_s: int) -> None:
        """The connection's call: a whole reply."""
        self._link = None
        if not self.future.done():
            self.future.set_result(Reply(status, body, retry_after_s))

    def on_lost(self, why: str, stale: bool) -> None:
        """The connection's call: no reply will come."""
        heard = self._link is not None and self._link.heard
        self._link = None
        if self.future.done():
            return
        if stale:
            # Once only: a fresh connection is never stale.
            self._pool.open(self._opened, self._failed)
        else:
            self.future.set_exception(LegLost(why, heard=heard))
