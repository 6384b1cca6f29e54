"""How each engine leaves the fleet and comes back.

    SERVING ─(evidence)─► PROBING ─(it fails the probe)─► EJECTED ─(it proves itself)─► READMITTING ─► SERVING
       ▲                     │                               ▲                               (its seats grow)
       └───(it passes)───────┘     liveness missed, refused ─┘
    any ─(drain)─► DRAINING ─(nothing runs)─► DRAINED ─(readmit)─► EJECTED, and the way back from there

In service by right are SERVING and READMITTING engines. A role that would be left without one keeps the
engine that left last, doubtful as it is (it is *kept*), unless it can't even be connected to: a request that
may fail is better than one that must. If a role is empty all the same, the engines of the other role run
whole requests, which every engine of a split fleet can, until it is not.

When every engine drains, the whole fleet is in maintenance: the router takes no new requests, and those it
holds already may still use what drains, until none is held.

Everything that follows from the states (who may be placed on, with how many seats, in which role) is written
to the fleet's table by one function, `_settle`, from scratch; so no order of events can leave it wrong.
Time is an argument throughout: `now` is monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from narwhal.fleet.health import Evidence, Health, Remedy
from narwhal.fleet.table import OTHER_ROLE, FleetTable, Phase, RoleCode


class State(StrEnum):
    """Where an engine stands."""

    SERVING = "serving"
    PROBING = "probing"  # there is a doubt about it, which a probe is about to settle
    EJECTED = "ejected"
    READMITTING = "readmitting"  # back, with fewer seats at first
    DRAINING = "draining"
    DRAINED = "drained"  # safe to stop


_IN_SERVICE = (State.SERVING, State.READMITTING)
_DOUBTFUL = (State.PROBING, State.EJECTED)
DRAINS = (State.DRAINING, State.DRAINED)


class Rules(Protocol):
    """What is configured; the fleet file's `recovery` section has it."""

    @property
    def eject_after(self) -> int:
        """Failures of a class in a row that call for a remedy."""

    @property
    def liveness_misses(self) -> int:
        """Liveness probes missed in a row that eject."""

    @property
    def readmit_ramp_s(self) -> float:
        """How long until an engine that came back has all its seats."""


class Change(NamedTuple):
    """An engine went from one state to another."""

    engine: int
    before: State
    after: State
    why: str

    @property
    def is_fault(self) -> bool:
        """Whether something is wrong with the engine. To be ejected is the way back from a drain, too."""
        return self.after in _DOUBTFUL and self.before not in DRAINS


@dataclass(slots=True)
class Life:
    """One engine."""

    since: float
    limits: tuple[int, ...]  # its seats when nothing holds them back, by phase
    role: RoleCode  # as configured
    state: State = State.SERVING
    why: str = ""
    health: Health = field(default_factory=Health)
    doubt: Evidence | None = None  # what brought it to PROBING
    remedy: Remedy | None = None  # what is to settle that
    refused: bool = False  # it can't be connected to
    kept: bool = False  # in service although EJECTED or PROBING, since it is the last of its role
    misses: int = 0  # liveness probes, in a row
    generation: int = 0  # changes when what the engine held is gone
    started_at: float | None = None  # its process, in seconds since 1970
    drain_reason: str = ""
    drain_until: float | None = None  # when it is safe to stop whatever runs
    retired: bool = False  # taken out of the fleet file: it drains, and does not come back by itself
    handoffs: int = 0  # KV caches it holds for decode legs that have not begun to answer


class Lifecycle:
    """The lives of all engines of one fleet, by index. It alone changes the table's availability, limits and
    roles."""

    __slots__ = (
        "_changed",
        "_held",
        "_rules",
        "_table",
        "ejections",
        "lives",
        "readmissions",
        "restarts",
        "tainted",
    )

    def __init__(
        self,
        table: FleetTable,
        rules: Rules,
        now: float,
        changed: Callable[[Change], None] = lambda _: None,
        held: Callable[[], int] = lambda: 0,
    ) -> None:
        """`changed` is told of each change of state, after the table has been brought in line with it; `held`
        tells how many requests the router holds."""
        self.lives: list[Life] = []
        # Engines with evidence against them, so that a success elsewhere costs one look.
        self.tainted: set[int] = set()
        self.ejections: list[int] = []
        self.readmissions: list[int] = []
        self.restarts: list[int] = []
        self._table = table
        self._rules = rules
        self._changed = changed
        self._held = held
        for engine in range(len(table)):
            self._enter(engine, now)

    # ---- the fleet file

    def _enter(self, engine: int, now: float) -> None:
        limits = tuple(self._table.limit[phase][engine] for phase in Phase)
        self.lives.append(Life(now, limits, RoleCode(self._table.role[engine])))
        for figures in (self.ejections, self.readmissions, self.restarts):
            figures.append(0)

    def add(self, now: float) -> None:
        """The table has one more engine, which is to prove itself before it serves."""
        engine = len(self.lives)
        self._enter(engine, now)
        self.lives[engine].state = State.DRAINED  # it did not serve until now, by nobody's fault
        self._move(engine, State.EJECTED, "it is new, and is to prove itself", now)

    def retire(self, engines: Iterable[int], now: float) -> None:
        """The fleet file has these engines no more."""
        retired = list(engines)
        for engine in retired:
            self.lives[engine].retired = True
        self.drain(retired, None, now, "it was taken out of the fleet file")

    def set_limits(self, engine: int, limits: tuple[int, ...], now: float) -> None:
        """The engine has other seats, by phase, when nothing holds them back."""
        self.lives[engine].limits = limits
        self._settle(now)

    # ---- evidence

    def failed(self, engine: int, evidence: Evidence, why: str, now: float, *, refused: bool = False) -> None:
        """A leg failed on the engine, or a probe did; `refused`: it could not be connected to."""
        life = self.lives[engine]
        self.tainted.add(engine)
        remedy = life.health.failed(evidence, self._rules.eject_after)
        if remedy is None or (life.state not in _IN_SERVICE and not life.kept):
            return
        count = life.health.counts[evidence]
        why = f"{count} {evidence.value} failures in a row, the last: {why}"
        if remedy is Remedy.EJECT:
            self._eject(engine, why, now, refused=refused)
        elif life.state in _IN_SERVICE:
            life.doubt, life.remedy = evidence, remedy
            self._move(engine, State.PROBING, why, now)

    def succeeded(self, engine: int, classes: Iterable[Evidence]) -> None:
        """What went well clears these classes; engines not in `tainted` have nothing to be cleared of."""
        health = self.lives[engine].health
        health.succeeded(classes)
        if not health.counts:
            self.tainted.discard(engine)

    def slowed(self, engine: int, why: str, now: float) -> None:
        """The engine has become so much slower than its peers that it had better prove itself anew."""
        if self.lives[engine].state in _IN_SERVICE:
            self._eject(engine, why, now, refused=False)

    # ---- probes

    def alive(self, engine: int, now: float) -> None:
        """The engine answered a liveness probe."""
        life = self.lives[engine]
        life.misses = 0
        if life.refused:
            life.refused = False  # it can be connected to again, so it might be kept
            self._settle(now)

    def missed(self, engine: int, why: str, now: float, *, refused: bool) -> None:
        """The engine did not answer a liveness probe; `refused`: it could not be connected to."""
        life = self.lives[engine]
        life.misses += 1
        if life.misses < self._rules.liveness_misses or life.state in DRAINS:
            return
        if life.state in _IN_SERVICE or life.state is State.PROBING or (life.kept and refused):
            self._eject(engine, f"{life.misses} liveness probes missed: {why}", now, refused=refused)

    def passed(self, engine: int, now: float) -> None:
        """The engine passed what its state asks of it: its remedy's probe, or the way back."""
        life = self.lives[engine]
        if life.state is State.PROBING:
            assert life.doubt is not None
            assert life.remedy is not None
            if life.remedy is Remedy.PROBE_HEALTH:
                life.health.said_well(life.doubt)
            else:
                life.health.succeeded((life.doubt,))
            if not life.health.counts:
                self.tainted.discard(engine)
            self._move(engine, State.SERVING, f"it passed the {life.remedy.value}", now)
        elif life.state is State.EJECTED:
            life.health.clear()
            self.tainted.discard(engine)
            life.misses = 0
            self.readmissions[engine] += 1
            # One that was kept has run all the time, and one that is alone in its role is needed whole.
            warm = life.kept or not self.in_service(life.role)
            self._move(engine, State.SERVING if warm else State.READMITTING, "it proved itself", now)

    def flunked(self, engine: int, why: str, now: float, *, refused: bool = False) -> None:
        """The engine did not pass."""
        life = self.lives[engine]
        if life.state is State.PROBING:
            self._eject(engine, f"it failed its probe: {why}", now, refused=refused)
        elif life.state is State.EJECTED:
            life.why = why
            if life.refused is not refused:
                life.refused = refused
                self._settle(now)

    def started(self, engine: int, started_at: float) -> bool:
        """The engine's process started then; returns whether that is another process than before."""
        life = self.lives[engine]
        before, life.started_at = life.started_at, started_at
        if before is None or before == started_at:
            return False
        life.generation += 1
        life.health.clear()  # what the old process did says nothing of this one
        self.tainted.discard(engine)
        self.restarts[engine] += 1
        return True

    # ---- drains

    def drain(self, engines: Iterable[int], until: float | None, now: float, why: str) -> None:
        """Give these engines nothing new. They are safe to stop once nothing runs on them, or at `until`."""
        moves = []
        for engine in engines:
            self.lives[engine].drain_until = until
            self.lives[engine].drain_reason = why
            if self.lives[engine].state not in DRAINS:
                moves.append((engine, State.DRAINING, why))
        self._move_all(moves, now)
        self.tick(now)

    def readmit(self, engines: Iterable[int], now: float) -> None:
        """Take these engines back: one that had not stopped serving at once, any other when it has proved
        itself."""
        moves = []
        for engine in engines:
            life = self.lives[engine]
            life.retired = False
            if life.state in DRAINS:
                life.drain_until = None
                life.misses = 0
                life.refused = False
            if life.state is State.DRAINING:
                moves.append((engine, State.SERVING, "its drain was called off"))
            elif life.state is State.DRAINED:
                moves.append((engine, State.EJECTED, "it was readmitted, and is to prove itself"))
        self._move_all(moves, now)

    def running(self, engine: int) -> int:
        """Legs on the engine, and KV caches it holds for legs to come."""
        return sum(self._table.seats[phase][engine] for phase in Phase) + self.lives[engine].handoffs

    @property
    def all_drained(self) -> bool:
        """Whether every engine is draining or drained: the whole fleet is in maintenance."""
        return all(life.state in DRAINS for life in self.lives)

    # ---- time

    def tick(self, now: float) -> None:
        """Time has passed: ramps grow, drains complete."""
        for engine, life in enumerate(self.lives):
            if life.state is State.READMITTING and now - life.since >= self._rules.readmit_ramp_s:
                self._move(engine, State.SERVING, "it has all its seats again", now)
            elif life.state is State.DRAINING:
                late = life.drain_until is not None and now >= life.drain_until
                running = self.running(engine)
                if late and running:
                    self._move(engine, State.DRAINED, f"its deadline passed with {running} legs running", now)
                elif late or not (running or (self.all_drained and self._held())):
                    self._move(engine, State.DRAINED, "nothing runs on it", now)
        if any(life.state is State.READMITTING for life in self.lives):
            self._settle(now)

    # ---- what follows

    def in_service(self, role: RoleCode) -> list[int]:
        """The engines of a role that are in service by right."""
        return [
            engine
            for engine, life in enumerate(self.lives)
            if life.role is role and life.state in _IN_SERVICE
        ]

    def stand_ins(self) -> dict[RoleCode, list[int]]:
        """The roles that no engine is left for, and the engines that serve whole requests instead."""
        found: dict[RoleCode, list[int]] = {}
        for engine, life in enumerate(self.lives):
            other = OTHER_ROLE.get(life.role)
            if other is not None and self._table.available[engine] and self._table.role[engine] != life.role:
                found.setdefault(other, []).append(engine)
        return found

    def _eject(self, engine: int, why: str, now: float, *, refused: bool) -> None:
        life = self.lives[engine]
        life.refused = refused
        if refused:
            life.generation += 1  # whatever process was there is gone, and what it held with it
        if life.state is State.EJECTED:
            life.why = why
            self._settle(now)
            return
        self.ejections[engine] += 1
        self._move(engine, State.EJECTED, why, now)

    def _move(self, engine: int, state: State, why: str, now: float) -> None:
        self._move_all([(engine, state, why)], now)

    def _move_all(self, moves: list[tuple[int, State, str]], now: float) -> None:
        changes = []
        for engine, state, why in moves:
            life = self.lives[engine]
            changes.append(Change(engine, life.state, state, why))
            life.state, life.why, life.since = state, why, now
            if state is not State.PROBING:
                life.doubt = life.remedy = None
        self._settle(now)
        for change in changes:
            self._changed(change)

    def _settle(self, now: float) -> None:
        table = self._table
        for role in RoleCode:
            self._keep(role)
        last_to_use = State.DRAINING if self.all_drained else None
        for engine, life in enumerate(self.lives):
            available = life.state in _IN_SERVICE or life.kept or life.state is last_to_use
            if table.available[engine] != available:
                table.set_available(engine, available)
            share = self._share(life, now)
            for phase in Phase:
                limit = max(1, int(life.limits[phase] * share))
                if table.limit[phase][engine] != limit:
                    table.set_limit(engine, phase, limit)
        self._take_over()

    def _keep(self, role: RoleCode) -> None:
        left = [life for life in self.lives if life.role is role and life.state in _DOUBTFUL]
        able = [] if self.in_service(role) else [life for life in left if not life.refused]
        last = max(able, key=lambda life: life.since, default=None)
        for life in self.lives:
            if life.role is role:
                life.kept = life is last

    def _share(self, life: Life, now: float) -> float:
        if life.state is not State.READMITTING:
            return 1.0
        return min(1.0, (now - life.since) / self._rules.readmit_ramp_s)

    def _take_over(self) -> None:
        # An engine of a split fleet whose other half is missing runs whole requests.
        able = {life.role for engine, life in enumerate(self.lives) if self._table.available[engine]}
        for role, other in OTHER_ROLE.items():
            wanted = role if other in able or role not in able else RoleCode.BOTH
            self._set_roles(role, wanted)

    def _set_roles(self, configured: RoleCode, wanted: RoleCode) -> None:
        engines = [engine for engine, life in enumerate(self.lives) if life.role is configured]
        if any(self._table.role[engine] != wanted for engine in engines):
            self._table.set_roles(engines, wanted)
