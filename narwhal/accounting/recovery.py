"""What there is to tell of engines that leave and come back, and of attempts made again, at one instant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from narwhal.fleet.lifecycle import Life, Lifecycle, State
from narwhal.fleet.retries import RetryBudget


@dataclass(frozen=True, slots=True)
class LifeFigures:
    """One engine."""

    state: State
    since: float  # monotonic
    why: str
    kept: bool  # in service although it is doubtful, since it is the last of its role
    failures_in_a_row: dict[str, int]  # by class of evidence
    started_at: float | None  # its process, in seconds since 1970
    handoffs: int  # KV caches it holds for decode legs to come
    ejections: int
    readmissions: int
    restarts: int


@dataclass(frozen=True, slots=True)
class RecoveryFigures:
    """The fleet."""

    lives: tuple[LifeFigures, ...]
    monitor_failures: dict[str, int]  # by stage
    retries_left: float  # in the budget
    retries_denied: int

    @classmethod
    def of(
        cls, lifecycle: Lifecycle, monitor_failures: dict[str, int], retries: RetryBudget
    ) -> RecoveryFigures:
        """Copied off the live figures."""
        return cls(
            lives=tuple(_figures(lifecycle, engine, life) for engine, life in enumerate(lifecycle.lives)),
            monitor_failures=dict(monitor_failures),
            retries_left=retries.left,
            retries_denied=retries.denied,
        )


def _figures(lifecycle: Lifecycle, engine: int, life: Life) -> LifeFigures:
    return LifeFigures(
        state=life.state,
        since=life.since,
        why=life.why,
        kept=life.kept,
        failures_in_a_row={evidence.value: count for evidence, count in life.health.counts.items()},
        started_at=life.started_at,
        handoffs=life.handoffs,
        ejections=lifecycle.ejections[engine],
        readmissions=lifecycle.readmissions[engine],
        restarts=lifecycle.restarts[engine],
    )


def as_json(life: LifeFigures, now: float) -> dict[str, Any]:
    """One engine for `/narwhal/state`; `now` is monotonic."""
    return {
        "state": life.state.value,
        "for_s": round(max(0.0, now - life.since), 3),
        "reason": life.why or None,
        "last_of_its_role": life.kept,
        "failures_in_a_row": life.failures_in_a_row,
        "process_started_at": life.started_at,
        "handoffs_held": life.handoffs,
        "ejections": life.ejections,
        "readmissions": life.readmissions,
        "restarts": life.restarts,
    }
