"""A transport without a loop: it writes down what it is told to do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from typing import Any

Buffer = bytes | bytearray | memoryview


class RecordingTransport(asyncio.Transport):
    """Keeps what is written. With a socket, `flush` sends it there, as a loop would in its own time."""

    def __init__(self, sock: socket.socket | None = None, tls: bool = False) -> None:
        super().__init__()
        self.sock = sock
        self.tls = tls
        self.writes: list[bytes] = []
        self.written = 0  # bytes
        self.queue = b""
        self.closing = False
        self.aborts = 0
        self.closes = 0
        self.reading = True
        self.on_write: Callable[[], None] = lambda: None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": self.sock, "sslcontext": self.tls or None}.get(name, default)

    def write(self, data: Buffer) -> None:
        self.writes.append(bytes(data))
        self.written += len(data)
        if self.sock is not None:
            self.queue += data
        self.on_write()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return len(self.queue)

    def flush(self, size: int) -> None:
        """Send up to `size` bytes of the queue, if the socket takes them."""
        assert self.sock is not None
        try:
            sent = self.sock.send(self.queue[:size])
        except BlockingIOError:
            return
        self.queue = self.queue[sent:]

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closes += 1
        self.closing = True

    def abort(self) -> None:
        self.aborts += 1
        self.closing = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
