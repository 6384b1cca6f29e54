"""One engine as the router speaks to it: its dialect, its connections, and the heads of its requests."""

from __future__ import annotations

import os
import ssl

from narwhal._fast.body import Body
from narwhal._fast.relay import Relay
from narwhal.config import EngineConfig, EngineDefaults, FleetConfig
from narwhal.engines.dialects import DIALECTS, Pieces
from narwhal.engines.leg import Answer, Leg
from narwhal.engines.pool import Pool
from narwhal.request import Route

PATHS = {Route.CHAT: "/v1/chat/completions", Route.COMPLETIONS: "/v1/completions"}


class Engine:
    """One engine of the fleet."""

    def __init__(
        self,
        config: EngineConfig,
        defaults: EngineDefaults,
        *,
        api_key: str | None,
        tls: ssl.SSLContext | None,
        reply_limit: int,
    ) -> None:
        """`api_key` goes to the engine as a bearer token; `reply_limit` bounds a collected reply in bytes."""
        self.config = config
        self.id = config.id
        # Its legs as messages name them.
        self.prefill_leg = f"engine {config.id} (prefill leg)"
        self.decode_leg = f"engine {config.id} (decode leg)"
        self.whole_request = f"engine {config.id} (whole request)"
        self.dialect = DIALECTS[config.dialect]
        self.pool = Pool(
            config.url,
            connect_timeout_s=defaults.connect_timeout_s,
            idle_connection_s=defaults.idle_connection_s,
            reply_limit=reply_limit,
            tls=tls,
        )
        common = f"HTTP/1.1\r\nhost: {config.url.authority}\r\n"
        if api_key:
            common += f"authorization: Bearer {api_key}\r\n"
        self._get_head = common
        common += "content-type: application/json\r\n"
        self._tokenize_head = f"POST {config.url.path}/tokenize {common}".encode()
        self._heads = {
            route: f"POST {config.url.path}{path} {common}".encode() for route, path in PATHS.items()
        }

    def call(
        self,
        route: Route,
        body: Pieces,
        request_id: str,
        future: Answer,
        relay: Relay | None = None,
    ) -> Leg:
        """Send one leg. See Leg for what becomes of `future`."""
        return self._post(self._heads[route], body, request_id, future, relay)

    def tokenize(self, body: Pieces, request_id: str, future: Answer) -> Leg:
        """Ask how many tokens a request's prompt has (vLLM's /tokenize, which takes the same body)."""
        return self._post(self._tokenize_head, body, request_id, future, None)

    def get(self, path: str, future: Answer) -> Leg:
        """Ask for one of the engine's other pages."""
        head = f"GET {self.config.url.path}{path} {self._get_head}\r\n".encode()
        return Leg(self.pool, [head], len(head), future)

    def _post(
        self,
        head: bytes,
        body: Pieces,
        request_id: str,
        future: Answer,
        relay: Relay | None,
    ) -> Leg:
        size = Body.size(body)
        head += f"x-request-id: {request_id}\r\ncontent-length: {size}\r\n\r\n".encode()
        return Leg(self.pool, [head, *body], len(head) + size, future, relay)


def engines_of(config: FleetConfig) -> list[Engine]:
    """The fleet's engines, in its order, each with the key and the CAs that the fleet file names."""
    defaults = config.engine
    tls = None
    if any(engine.url.scheme == "https" for engine in config.engines):
        tls = ssl.create_default_context(cafile=defaults.ca_file)
    return [
        Engine(
            engine,
            defaults,
            api_key=os.environ[defaults.api_key_env] if defaults.api_key_env else None,
            tls=tls,
            reply_limit=config.serving.max_response_bytes,
        )
        for engine in config.engines
    ]
