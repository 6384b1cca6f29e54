"""A listening socket that opens and closes at once, which an event loop's own servers don't.

So an engine refuses connections from the moment it is told to, and takes them again from the moment it may.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

_BACKLOG = 4096
_AT_ONCE = 64  # connections accepted before others get their turn


class Listener:
    """One address. Each connection gets a protocol of its own."""

    def __init__(self, factory: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None) -> None:
        self._factory = factory
        self._tls = tls
        self._socket: socket.socket | None = None
        self._opening: set[asyncio.Task[None]] = set()

    @property
    def listening(self) -> bool:
        """Connections are taken."""
        return self._socket is not None

    def open(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        listener.setblocking(False)
        self._socket = listener
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)
        bound: int = listener.getsockname()[1]
        return bound

    def close(self) -> None:
        """Listen no more; what has been accepted stays."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    async def cancel(self) -> None:
        """Give up connections that are not made yet, such as those in their TLS handshake."""
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = listener.accept()
            except OSError:  # nobody waits any more
                return
            task = asyncio.get_running_loop().create_task(self._make(accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _make(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A client that leaves, or whose handshake fails, is its own affair.
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(self._factory, accepted, ssl=self._tls)
