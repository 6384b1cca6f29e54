"""The listening server: from the fleet file's address to a clean stop.

A stop goes in steps: no new connections, idle ones closed, requests under way given their time, then ended
with a terminal error event. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable

from narwhal.admission.readiness import State
from narwhal.config import FleetConfig, ServingConfig
from narwhal.outcomes import Ending
from narwhal.serving import routes
from narwhal.serving.http import ClientConnection, Handler, RequestHead
from narwhal.serving.router import Router

log = logging.getLogger("narwhal.serving")

BACKLOG = 4096
_GOODBYE_S = 1.0  # how long a stopping router lets clients read what was written last


class CannotListen(Exception):
    """The address can't be listened on; the message says why."""


class Server:
    """A router behind a listening socket."""

    def __init__(self, config: FleetConfig) -> None:
        self.config = config
        self.serving: ServingConfig = config.serving
        self.router: Router | None = None
        self._connections: set[ClientConnection] = set()
        self._none_open = asyncio.Event()
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises CannotListen."""
        loop = asyncio.get_running_loop()
        router = self.router = Router(self.config, loop)
        try:
            self._listener = await loop.create_server(
                lambda: ClientConnection(self, loop),
                self.serving.host,
                self.serving.port,
                backlog=BACKLOG,
                reuse_address=True,
            )
        except OSError as error:
            await router.close()
            raise CannotListen(
                f"can't listen on {self.serving.host} port {self.serving.port}: {error.strerror or error} "
                "(serving.host, serving.port)"
            ) from None
        router.start()
        log.info("serving %s on %s", self.config.model, self.url)

    @property
    def port(self) -> int:
        """The port listened on."""
        assert self._listener is not None
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The base URL for a client on this machine."""
        host = self.serving.host
        if host in ("0.0.0.0", "::"):
            host = "127.0.0.1" if host == "0.0.0.0" else "::1"
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    async def stop(self, graceful_s: float) -> None:
        """Stop: requests under way have `graceful_s` seconds to end by themselves."""
        router = self.router
        if router is None or self._listener is None:
            return
        router.readiness.set(State.STOPPING, "server", "the router is shutting down")
        self._listener.close()
        for connection in list(self._connections):
            connection.stopping = True
            if connection.idle:
                connection.close()
        if graceful_s > 0 and router.exchanges:
            log.info("%d requests under way have %g s to end", len(router.exchanges), graceful_s)
            try:
                async with asyncio.timeout(graceful_s):
                    await router.settled()
            except TimeoutError:
                log.warning("%d requests did not end in time and are cut off", len(router.exchanges))
        router.interrupt_all(Ending("shutdown", "the router stopped before the answer was complete"))
        await router.settled()
        await self._let_go_of_clients()
        await router.close()
        await self._listener.wait_closed()

    async def _let_go_of_clients(self) -> None:
        # What was written last is on its way; a client that doesn't read it can't hold the stop up.
        for connection in list(self._connections):
            if connection.idle:
                connection.close()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await self._none_open.wait()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)

    # ---- the connections' calls

    def handler(self, head: RequestHead, connection: ClientConnection) -> Handler:
        """Who serves this request."""
        assert self.router is not None
        return routes.find(self.router, connection, head)

    def opened(self, connection: ClientConnection) -> bool:
        """A connection came; False if it is one too many."""
        self._connections.add(connection)
        self._none_open.clear()
        return len(self._connections) <= self.serving.client_connection_limit

    def closed(self, connection: ClientConnection) -> None:
        """A connection has closed."""
        self._connections.discard(connection)
        if not self._connections:
            self._none_open.set()


async def run(config: FleetConfig, announce: Callable[[Server], None]) -> int:
    """Serve until a signal says to stop; returns the exit code. Raises CannotListen."""
    loop = asyncio.get_running_loop()
    server = Server(config)
    await server.start()
    assert server.router is not None
    announce(server)
    asked = asyncio.Event()
    again = asyncio.Event()

    def on_signal() -> None:
        (again if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, server.router.reopen_journal)
    await asked.wait()
    log.info("stopping")
    stopping = loop.create_task(server.stop(config.serving.graceful_timeout_s))
    impatience = loop.create_task(again.wait())
    await asyncio.wait({stopping, impatience}, return_when=asyncio.FIRST_COMPLETED)
    impatience.cancel()
    if not stopping.done():
        log.warning("a second signal: ending at once")
        stopping.cancel()
        server.router.interrupt_all(Ending("shutdown", "the router was told to end at once"))
        await server.router.settled()
        await asyncio.gather(stopping, return_exceptions=True)
        await server.router.close()
        return 1
    await stopping
    return 0
