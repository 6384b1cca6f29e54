"""The router's event loop does what asyncio promises, whatever waits beside the reactor's connections."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

import pytest

from narwhal._fast.loop import Loop, run
from narwhal._fast.reactor import Reactor
from narwhal._fast.selector import Selector
from tests.fast.waiting import until


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def test_connections_of_the_reactor_and_of_asyncio_are_served_side_by_side() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(lambda reader, writer: echo(reader, writer), "127.0.0.1", 0)

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()
            await writer.wait_closed()

        ours, theirs = socket.socketpair()
        for sock in (ours, theirs):
            sock.setblocking(False)
        Reactor.of(loop).attach(ours.detach(), Echo())
        for number in range(50):
            line = b"%d\n" % number
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(line)
            await loop.sock_sendall(theirs, line)
            assert await reader.readline() == line
            assert await loop.sock_recv(theirs, 100) == line
            writer.close()
            await writer.wait_closed()
        theirs.close()
        server.close()
        await server.wait_closed()

    run(main())


def test_a_timer_set_while_only_connections_are_busy_is_kept() -> None:
    """The selector serves connections without giving the loop its turn; a timer must end that."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        fired = asyncio.Event()
        ends = [socket.socketpair() for _ in range(2)]
        made: list[asyncio.TimerHandle] = []

        class Relay(Echo):
            def data_received(self, data: bytes) -> None:
                if not made:
                    made.append(loop.call_later(0.01, fired.set))
                self.transport.write(data)

        # Two pairs of connections that send one another a byte for ever.
        for ours, theirs in ends:
            for sock in (ours, theirs):
                sock.setblocking(False)
                Reactor.of(loop).attach(sock.detach(), protocol := Relay())
            protocol.transport.write(b"x")
        async with asyncio.timeout(30):
            await fired.wait()
        protocol.transport.close()

    run(main())


def test_events_that_come_in_a_crowd_are_all_served_and_so_is_everybody_else() -> None:
    class Counting(Echo):
        def data_received(self, data: bytes) -> None:
            received.append(len(data))

    def flood(peers: list[socket.socket], stop: threading.Event) -> None:
        while not stop.is_set():
            for peer in peers:
                sent.append(peer.send(b"x"))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        selector: Selector = loop._selector  # type: ignore[attr-defined]
        pairs = [socket.socketpair() for _ in range(50)]
        for ours, _ in pairs:
            ours.setblocking(False)
            Reactor.of(loop).attach(ours.detach(), Counting())
        stop, woken, timed, readable = threading.Event(), asyncio.Event(), asyncio.Event(), asyncio.Event()
        flooding = threading.Thread(target=flood, args=([peer for _, peer in pairs], stop))
        flooding.start()
        try:
            async with asyncio.timeout(30):
                await until(lambda: selector.crowded)
                threading.Thread(target=loop.call_soon_threadsafe, args=(woken.set,)).start()
                await woken.wait()
                loop.call_later(0.0001, timed.set)
                await timed.wait()
                ours, theirs = socket.socketpair()
                with ours, theirs:
                    loop.add_reader(ours, readable.set)
                    theirs.send(b"x")
                    await readable.wait()
                    loop.remove_reader(ours)
        finally:
            stop.set()
            await asyncio.to_thread(flooding.join)
        await until(lambda: sum(received) >= len(sent) and not selector.crowded)
        assert sum(received) == len(sent)
        for _, peer in pairs:
            peer.close()

    received: list[int] = []
    sent: list[int] = []
    run(main())


def test_one_client_that_asks_again_and_again_is_never_held_up() -> None:
    async def main() -> None:
        class Pong(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                crowded.append(selector.crowded)
                transport.write(data)

        def ask(peer: socket.socket) -> None:
            for _ in range(10_000):
                peer.send(b"x")
                peer.recv(1)

        loop = asyncio.get_running_loop()
        selector: Selector = loop._selector  # type: ignore[attr-defined]
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        transport = Reactor.of(loop).attach(ours.detach(), Pong())
        with theirs:
            await asyncio.to_thread(ask, theirs)
            assert len(crowded) == 10_000
            assert not any(crowded)
        transport.abort()

    crowded: list[bool] = []
    run(main())


def test_a_call_from_another_thread_and_a_signal_wake_a_loop_that_waits() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        woken, told = asyncio.Event(), asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, told.set)
        threading.Timer(0.01, loop.call_soon_threadsafe, [woken.set]).start()
        async with asyncio.timeout(30):
            await woken.wait()
            threading.Timer(0.01, os.kill, [os.getpid(), signal.SIGUSR1]).start()
            await told.wait()
        loop.remove_signal_handler(signal.SIGUSR1)

    run(main())


def test_subprocesses_and_executors_work() -> None:
    async def main() -> None:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "print(6 * 7)", stdout=subprocess.PIPE
        )
        out, _ = await child.communicate()
        assert (out, child.returncode) == (b"42\n", 0)
        assert await asyncio.to_thread(sum, [1, 2]) == 3

    run(main())


def test_calls_come_in_order_and_a_cancelled_one_does_not() -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        seen: list[int] = []
        handles = [loop.call_soon(seen.append, number) for number in range(4)]
        handles[2].cancel()
        assert handles[2].cancelled()
        assert not handles[1].cancelled()
        later = [loop.call_later(0.001 * number, seen.append, 10 + number) for number in range(3)]
        later[1].cancel()
        done = loop.create_future()
        loop.call_later(0.01, done.set_result, None)
        await done
        return seen

    assert run(main()) == [0, 1, 3, 10, 12]


def test_a_failing_call_is_reported_and_the_loop_goes_on() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        told: list[str] = []
        loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))
        loop.call_soon(int, "no number")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return told

    assert run(main()) == ["invalid literal for int() with base 10: 'no number'"]


def test_thousands_of_cancelled_timers_are_cleared_out() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        for _ in range(5000):
            loop.call_later(3600, print).cancel()
        await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)
        return len(loop._scheduled)  # type: ignore[attr-defined]

    assert run(main()) < 200


def test_a_closed_loop_takes_no_calls_and_leaves_no_descriptor_open() -> None:
    def descriptors() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    before = descriptors()
    loop = Loop()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon(print)
    assert descriptors() == before


def test_debug_mode_is_asyncios_own() -> None:
    async def main() -> bool:
        await asyncio.sleep(0)
        return asyncio.get_running_loop().get_debug()

    with asyncio.Runner(debug=True, loop_factory=Loop) as runner:
        assert runner.run(main())
