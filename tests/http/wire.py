"""An HTTP client that is a bare socket: it sends what it is told to and reads strictly what comes back."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import orjson

_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [A-Z][A-Za-z -]*")
_FIELD = re.compile(rb"([a-z0-9-]+): ([!-~](?:[ -~]*[!-~])?)")
_WITHOUT_BODY = frozenset({100, 204})


class Closed(Exception):
    """The connection ended before a whole reply had come; `seen` is what had."""

    def __init__(self, seen: bytes) -> None:
        super().__init__(f"closed after {seen!r}")
        self.seen = seen


@dataclass(frozen=True)
class Reply:
    """A whole reply."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """A header's value; it must not be there twice."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) <= 1, values
        return values[0] if values else None

    @property
    def closes(self) -> bool:
        """Whether the server says that it closes the connection."""
        return self.header("connection") == "close"

    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error in the body, which must be an OpenAI envelope and nothing else."""
        assert self.header("content-type") == "application/json"
        document = self.json()
        assert list(document) == ["error"]
        error: dict[str, Any] = document["error"]
        assert {"message", "type", "param", "code"} <= error.keys() <= {*_ENVELOPE}
        assert isinstance(error["message"], str)
        assert error["message"]
        assert "Traceback" not in error["message"]
        return error

    @property
    def code(self) -> Any:
        """The error's code, or None for a reply that is no error."""
        return self.error["code"] if self.status >= 400 else None

    @property
    def events(self) -> list[Any]:
        """The JSON of each event of a stream that is whole, [DONE] left out."""
        *blocks, done, rest = self.body.split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b"")
        return [orjson.loads(block.removeprefix(b"data: ")) for block in blocks]


_ENVELOPE = ("message", "type", "param", "code", "details")


class Wire:
    """One connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray()

    @classmethod
    async def connect(cls, url: str, *, room: int | None = None) -> Self:
        """Connect; `room` is how many bytes the kernel may keep for us, if not its own choice."""
        where = urlsplit(url)
        assert where.hostname is not None
        family = socket.AF_INET6 if ":" in where.hostname else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if room is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (where.hostname, where.port))
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def send(self, *pieces: bytes) -> None:
        """Send pieces, each by itself: the server is let read in between."""
        loop = asyncio.get_running_loop()
        for piece in pieces:
            await loop.sock_sendall(self.sock, piece)
            await asyncio.sleep(0)

    def half_close(self) -> None:
        """Send no more, but go on reading."""
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Vanish with a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self) -> None:
        """Close as a client does that is done."""
        self.sock.close()

    async def reply(self, *, method: str = "GET", wait_s: float = 10.0) -> Reply:
        """Read one reply. Raises Closed, AssertionError if it is malformed, TimeoutError."""
        async with asyncio.timeout(wait_s):
            return await self._reply(method)

    async def ask(self, *pieces: bytes, method: str = "GET") -> Reply:
        """Send a request and read its reply."""
        await self.send(*pieces)
        return await self.reply(method=method)

    async def rest(self, *, wait_s: float = 10.0) -> bytes:
        """What comes until the server closes. Raises ConnectionResetError if it resets instead."""
        async with asyncio.timeout(wait_s):
            while await self._more():
                pass
        data, self._buffer = bytes(self._buffer), bytearray()
        return data

    def silent(self) -> bool:
        """Whether nothing has come yet."""
        assert not self._buffer
        try:
            self._buffer += self.sock.recv(65536)
        except BlockingIOError:
            return True
        return False

    async def _more(self) -> bool:
        data = await asyncio.get_running_loop().sock_recv(self.sock, 262144)
        self._buffer += data
        return bool(data)

    async def _need(self, count: int) -> bytes:
        while len(self._buffer) < count:
            if not await self._more():
                raise Closed(bytes(self._buffer))
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    async def _until(self, end: bytes) -> bytes:
        while (at := self._buffer.find(end)) < 0:
            if not await self._more():
                raise Closed(bytes(self._buffer))
        return (await self._need(at + len(end)))[: -len(end)]

    async def _reply(self, method: str) -> Reply:
        first, *lines = (await self._until(b"\r\n\r\n")).split(b"\r\n")
        match = _STATUS.fullmatch(first)
        assert match, first
        fields = [_FIELD.fullmatch(line) for line in lines]
        assert all(fields), lines
        reply = Reply(
            int(match[1]), [(field[1].decode(), field[2].decode()) for field in fields if field], b""
        )
        length, coding = reply.header("content-length"), reply.header("transfer-encoding")
        assert not (length and coding)
        if method == "HEAD" or reply.status in _WITHOUT_BODY:
            return reply
        if length is not None:
            body = await self._need(int(length))
        elif coding is not None:
            assert coding == "chunked"
            body = await self._chunks()
        else:
            assert reply.closes
            body = await self.rest()
        return Reply(reply.status, reply.headers, body)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self._until(b"\r\n"), 16):
            body += await self._need(size)
            assert await self._need(2) == b"\r\n"
        assert await self._need(2) == b"\r\n"
        return body


def request(
    method: str, target: str, body: bytes | dict[str, Any] | None = None, *fields: str, version: str = "1.1"
) -> bytes:
    """A request with a sized body, if it has one, and more fields."""
    raw = orjson.dumps(body) if isinstance(body, dict) else body
    lines = [f"{method} {target} HTTP/{version}", "Host: narwhal", *fields]
    if raw is not None:
        lines.append(f"Content-Length: {len(raw)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (raw or b"")


def chunked_request(target: str, chunks: Iterable[bytes], *fields: str) -> bytes:
    """A POST whose body comes in chunks."""
    lines = [f"POST {target} HTTP/1.1", "Host: narwhal", "Transfer-Encoding: chunked", *fields]
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body + b"0\r\n\r\n"
