"""A request's head: checked first, then read.

Where a request ends, and so where the next begins, must not be a matter of opinion: heads are checked byte by
byte for what smuggles requests (heads.check_request_head) before httptools reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

import httptools

from narwhal._fast.heads import check_request_head
from narwhal.outcomes import Ending


@dataclass(slots=True)
class RequestHead:
    """A request's head."""

    method: str
    path: str
    headers: dict[bytes, bytes]  # lower-case names; the last of equal ones
    http11: bool
    keep_alive: bool
    content_length: int  # -1: none given
    chunked: bool

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        return self.chunked or self.content_length > 0

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits to be told before it sends the body."""
        return self.http11 and self.headers.get(b"expect", b"").lower() == b"100-continue"


class _HeadReader:
    """httptools' callbacks for one head."""

    __slots__ = ("headers", "url")

    def __init__(self) -> None:
        self.url = b""
        self.headers: dict[bytes, bytes] = {}

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"connection" and name in self.headers:
            value = self.headers[name] + b"," + value
        self.headers[name] = value


def read_head(raw: bytes) -> RequestHead:
    """Read a whole head, its empty line included. Raises Ending with what is wrong."""
    try:
        length, chunked = check_request_head(raw)
    except ValueError as error:
        raise malformed(str(error)) from None
    reader = _HeadReader()
    parser = httptools.HttpRequestParser(reader)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # an upgrade that is offered need not be taken (RFC 9110, section 7.8)
    except httptools.HttpParserInvalidMethodError:
        method = raw.split(b" ", 1)[0][:32].decode("latin-1")
        message = f"no path here answers the method {method}"
        raise Ending("malformed_http", message, status=501, code="method_unknown") from None
    except httptools.HttpParserError as error:
        raise malformed(str(error) or "not HTTP") from None
    http11 = parser.get_http_version() == "1.1"
    options = reader.headers.get(b"connection", b"").lower().split(b",")
    return RequestHead(
        method=parser.get_method().decode("ascii"),
        path=_path(reader.url),
        headers=reader.headers,
        http11=http11,
        keep_alive=http11 and b"close" not in [option.strip() for option in options],
        content_length=length,
        chunked=chunked,
    )


def _path(target: bytes) -> str:
    """The path in a request's target, as it was sent. Raises Ending if there is none."""
    if not target.startswith(b"/") and target != b"*":
        # The form that proxies are sent names scheme and host as well (RFC 9112, section 3.2.2).
        try:
            target = (httptools.parse_url(target).path or b"/") if b"://" in target else b""
        except httptools.HttpParserError:
            target = b""
        if not target:
            raise malformed("its target must be a path, an http URL or *")
    return target.split(b"?", 1)[0].decode("latin-1")


def malformed(what: str) -> Ending:
    """The ending of a request that is no proper HTTP."""
    return Ending("malformed_http", f"malformed request: {what}")
