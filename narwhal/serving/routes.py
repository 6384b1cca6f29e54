"""Which path is served by what, and the pages that are answered at once."""

from __future__ import annotations

import hmac
import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from narwhal.accounting.metrics import render
from narwhal.accounting.state import state as accounting_state
from narwhal.accounting.token_accounting import of_fleet
from narwhal.admission.readiness import State
from narwhal.outcomes import Ending
from narwhal.request import Route
from narwhal.serving import lifecycle_pages, replies
from narwhal.serving.exchange import Exchange
from narwhal.serving.pages import Answer, Later, as_json, fields_of

if TYPE_CHECKING:
    from narwhal.serving.head import RequestHead
    from narwhal.serving.http import ClientConnection, Handler
    from narwhal.serving.router import Router

Page = Callable[["Router", "RequestHead", bytes], "Answer | Later"]

log = logging.getLogger("narwhal.serving")

PAGE_BODY_LIMIT = 65536
PAGE_BODY_S = 30.0  # how long such a body may take to come
REASON_LIMIT = 500  # characters
_MODELS = "/v1/models"
_COMPLETIONS = {"/v1/completions": Route.COMPLETIONS, "/v1/chat/completions": Route.CHAT}


def _model(router: Router) -> dict[str, Any]:
    return {
        "id": router.config.model,
        "object": "model",
        "created": int(router.started_at),
        "owned_by": "narwhal",
        "token_accounting": of_fleet(router.config.engines).value,
    }


def models(router: Router, head: RequestHead, body: bytes) -> Answer:
    """The one model."""
    return as_json({"object": "list", "data": [_model(router)]})


def model(router: Router, head: RequestHead, body: bytes) -> Answer:
    """The one model by name."""
    return as_json(_model(router))


def health(router: Router, head: RequestHead, body: bytes) -> Answer:
    """The process lives."""
    table = router.table
    available = sum(table.available)
    return as_json(
        {
            "status": "ok",
            "engines": {"total": len(table), "available": available, "unavailable": len(table) - available},
        }
    )


def ready(router: Router, head: RequestHead, body: bytes) -> Answer:
    """It may be given traffic; else the reason."""
    blocker = router.readiness.blocker
    if blocker is None:
        return as_json({"status": "ready"})
    state, reason = blocker
    return as_json({"status": state.value, "reason": reason}, 503)


def metrics(router: Router, head: RequestHead, body: bytes) -> Later:
    """Prometheus metrics."""
    accept = head.headers.get(b"accept", b"").decode("latin-1")
    scrape = router.scraper.take()

    def page() -> Answer:
        text, content_type = render(scrape, accept)
        return 200, text, content_type

    return page


def state(router: Router, head: RequestHead, body: bytes) -> Later:
    """Everything, as JSON."""
    scrape = router.scraper.take()
    connections = [engine.pool.open_connections for engine in router.engines]
    lengths = {
        route.value: {
            "bytes_per_token": router.input_lengths.bytes_per_token(route),
            "relative_error": router.input_lengths.relative_error(route),
        }
        for route in Route
    }

    def page() -> Answer:
        config = scrape.config
        report = accounting_state(scrape)
        for engine, count in zip(report["engines"], connections, strict=True):
            engine["connections"] = count
        return as_json(
            {
                **report,
                "started_at": router.started_at,
                "profiles": {"path": config.profiles.path},
                "sizing": config.engine.sizing.value,
                "input_length": lengths,
            }
        )

    return page


def maintenance(router: Router, head: RequestHead, body: bytes) -> Answer:
    """Set or clear maintenance by hand: `{"on": true, "reason": "..."}`."""
    wanted = fields_of(body, ("on", "reason"))
    on, reason = wanted.get("on"), wanted.get("reason")
    if not isinstance(on, bool):
        seen = "nothing" if on is None else str(on)[:64]
        raise Ending("invalid_field", f"`on` must be true or false; got {seen}", param="on")
    if reason is None:
        reason = "maintenance was set by an operator"
    elif not isinstance(reason, str) or not 1 <= len(reason) <= REASON_LIMIT:
        allowed = f"`reason` must be a string of 1 to {REASON_LIMIT} characters"
        raise Ending("invalid_field", allowed, param="reason")
    if on:
        router.readiness.set(State.MAINTENANCE, "operator", reason)
    else:
        router.readiness.clear(State.MAINTENANCE, "operator")
    log.info("maintenance was %s by hand%s", "set" if on else "cleared", f": {reason}" if on else "")
    return as_json({"status": router.readiness.status.value})


_GET: dict[str, Page] = {
    _MODELS: models,
    "/health": health,
    "/ready": ready,
    "/metrics": metrics,
    "/narwhal/state": state,
    "/narwhal/lifecycle": lifecycle_pages.show,
}
_CONTROL: dict[str, Page] = {
    "/narwhal/maintenance": maintenance,
    "/narwhal/lifecycle/drain": lifecycle_pages.drain,
    "/narwhal/lifecycle/readmit": lifecycle_pages.readmit,
}


def find(router: Router, connection: ClientConnection, head: RequestHead) -> Handler:
    """The handler for a request."""
    path, method = head.path, head.method
    route = _COMPLETIONS.get(path)
    if route is not None and method == "POST":
        return Exchange(router, connection, route, head)
    if route is not None or path in _CONTROL:
        allow = "POST, OPTIONS"
        if method == "POST":
            return PageHandler(router, connection, head, _CONTROL[path], control=True)
    else:
        page = _GET.get(path)
        if page is None and _model_name(path) == router.config.model:
            page = model
        if page is None:
            if path == "*" and method == "OPTIONS":
                return OptionsHandler(connection, "GET, HEAD, POST, OPTIONS")
            return FixedHandler(connection, _not_found(path))
        allow = "GET, HEAD, OPTIONS"
        if method in ("GET", "HEAD"):
            return PageHandler(router, connection, head, page, control=False)
    if method == "OPTIONS":
        return OptionsHandler(connection, allow)
    return FixedHandler(
        connection,
        Ending(
            "malformed_http",
            f"{path} does not answer {method}; it answers {allow}",
            status=405,
            code="method_not_allowed",
        ),
        [("allow", allow)],
    )


def _model_name(path: str) -> str | None:
    # Clients write a slash in a model's name as it is or as %2F. All other paths go by what was sent, so that
    # what a proxy in front lets pass by its path is what is served.
    return unquote(path[len(_MODELS) + 1 :]) or None if path.startswith(_MODELS + "/") else None


def _not_found(path: str) -> Ending:
    name = _model_name(path)
    if name is not None:
        return Ending("model_not_found", f"the model {name[:64]!r} is not served here", param="model")
    known = ", ".join([*_COMPLETIONS, *_GET, *_CONTROL])
    return Ending(
        "malformed_http", f"no such path: {path[:200]}; there are {known}", status=404, code="not_found"
    )


class _Plain:
    """A handler that answers as soon as it has the request."""

    body_limit = PAGE_BODY_LIMIT
    body_limit_key = ""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.deadline = time.monotonic() + PAGE_BODY_S

    def begin(self) -> None: ...

    def refuse(self, ending: Ending) -> None: ...

    def overdue(self) -> Ending:
        return Ending("body_timeout", f"the request's body did not come within {PAGE_BODY_S:g} s")

    def on_alarm(self, now: float) -> None: ...

    def client_left(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def reply_headers(self) -> list[replies.Header]:
        return []


class FixedHandler(_Plain):
    """Always the same error."""

    def __init__(
        self, connection: ClientConnection, ending: Ending, headers: list[replies.Header] | None = None
    ) -> None:
        super().__init__(connection)
        self._ending = ending
        self._headers = headers or []

    def begin(self) -> None:
        """Refuse before the body is read. Raises Ending."""
        raise self._ending

    def run(self, body: bytes) -> None:
        """Never reached: `begin` refuses."""

    def reply_headers(self) -> list[replies.Header]:
        """What goes with the error."""
        return self._headers


class OptionsHandler(_Plain):
    """Which methods a path answers."""

    def __init__(self, connection: ClientConnection, allow: str) -> None:
        super().__init__(connection)
        self._allow = allow

    def run(self, body: bytes) -> None:
        """Answer."""
        self._connection.reply(204, b"", None, [("allow", self._allow)])


class PageHandler(_Plain):
    """A page made on the spot; control pages for the entitled only."""

    def __init__(
        self, router: Router, connection: ClientConnection, head: RequestHead, page: Page, *, control: bool
    ) -> None:
        super().__init__(connection)
        self._router = router
        self._head = head
        self._page = page
        self._control = control
        self._headers: list[replies.Header] = []
        self._left = False

    def begin(self) -> None:
        """Check who asks. Raises Ending."""
        if not self._control:
            return
        variable = self._router.config.serving.control_token_env
        token = os.environ.get(variable) if variable else None
        if token:
            scheme, _, sent = self._head.headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(sent.strip(), token.encode()):
                self._headers = [("www-authenticate", "Bearer")]
                raise Ending(
                    "malformed_http",
                    "control routes need the bearer token that serving.control_token_env names",
                    status=401,
                    code="unauthorized",
                )
        elif not _is_loopback(self._connection.peer):
            raise Ending(
                "malformed_http",
                "control routes answer loopback clients only, unless serving.control_token_env is set",
                status=403,
                code="forbidden",
            )
        elif b"origin" in self._head.headers:
            # A browser here may be made to ask by any page it shows.
            raise Ending(
                "malformed_http",
                "control routes answer no browsers, unless serving.control_token_env is set",
                status=403,
                code="forbidden",
            )

    def reply_headers(self) -> list[replies.Header]:
        """What goes with a refusal."""
        return self._headers

    def run(self, body: bytes) -> None:
        """Answer."""
        try:
            answer = self._page(self._router, self._head, body)
        except Ending as ending:
            status, page, headers = replies.error(ending, [])
            self._connection.reply(status, page, headers=headers)
            return
        if callable(answer):
            self._router.track(self._reply_later(answer))
        else:
            self._connection.reply(*answer)

    async def _reply_later(self, make: Later) -> None:
        try:
            status, page, content_type = await self._router.loop.run_in_executor(None, make)
        except Exception:
            log.exception("%s can't be shown", self._head.path)
            ending = Ending("internal_error", "the router failed to make this page; its log says more")
            status, page, content_type = ending.http_status, ending.envelope(), replies.JSON
        if not self._left:
            self._connection.reply(status, page, content_type)

    def client_left(self) -> None:
        """Nobody waits for the page any more."""
        self._left = True


def _is_loopback(peer: str) -> bool:
    return peer.startswith(("127.", "::ffff:127.")) or peer in ("::1", "local")
