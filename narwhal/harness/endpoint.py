"""The endpoint under load: its URL, its connections, and requests as bytes."""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from narwhal import __version__
from narwhal.config import EngineUrl
from narwhal.engines.leg import Leg, LegLost, Reply
from narwhal.engines.pool import ConnectionFailed, Pool

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
REPLY_LIMIT = 64 << 20  # bytes of a reply that comes whole
_PORTS = {"http": 80, "https": 443}


class EndpointError(Exception):
    """An endpoint that can't be put under load; the message says why."""


def read_url(text: str) -> EngineUrl:
    """A base URL, with or without /v1. Raises ValueError."""
    allowed = "allowed: http://HOST[:PORT][/PATH], or https"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} is no URL: {error}; {allowed}") from None
    if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ValueError(f"{text!r} is no endpoint's base URL; {allowed}")
    path = re.sub(r"(/v1)?/*$", "", parts.path)
    return EngineUrl(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], path)


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach an endpoint."""

    url: EngineUrl
    api_key: str | None = None
    ca_file: Path | None = None  # for https; None: the system's
    headers: tuple[tuple[str, str], ...] = ()


class Endpoint:
    """One endpoint, and the connections to it."""

    def __init__(self, access: Access, *, timeout_s: float) -> None:
        """`timeout_s` is for opening a connection, and for `get`. Raises EndpointError."""
        tls = None
        if access.url.scheme == "https":
            try:
                tls = ssl.create_default_context(cafile=access.ca_file)
            except OSError as error:
                raise EndpointError(f"{access.ca_file}: {error.strerror or error}") from None
        self.access = access
        self.pool = Pool(
            access.url,
            connect_timeout_s=timeout_s,
            idle_connection_s=timeout_s,
            reply_limit=REPLY_LIMIT,
            tls=tls,
        )
        self._timeout_s = timeout_s
        common = f"HTTP/1.1\r\nhost: {access.url.authority}\r\nuser-agent: narwhal/{__version__}\r\n"
        if access.api_key is not None:
            common += f"authorization: Bearer {access.api_key}\r\n"
        common += "".join(f"{name}: {value}\r\n" for name, value in access.headers)
        self._common = common

    def request(self, path: str, body: bytes, request_id: str) -> bytes:
        """A POST's bytes."""
        head = (
            f"POST {self.access.url.path}{path} {self._common}content-type: application/json\r\n"
            f"x-request-id: {request_id}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def get(self, path: str) -> Any:
        """A page's JSON. Raises EndpointError."""
        future: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        head = f"GET {self.access.url.path}{path} {self._common}\r\n".encode()
        leg = Leg(self.pool, [head], len(head), future)
        where = f"{self.access.url}{path}"
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await future
        except TimeoutError:
            raise EndpointError(f"{where}: no reply within {self._timeout_s:g} s") from None
        except (ConnectionFailed, LegLost) as error:
            raise EndpointError(f"{where}: {error}") from None
        finally:
            leg.abort()
        assert reply is not None
        if reply.status != 200:
            raise EndpointError(
                f"{where}: status {reply.status}: {reply.body[:200].decode(errors='replace')}"
            )
        try:
            return orjson.loads(reply.body)
        except orjson.JSONDecodeError:
            raise EndpointError(f"{where}: the reply is not JSON") from None

    async def first_model(self) -> str:
        """The first model it serves. Raises EndpointError."""
        page = await self.get("/v1/models")
        try:
            return str(page["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise EndpointError(f"{self.access.url}/v1/models lists no model; name one by --model") from None

    async def close(self) -> None:
        """Close every connection."""
        await self.pool.close()
