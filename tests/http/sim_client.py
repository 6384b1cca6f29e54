"""A small HTTP client that tells how a reply ended, whatever state it is in."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson


@dataclass
class Answer:
    """A reply. `ended`: whole, cut (closed before its end), reset, malformed, or silent (no end in time)."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: str = "whole"
    reads: int = 0

    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def blocks(self) -> list[bytes]:
        """The data of each event of a stream; a last piece without its blank line counts, too."""
        return [block.removeprefix(b"data: ") for block in self.body.split(b"\n\n") if block]

    @property
    def events(self) -> list[dict[str, Any]]:
        """Each event's JSON, up to [DONE]."""
        blocks = self.blocks
        return [orjson.loads(block) for block in blocks[: blocks.index(b"[DONE]")]]

    @property
    def token_ids(self) -> list[int]:
        """All token IDs of a stream."""
        choices = [choice for event in self.events for choice in event["choices"]]
        return [token for choice in choices for token in choice.get("token_ids") or []]

    def joined(self, *keys: str) -> str:
        """A stream's texts under one key of the choice or its delta."""
        choices = [choice for event in self.events for choice in event["choices"]]
        return "".join(
            choice.get(key) or choice.get("delta", {}).get(key) or "" for choice in choices for key in keys
        )


def message(method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> bytes:
    """A request's bytes."""
    raw = b"" if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
    lines = [f"{method} {path} HTTP/1.1", "host: sim", f"content-length: {len(raw)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + raw


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, url: str, tls: ssl.SSLContext | None = None) -> Client:
        where = urlsplit(url)
        assert where.hostname is not None
        return cls(*await asyncio.open_connection(where.hostname, where.port, ssl=tls))

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        wait_s: float = 10.0,
    ) -> Answer:
        """Send a request and read its reply."""
        self.writer.write(message(method, path, body, headers))
        return await self.read(wait_s)

    async def read(self, wait_s: float = 10.0) -> Answer:
        """Read one reply."""
        return await self.read_from(self.reader, wait_s)

    @classmethod
    async def read_from(cls, reader: asyncio.StreamReader, wait_s: float = 10.0) -> Answer:
        """Read one reply from wherever its bytes come."""
        answer = Answer()
        try:
            async with asyncio.timeout(wait_s):
                await cls._read(reader, answer)
        except TimeoutError:
            answer.ended = "silent"
        except ConnectionResetError:
            answer.ended = "reset"
        except asyncio.IncompleteReadError as cut:
            answer.body += cut.partial
            answer.ended = "cut"
        except ValueError:
            answer.ended = "malformed"
        return answer

    @staticmethod
    async def _read(reader: asyncio.StreamReader, answer: Answer) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        answer.status = int(head[0].split()[1])
        answer.headers = {
            name: value for name, _, value in (line.partition(": ") for line in head[1:] if line)
        }
        if answer.headers.get("transfer-encoding") != "chunked":
            answer.body = await reader.readexactly(int(answer.headers["content-length"]))
            return
        while True:
            line = (await reader.readuntil(b"\r\n"))[:-2]
            if not line.isalnum() or b"x" in line:
                raise ValueError("chunk size")
            size = int(line, 16)
            answer.body += await reader.readexactly(size)
            answer.reads += 1
            if await reader.readexactly(2) != b"\r\n":
                raise ValueError("chunk end")
            if size == 0:
                return


async def ask(url: str, method: str, path: str, body: Any = None, **options: Any) -> Answer:
    """Send one request over a connection of its own and read its reply."""
    client = await Client.connect(url)
    try:
        return await client.ask(method, path, body, **options)
    finally:
        await client.close()
