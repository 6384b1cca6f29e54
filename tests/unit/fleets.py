"""Small fleets for tests of the rooms that decide."""

from __future__ import annotations

from typing import NamedTuple

from narwhal.fleet.table import FleetTable


class Engine(NamedTuple):
    """What the table asks of an engine's configuration."""

    id: str
    role: str
    prefill_concurrency: int = 1
    decode_concurrency: int = 1


def fleet(*engines: Engine) -> FleetTable:
    """Their table."""
    return FleetTable(engines)
