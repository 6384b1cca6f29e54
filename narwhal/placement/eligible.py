"""Eligible: the engines a leg may run on at all, full ones included.

Kept apart from price, since the two fail differently: with every eligible engine full a request waits, with
none eligible it can't be served.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from narwhal.fleet.table import FleetTable, Phase


def eligible(table: FleetTable, phase: Phase, avoid: AbstractSet[int]) -> list[int]:
    """The available engines whose role answers an ask for `phase`, less `avoid`: indices, by order of ID."""
    available = table.available
    if not avoid:
        return [engine for engine in table.serving[phase] if available[engine]]
    return [engine for engine in table.serving[phase] if available[engine] and engine not in avoid]
