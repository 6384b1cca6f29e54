"""Listening sockets, and all who wait on them taken in at once.

An event loop's own server takes one connection in each turn of the loop. A turn that relays hundreds of
streams takes milliseconds, so that a burst of a thousand clients would wait seconds for its last one to be
taken in. Here each turn takes in as many as have come, up to a bound.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable

from narwhal._fast.reactor import Reactor
from narwhal.engines.exhaustion import lacking_files
from narwhal.monitoring.reminder import Reminder

log = logging.getLogger("narwhal.serving")

BACKLOG = 4096
A_TURN = 64  # connections taken in before others have their turn again
PAUSE_S = 0.5  # before trying again when the system has no descriptor or memory left
TELL_S = 10.0  # between two lines of the log that say so


class Listener:
    """Sockets that listen on one host and port."""

    def __init__(
        self,
        sockets: list[socket.socket],
        factory: Callable[[], asyncio.Protocol],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._sockets = sockets
        self._factory = factory
        self._loop = loop
        self._reactor = Reactor.of(loop)
        self._shortage = Reminder(TELL_S, TELL_S)
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        for sock in sockets:
            loop.add_reader(sock, self._take, sock)

    @classmethod
    async def open(cls, host: str, port: int, factory: Callable[[], asyncio.Protocol]) -> Listener:
        """Listen on every address of `host`; connections get protocols from `factory`. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets: list[socket.socket] = []
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                sockets.append(_listening(family, address))
        except OSError:
            for sock in sockets:
                sock.close()
            raise
        return cls(sockets, factory, loop)

    @property
    def port(self) -> int:
        """The port listened on; the first address's, where port 0 gave each its own."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Listen no more. Connections that were taken in stay."""
        for handle in self._pauses.values():
            handle.cancel()
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()

    def _take(self, sock: socket.socket) -> None:
        for _ in range(A_TURN):
            try:
                client, peer = sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue  # it came and went
            except OSError as error:
                shortage = lacking_files(error)
                if shortage is None:
                    raise
                if self._shortage.is_due(time.monotonic()):
                    log.error("no connection can be taken in: %s", shortage)
                self._loop.remove_reader(sock)
                self._pauses[sock] = self._loop.call_later(PAUSE_S, self._listen_again, sock)
                return
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                self._reactor.attach(client.detach(), self._factory(), peer)
            except OSError as error:
                log.warning("a connection could not be taken in: %s", error.strerror)

    def _listen_again(self, sock: socket.socket) -> None:
        del self._pauses[sock]
        self._loop.add_reader(sock, self._take, sock)


def _listening(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
