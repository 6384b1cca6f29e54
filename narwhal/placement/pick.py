"""Picked: the cheapest engine, the first of equals."""

from __future__ import annotations

from collections.abc import Sequence

from narwhal.placement.price import FULL


def pick(engines: Sequence[int], prices: Sequence[float]) -> int | None:
    """The engine with the lowest price, or None if all are FULL. Ties go to the first, so sort by ID."""
    lowest = min(prices, default=FULL)
    return None if lowest == FULL else engines[prices.index(lowest)]
