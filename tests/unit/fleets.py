"""Small fleets for tests of the rooms that decide."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from narwhal.admission.door import Door
from narwhal.admission.readiness import Readiness
from narwhal.fleet.table import FleetTable
from narwhal.fleet.work import Work
from narwhal.placement.place import Placement
from narwhal.profiles.curves import DecodeCurve, HandoffCurve, PrefillCurve
from narwhal.profiles.model import EngineModel
from narwhal.profiles.models import FleetModels


class Engine(NamedTuple):
    """What the table asks of an engine's configuration."""

    id: str
    role: str
    prefill_concurrency: int = 1
    decode_concurrency: int = 1
    kv_capacity_tokens: int | None = None


def fleet(*engines: Engine) -> FleetTable:
    """Their table."""
    return FleetTable(engines)


def paced(per_token_s: float = 0.0, interval_s: float = 0.0, handoff_s: float = 0.0) -> EngineModel:
    """A profile: seconds per prompt token, per decode step, and a tenth of that per sequence in it."""
    return EngineModel(
        PrefillCurve(b=per_token_s), DecodeCurve(c=interval_s, p=interval_s / 10), HandoffCurve(c=handoff_s)
    )


class Rooms:
    """The rooms that decide, over one fleet."""

    def __init__(
        self,
        engines: Iterable[Engine],
        models: Iterable[EngineModel] | None = None,
        *,
        readiness: Readiness | None = None,
        retention_limit: int = 100,
        queue_capacity: int = 100,
    ) -> None:
        """Without `models`, nothing is known of the engines' pace."""
        self.table = fleet(*engines)
        self.models = FleetModels([*models] if models else [EngineModel() for _ in range(len(self.table))])
        self.work = Work(self.table, self.models, 0.0)
        self.placement = Placement(self.table, self.models)
        self.board = self.placement.board
        self.door = Door(
            self.table,
            readiness or Readiness(),
            self.placement,
            self.work,
            retention_limit=retention_limit,
            queue_capacity=queue_capacity,
        )
