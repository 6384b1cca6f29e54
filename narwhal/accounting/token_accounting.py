"""How output tokens are counted: by the IDs that engines supply, or not at all.

Without IDs an output length comes from the engine's usage or from the number of events, and is marked so.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from narwhal.config import Dialect, EngineConfig, Role


class TokenAccounting(StrEnum):
    """Whether each output token is known by its ID."""

    TOKEN_IDS = "token_ids"
    UNAVAILABLE = "unavailable"


def of_dialect(dialect: Dialect) -> TokenAccounting:
    """What engines of this dialect allow."""
    return TokenAccounting.TOKEN_IDS if dialect is Dialect.VLLM else TokenAccounting.UNAVAILABLE


def of_fleet(engines: Iterable[EngineConfig]) -> TokenAccounting:
    """What the fleet as a whole allows: all engines that produce output have to supply IDs."""
    if all(
        of_dialect(engine.dialect) is TokenAccounting.TOKEN_IDS
        for engine in engines
        if engine.role is not Role.PREFILL
    ):
        return TokenAccounting.TOKEN_IDS
    return TokenAccounting.UNAVAILABLE
