"""One engine's connections: opened when needed, kept alive between requests, closed when long idle.

The connection used last is used first, so that a burst's surplus ages and is closed, or is closed when there
is no descriptor or port left for another engine's. A connection is opened by a task of its own: whoever asked
for it may have left by then, and it serves the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
import struct
import weakref
from collections.abc import Callable
from typing import Any

from narwhal._fast.link import EngineLink
from narwhal._fast.reactor import Reactor
from narwhal.config import EngineUrl
from narwhal.engines.exhaustion import in_words, lacking, lacking_files

# How long the rest of a reply may take once the answer in it is complete.
_LINGER_S = 5.0


class ConnectionFailed(Exception):
    """An engine could not be reached; the message says why."""


class Exhausted(ConnectionFailed):
    """Nothing could be tried: this process has no socket left for it. The message says what to do."""


class Pool:
    """The connections to one engine."""

    def __init__(
        self,
        url: EngineUrl,
        *,
        connect_timeout_s: float,
        idle_connection_s: float,
        reply_limit: int,
        tls: ssl.SSLContext | None,
    ) -> None:
        """`reply_limit` bounds a reply that is collected whole, in bytes; `tls` is for https URLs."""
        self._url = url
        self._connect_timeout_s = connect_timeout_s
        self._idle_connection_s = idle_connection_s
        self._reply_limit = reply_limit
        self._tls = tls if url.scheme == "https" else None
        self._idle: list[EngineLink] = []
        self._links: set[EngineLink] = set()
        self._opening: set[asyncio.Task[None]] = set()
        _pools.add(self)
        self.events_after_done = 0  # came after a whole answer, and not yet taken into the accounts
        self.opened = 0  # connections, ever

    @property
    def open_connections(self) -> int:
        """Connections that are open, idle ones included."""
        return len(self._links)

    def take(self) -> EngineLink | None:
        """An idle connection, if there is one."""
        while self._idle:
            link = self._idle.pop()
            if link.idle:
                return link
        return None

    def open(self, ready: Callable[[EngineLink], bool], failed: Callable[[ConnectionFailed], None]) -> None:
        """Open a connection and call `ready` with it, or `failed`.

        `ready` returns whether it took the connection; one not taken joins the idle ones.
        """
        task = asyncio.get_running_loop().create_task(self._open(ready, failed))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(
        self, ready: Callable[[EngineLink], bool], failed: Callable[[ConnectionFailed], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                link = await (self._connect(loop) if self._tls is None else self._connect_tls(loop))
        except TimeoutError:
            failed(
                ConnectionFailed(
                    f"no connection within {self._connect_timeout_s:g} s (engine.connect_timeout_s)"
                )
            )
        except ssl.SSLError as error:
            failed(ConnectionFailed(f"TLS failed: {error.reason or error}"))
        except Exhausted as error:
            failed(error)
        except OSError as error:
            shortage = lacking_files(error)
            failed(ConnectionFailed(in_words(error)) if shortage is None else Exhausted(shortage))
        else:
            if not link.idle:
                failed(ConnectionFailed("the engine closed the connection at once"))
                return
            self.opened += 1
            self._links.add(link)
            if not ready(link):
                self.free(link)

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> EngineLink:
        """A plain connection, to the first of the host's addresses that takes it.

        Raises OSError, or Exhausted if one of the addresses could not be tried.
        """
        url = self._url
        link = EngineLink(self, self._reply_limit)
        addresses = await _addresses(loop, url.host, url.port)
        shortage: str | None = None
        while True:
            family, _, protocol, _, address = addresses.pop(0)
            try:
                sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, protocol)
                with contextlib.closing(sock):
                    await loop.sock_connect(sock, address)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    _close_by_reset(sock)
                    Reactor.of(loop).attach(sock.detach(), link, address)
            except OSError as error:
                lacks = lacking(error, family, address)
                if lacks is not None and await _make_room():
                    addresses.insert(0, (family, socket.SOCK_STREAM, protocol, "", address))
                    continue
                shortage = shortage or lacks
                if addresses:
                    continue
                if shortage is None:
                    raise
                raise Exhausted(shortage) from None
            else:
                return link

    async def _connect_tls(self, loop: asyncio.AbstractEventLoop) -> EngineLink:
        """A connection under TLS. Raises OSError, ssl.SSLError included."""
        while True:
            try:
                transport, link = await loop.create_connection(
                    lambda: EngineLink(self, self._reply_limit), self._url.host, self._url.port, ssl=self._tls
                )
            except OSError as error:
                if lacking_files(error) is None or not await _make_room():
                    raise
            else:
                _close_by_reset(transport.get_extra_info("socket"))
                return link

    def free(self, link: EngineLink) -> None:
        """A connection's answer is complete and it may serve another."""
        self._idle.append(link)

    def after_done(self, events: int) -> None:
        """A connection's reply went on after its answer was whole."""
        self.events_after_done += events

    def gone(self, link: EngineLink) -> None:
        """A connection has closed."""
        self._links.discard(link)

    @property
    def idle_since(self) -> float:
        """When the connection was freed that has been idle longest (monotonic); infinity if none is."""
        self._idle = [link for link in self._idle if link.idle]
        return self._idle[0].freed_at if self._idle else math.inf

    def drop_oldest(self) -> None:
        """Close the connection that has been idle longest. Raises IndexError if none is."""
        self._idle.pop(0).abort()

    def drop_idle(self) -> None:
        """Close the connections that serve nothing."""
        idle, self._idle = self._idle, []
        for link in idle:
            link.abort()

    def sweep(self, now: float) -> None:
        """Close what has been idle too long, or has an answer whose end never comes. `now` is monotonic."""
        fresh = []
        for link in self._idle:
            if not link.idle:
                continue
            if now - link.freed_at > self._idle_connection_s:
                link.abort()
            else:
                fresh.append(link)
        self._idle = fresh
        for link in [
            link
            for link in self._links
            if not link.idle and not link.answering and 0 < link.freed_at < now - _LINGER_S
        ]:
            link.abort()

    async def close(self) -> None:
        """Close every connection."""
        for task in list(self._opening):
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for link in list(self._links):
            link.abort()
        self._idle.clear()


# All of this process: they share its descriptors.
_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


async def _make_room() -> bool:
    """Close the connection that has been idle longest, to whatever engine; False if there is none."""
    pool = min(_pools, key=lambda pool: pool.idle_since, default=None)
    if pool is None or pool.idle_since == math.inf:
        return False
    pool.drop_oldest()
    await asyncio.sleep(0)  # one under TLS has been closed then, too
    return True


def _close_by_reset(sock: socket.socket) -> None:
    # What goes away with a connection is unwanted, and the engine shall know at once. Otherwise the end waits
    # behind what it has not acknowledged, for 0.2 s where memory is short, and the port for a minute after.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _addresses(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[tuple[Any, ...]]:
    """Where a host can be connected to. A name is looked up on another thread. Raises OSError."""
    try:
        return [*socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)]
    except socket.gaierror:
        return [*await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
