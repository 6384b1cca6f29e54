"""The listening server: from the fleet file's address to a clean stop.

A stop goes in steps: no new connections, idle ones closed, requests under way given their time, then ended
with a terminal error event, and their clients given a moment to read it. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from narwhal._fast.heap import keep_freed
from narwhal.admission.readiness import State
from narwhal.config import ConfigError, FleetConfig, ServingConfig
from narwhal.outcomes import Ending
from narwhal.serving import routes
from narwhal.serving.descriptors import ClientLimit, configured, raise_file_limit
from narwhal.serving.head import RequestHead
from narwhal.serving.http import ClientConnection, Handler
from narwhal.serving.listener import Listener
from narwhal.serving.router import Router

# What the allocator keeps of the memory of bodies that were served, for those to come, in bytes.
_LARGEST_BLOCK, _FREE_MEMORY = 32 << 20, 64 << 20

log = logging.getLogger("narwhal.serving")

LAST_READ_S = 1.0  # how long a stopping server lets clients read what was sent last


class CannotListen(Exception):
    """The address can't be listened on; the message says why, and what sets the address."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason} (--host or serving.host, --port or serving.port)")
        self.reason = reason


class Server:
    """A router behind a listening socket."""

    def __init__(self, config: FleetConfig, client_limit: ClientLimit | None = None) -> None:
        """`client_limit` None: what the configuration says."""
        self.config = config
        self.client_limit = client_limit or configured(config)
        self.serving: ServingConfig = config.serving
        self.router: Router | None = None
        self._connections: set[ClientConnection] = set()
        self._listener: Listener | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()  # a stop has no time left
        self._deserted = asyncio.Event()  # no client is connected
        self._deserted.set()

    async def start(self) -> None:
        """Listen. Raises CannotListen."""
        loop = asyncio.get_running_loop()
        router = self.attach()
        try:
            self._listener = await Listener.open(
                self.serving.host, self.serving.port, lambda: ClientConnection(self, loop)
            )
        except OSError as error:
            await router.close()
            raise CannotListen(
                f"can't listen on {self.serving.host} port {self.serving.port}: {error.strerror or error}"
            ) from None
        router.start()
        log.info("serving %s", self.config.model)

    def attach(self) -> Router:
        """Make the router, without a socket to reach it by."""
        self.router = Router(self.config, asyncio.get_running_loop())
        return self.router

    @property
    def port(self) -> int:
        """The port listened on."""
        assert self._listener is not None
        return self._listener.port

    @property
    def url(self) -> str:
        """The base URL for a client on this machine."""
        host = self.serving.host
        if host in ("0.0.0.0", "::"):
            host = "127.0.0.1" if host == "0.0.0.0" else "::1"
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    async def stop(self, graceful_s: float) -> None:
        """Stop: requests under way have `graceful_s` seconds to end by themselves.

        With 0 they are ended at once, those that another stop still gives time too.
        """
        if self.router is None or self._listener is None:
            return
        if graceful_s <= 0:
            self._hurry.set()
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(self.router, self._listener, graceful_s))
        await asyncio.shield(self._stopping)

    async def _stop(self, router: Router, listener: Listener, graceful_s: float) -> None:
        router.readiness.set(State.STOPPING, "server", "the router is shutting down")
        listener.close()
        for connection in list(self._connections):
            connection.stop()
        if router.exchanges and not self._hurry.is_set():
            log.info("requests under way: %d; they have %g s to end", len(router.exchanges), graceful_s)
            await self._either(router.settled(), graceful_s)
            if router.exchanges:
                log.warning("requests that did not end in time and are cut off: %d", len(router.exchanges))
        router.interrupt_all(Ending("shutdown", "the router stopped before the answer was complete"))
        await router.settled()
        for connection in list(self._connections):
            connection.stop()
        await self._either(self._deserted.wait(), LAST_READ_S)
        for connection in list(self._connections):
            connection.abort()
        await self._deserted.wait()
        await router.close()

    async def _either(self, wait: Coroutine[Any, Any, object], limit_s: float) -> None:
        # Until what is waited for is there, the time is over, or a second stop hurries the first.
        waits = {asyncio.create_task(wait), asyncio.create_task(self._hurry.wait())}
        await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    # ---- the connections' calls

    def handler(self, head: RequestHead, connection: ClientConnection) -> Handler:
        """Who serves this request."""
        assert self.router is not None
        return routes.find(self.router, connection, head)

    def opened(self, connection: ClientConnection) -> int:
        """A connection came; how many there are beyond the limit."""
        self._connections.add(connection)
        self._deserted.clear()
        return max(0, len(self._connections) - self.client_limit.connections)

    def closed(self, connection: ClientConnection) -> None:
        """A connection has closed."""
        self._connections.discard(connection)
        if not self._connections:
            self._deserted.set()


async def _reload(router: Router, again: Callable[[], FleetConfig], source: str) -> None:
    """Read the fleet file again; what is wrong with it is logged, and changes nothing."""
    router.reopen_journal()
    try:
        config = await router.loop.run_in_executor(None, again)
        models = await router.loop.run_in_executor(None, router.models_of_new, config)
        changes = router.reload(config, source, models)
    except ConfigError as error:
        log.error("the fleet file was read again and changes nothing, for it is wrong:")
        for problem in error.problems:
            log.error("%s:%d: %s", error.source, problem.line, problem)
    else:
        log.info("the fleet file was read again: %s", changes.in_words)


async def run(
    config: FleetConfig, announce: Callable[[Server], None], again: Callable[[], FleetConfig], source: str
) -> int:
    """Serve until a signal says to stop; returns the exit code. Raises CannotListen.

    `again` reads the fleet file, called `source`, once more, when SIGHUP comes. It may raise ConfigError.
    """
    loop = asyncio.get_running_loop()
    server = Server(config, raise_file_limit(config))
    await server.start()
    assert server.router is not None
    keep_freed(_LARGEST_BLOCK, _FREE_MEMORY)
    # What is there now stays, and a request leaves next to no cycles behind: look for them seldom.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    signals: asyncio.Queue[None] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, None)
    router = server.router
    loop.add_signal_handler(signal.SIGHUP, lambda: router.track(_reload(router, again, source)))
    announce(server)  # from here on whoever reads it may send signals
    await signals.get()
    log.info("stopping")
    stopping = loop.create_task(server.stop(config.serving.graceful_timeout_s))
    second = loop.create_task(signals.get())
    await asyncio.wait({stopping, second}, return_when=asyncio.FIRST_COMPLETED)
    hurried = second.done()
    if hurried:
        log.warning("a second signal: ending at once")
        await server.stop(0)
    second.cancel()
    await stopping
    log.info("stopped")
    return 1 if hurried else 0
