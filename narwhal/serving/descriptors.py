"""How the descriptors that this process may have are shared between its clients and its engines.

Every request needs one of a client and one of an engine, and a client keeps its own while it asks for
nothing. So where there are too few, idle clients must not take those that requests need to reach an engine.
"""

from __future__ import annotations

import logging
import resource
from typing import NamedTuple

from narwhal.config import FleetConfig

log = logging.getLogger("narwhal.serving")

SPARE = 128  # for the process itself: logs, the journal, listening sockets; of few it has half


class ClientLimit(NamedTuple):
    """How many client connections there may be, and what says so."""

    connections: int
    setting: str


def configured(config: FleetConfig) -> ClientLimit:
    """As many as the fleet file allows."""
    return ClientLimit(config.serving.client_connection_limit, "serving.client_connection_limit")


def engine_connections(config: FleetConfig) -> int:
    """How many connections to engines there may be at once."""
    seats = sum(engine.prefill_concurrency + engine.decode_concurrency for engine in config.engines)
    return min(seats, config.serving.retention_limit) + len(config.engines)  # each has one for probes


def share_out(config: FleetConfig, files: int) -> ClientLimit:
    """The clients' share of so many descriptors: what engines leave of them, but half at least."""
    limit = configured(config)
    free = files - min(SPARE, files // 2)
    share = max(free - engine_connections(config), free // 2)
    if share >= limit.connections:
        return limit
    return ClientLimit(share, f"their share of the {files} files that this process may have open: ulimit -n")


def raise_file_limit(config: FleetConfig) -> ClientLimit:
    """Allow this process as many files as it may have, and warn if that is too few for its connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit = configured(config)
    if hard == resource.RLIM_INFINITY:
        return limit
    engines = engine_connections(config)
    wanted = limit.connections + engines + SPARE
    if hard >= wanted:
        return limit
    share = share_out(config, hard)
    log.warning(
        "at most %d files can be open (ulimit -n), but %d may be needed: %d for clients "
        "(serving.client_connection_limit), %d for engines; more than %d clients are turned away",
        hard,
        wanted,
        limit.connections,
        engines,
        share.connections,
    )
    return share
