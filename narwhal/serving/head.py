"""A request's head, as the router goes by it.

Where a request ends, and so where the next begins, must not be a matter of opinion: heads.read_request_head
refuses whatever parsers could read in two ways.
"""

from __future__ import annotations

import httptools

from narwhal._fast.heads import read_request_head
from narwhal.outcomes import Ending


class RequestHead:
    """A request's head."""

    __slots__ = ("chunked", "content_length", "headers", "http11", "keep_alive", "method", "path")

    def __init__(
        self,
        method: str,
        path: str,
        headers: dict[bytes, bytes],
        http11: bool,
        keep_alive: bool,
        content_length: int,
        chunked: bool,
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers  # lower-case names; the last of equal ones
        self.http11 = http11
        self.keep_alive = keep_alive
        self.content_length = content_length  # -1: none given
        self.chunked = chunked

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        return self.chunked or self.content_length > 0

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits to be told before it sends the body."""
        return self.http11 and self.headers.get(b"expect", b"").lower() == b"100-continue"


# Those of RFC 9110 and RFC 5789: each path says which of them it answers.
_METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})


def read_head(raw: bytes) -> RequestHead:
    """Read a whole head, its empty line included. Raises Ending with what is wrong."""
    try:
        method, target, headers, http11, close, length, chunked = read_request_head(raw)
    except ValueError as error:
        raise malformed(str(error)) from None
    if method not in _METHODS:
        message = f"no path here answers the method {method[:32]}"
        raise Ending("malformed_http", message, status=501, code="method_unknown") from None
    return RequestHead(method, _path(target), headers, http11, http11 and not close, length, chunked)


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
    query = target.find(b"?")
    return (target if query < 0 else target[:query]).decode("latin-1")


def malformed(what: str) -> Ending:
    """The ending of a request that is no proper HTTP."""
    return Ending("malformed_http", f"malformed request: {what}")
