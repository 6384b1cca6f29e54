"""Priced: what one more leg on an engine costs, in legs against seats.

The price is the share of its seats that an engine has taken, so an engine with twice the seats gets twice the
legs. A `both` engine runs the whole request and is as busy as the fuller of its two phases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from narwhal.fleet.table import FleetTable, Phase, RoleCode

# The price of an engine without a free seat: nobody pays it.
FULL = math.inf


def prices(table: FleetTable, phase: Phase, engines: Sequence[int]) -> list[float]:
    """The price of a leg of `phase` on each of `engines`: a share below 1, or FULL."""
    seats, limit = table.seats[phase], table.limit[phase]
    role, both = table.role, int(RoleCode.BOTH)
    return [
        whole_price(table, engine)
        if role[engine] == both
        else seats[engine] / limit[engine]
        if seats[engine] < limit[engine]
        else FULL
        for engine in engines
    ]


def whole_price(table: FleetTable, engine: int) -> float:
    """The price of a whole request, which needs a seat in both phases, on a `both` engine."""
    share = max(
        table.prefill_seats[engine] / table.prefill_limit[engine],
        table.decode_seats[engine] / table.decode_limit[engine],
    )
    return share if share < 1 else FULL
