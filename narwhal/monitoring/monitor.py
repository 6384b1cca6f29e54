"""The monitor looks after engines in passes, a few for each liveness interval.

A pass has stages; each looks at every engine and starts what is due there as a task of its own, so that no
engine waits for another. A stage that raises, which is a fault of the router's own, is logged and counted;
the others go on. If passes keep failing the router knows too little of its fleet, and says so at its door.

An idle engine that dies right after a probe must be found within `liveness_interval_s * liveness_misses`.
With probes every P seconds that may take P each, the last of M misses is certain at P * (M + 1) at the
latest; that sets P.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from narwhal.admission.readiness import Readiness
from narwhal.admission.readiness import State as RouterState
from narwhal.config import RecoveryConfig, Role
from narwhal.fleet.health import Evidence, Remedy
from narwhal.fleet.lifecycle import Change, Lifecycle, State
from narwhal.fleet.table import OTHER_ROLE
from narwhal.monitoring.probe import NotProbed, Probe, ProbeFailed, request_for
from narwhal.monitoring.reminder import Reminder

log = logging.getLogger("narwhal.monitoring")

_SOURCE = "monitor"
_PEERS_TRIED = 3
# An engine that answers but does not prove itself is tried again after so many passes, doubled each time.
_LONGEST_PAUSE = 16
_NOT_PROBED_S = 10.0  # between two lines of the log that say that engines can't be probed
# Likewise that an engine which is out does not prove itself: the first pause, and the longest.
_NOT_BACK_S = 60.0, 3600.0


@dataclass(slots=True)
class _Pause:
    """How many passes an ejected engine is left alone."""

    left: int = 0
    next: int = 1


class Monitor:
    """Watches the engines of one fleet."""

    def __init__(
        self,
        rules: RecoveryConfig,
        model: str,
        lifecycle: Lifecycle,
        readiness: Readiness,
        probes: list[Probe],
        restarted: Callable[[int], None],
        last_output: Callable[[int], float],
    ) -> None:
        """`restarted` is told of each engine whose process is another than before; `last_output` tells when
        a stream last brought output of an engine, in monotonic seconds."""
        self.pass_s = rules.liveness_interval_s * rules.liveness_misses / (rules.liveness_misses + 1)
        # A probe is over before the next pass, which would leave the engine out else.
        self._liveness_timeout_s = 0.9 * self.pass_s
        self.failures: dict[str, int] = {}  # by stage
        self.failed_in_a_row = 0  # passes
        # By engine: when it was last heard to do well, on the loop's clock.
        self.heard = array("d", [0.0]) * len(probes)
        self._rules = rules
        self._model = model
        self._lifecycle = lifecycle
        self._readiness = readiness
        self._probes = probes
        self._restarted = restarted
        self._last_output = last_output
        self._known_connection = [0] * len(probes)
        self._pauses = [_Pause() for _ in probes]
        self._reminders = [
            Reminder(*_NOT_BACK_S) for _ in probes
        ]  # of engines that are out and don't prove themselves
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._failed_stages: set[str] = set()
        self._not_probed = Reminder(_NOT_PROBED_S, _NOT_PROBED_S)
        self._timer: asyncio.TimerHandle | None = None
        self._stages: tuple[tuple[str, Callable[[float], None]], ...] = (
            ("lives", self._lives),
            ("liveness", self._liveness),
            ("remedies", self._remedies),
            ("recovery", self._recovery),
        )

    def start(self) -> None:
        """Begin; the first pass comes when one is due."""
        self._timer = asyncio.get_running_loop().call_later(self.pass_s, self._pass)

    async def close(self) -> None:
        """Stop, and close the probes' connections."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(probe.engine.pool.close() for probe in self._probes))

    def changed(self, change: Change) -> None:
        """An engine has changed its state: what that calls for begins at once."""
        if self._timer is None:
            return
        if change.after is State.PROBING:
            self._remedy(change.engine)
        elif change.after is State.EJECTED:
            self._pauses[change.engine] = _Pause()
            self._reminders[change.engine] = Reminder(*_NOT_BACK_S)

    def add(self, probe: Probe) -> None:
        """The fleet has one more engine."""
        self._probes.append(probe)
        self.heard.append(0.0)
        self._known_connection.append(0)
        self._pauses.append(_Pause())
        self._reminders.append(Reminder(*_NOT_BACK_S))

    def suspect(self, engine: int) -> None:
        """A leg lost its connection: if nobody listens there any more, find it out before requests do."""
        if self._timer is not None:
            self._begin("suspicions", engine, self._look_for_life)

    def looking(self, engine: int) -> asyncio.Task[None] | None:
        """The task that finds out whether a suspect still lives, while it does; it never fails."""
        return self._tasks.get(("suspicions", engine))

    async def _look_for_life(self, engine: int) -> None:
        # A process that ends may take one more connection, and close it; refusals come after that.
        refusals = 0
        for _ in range(2 * self._rules.eject_after):
            try:
                await self._probes[engine].health(self._liveness_timeout_s)
            except ProbeFailed as failure:
                if not failure.refused and not failure.lost:
                    return  # it listens: what else may be wrong is for liveness to find
                now, refused = time.monotonic(), failure.refused
                self._lifecycle.failed(engine, Evidence.CONNECTION, str(failure), now, refused=refused)
                refusals += refused
                if refusals == self._rules.eject_after:
                    return
            else:
                return

    def hurry(self) -> None:
        """Try ejected engines now, not when their next turn comes."""
        for pause in self._pauses:
            pause.left = 0
        if self._timer is not None:
            self._recovery(time.monotonic())

    # ---- passes

    def _pass(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.pass_s, self._pass)
        now = time.monotonic()
        for name, stage in self._stages:
            try:
                stage(now)
            except Exception:
                self._failed(name)
        self._judge()

    def _failed(self, stage: str) -> None:
        log.exception("the monitor's stage %s failed", stage)
        self.failures[stage] = self.failures.get(stage, 0) + 1
        self._failed_stages.add(stage)

    def _judge(self) -> None:
        # Of the stages in this pass, and of what the tasks of the last one came to since.
        failed, self._failed_stages = sorted(self._failed_stages), set()
        if not failed:
            if self.failed_in_a_row >= self._rules.monitor_failure_limit:
                log.warning("the monitor works again")
            self.failed_in_a_row = 0
            self._readiness.clear(RouterState.MONITORING_DEGRADED, _SOURCE)
            return
        self.failed_in_a_row += 1
        if self.failed_in_a_row >= self._rules.monitor_failure_limit:
            self._readiness.set(
                RouterState.MONITORING_DEGRADED,
                _SOURCE,
                f"the monitor failed in {self.failed_in_a_row} passes in a row "
                f"(recovery.monitor_failure_limit), lastly in {' and '.join(failed)}; the log says why",
            )

    def _begin(self, stage: str, engine: int, coroutine: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        """Start a stage's task for an engine, unless one is under way."""
        key = (stage, engine)
        if key not in self._tasks:
            self._tasks[key] = asyncio.get_running_loop().create_task(self._run(key, coroutine))

    async def _run(self, key: tuple[str, int], coroutine: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        stage, engine = key
        try:
            await coroutine(engine)
        except NotProbed as error:
            # What was to be learned of the engine stays open, and is asked for again in a later pass.
            self._tell_not_probed(str(error))
        except Exception:
            self._failed(stage)
        finally:
            del self._tasks[key]

    def _tell_not_probed(self, why: str) -> None:
        if self._not_probed.is_due(time.monotonic()):
            log.warning("engines can't be probed, and stay in the state they are in: %s", why)

    # ---- stages

    def _lives(self, now: float) -> None:
        self._lifecycle.tick(now)
        for probe in self._probes:
            probe.engine.pool.sweep(now)

    def _liveness(self, now: float) -> None:
        for engine, life in enumerate(self._lifecycle.lives):
            watched = life.state in (State.SERVING, State.READMITTING, State.PROBING)
            if watched and now - self.heard[engine] >= self.pass_s:
                self._begin("liveness", engine, self._is_alive)

    async def _is_alive(self, engine: int) -> None:
        probe = self._probes[engine]
        try:
            await probe.health(self._liveness_timeout_s)
        except ProbeFailed as failure:
            now = time.monotonic()
            # A busy engine may be slow to say how it is; one whose tokens flow is not dead.
            if failure.refused or now - self._last_output(engine) >= self.pass_s:
                self._lifecycle.missed(engine, str(failure), now, refused=failure.refused)
            return
        self._lifecycle.alive(engine, time.monotonic())
        await self._look_at_start(engine)

    async def _look_at_start(self, engine: int) -> None:
        """Is it the same process as before? It is while the connection to it lives."""
        probe = self._probes[engine]
        connection = probe.connections_opened
        if self._known_connection[engine] == connection:
            return
        try:
            started_at = await probe.started_at(self._rules.probe_timeout_s)
        except ProbeFailed:
            return  # asked again with the next probe
        self._known_connection[engine] = probe.connections_opened
        if started_at is not None and self._lifecycle.started(engine, started_at):
            log.warning("engine %s was restarted", probe.engine.id)
            self._restarted(engine)

    def _remedies(self, now: float) -> None:
        for engine, life in enumerate(self._lifecycle.lives):
            if life.state is State.PROBING:
                self._remedy(engine)

    def _remedy(self, engine: int) -> None:
        self._begin("remedies", engine, self._settle_doubt)

    async def _settle_doubt(self, engine: int) -> None:
        life = self._lifecycle.lives[engine]
        remedy = life.remedy
        try:
            await self._probes[engine].health(self._rules.probe_timeout_s)
            if remedy is not Remedy.PROBE_HEALTH:
                await self._prove(engine)
        except ProbeFailed as failure:
            if life.state is State.PROBING:
                now = time.monotonic()
                self._lifecycle.flunked(engine, str(failure), now, refused=failure.refused)
            return
        if life.state is State.PROBING and life.remedy is remedy:
            self._lifecycle.passed(engine, time.monotonic())

    def _recovery(self, now: float) -> None:
        for engine, life in enumerate(self._lifecycle.lives):
            if life.state is State.EJECTED:
                pause = self._pauses[engine]
                pause.left -= 1
                if pause.left < 0:
                    self._begin("recovery", engine, self._bring_back)

    async def _bring_back(self, engine: int) -> None:
        probe, life, timeout_s = (
            self._probes[engine],
            self._lifecycle.lives[engine],
            self._rules.probe_timeout_s,
        )
        answers = False
        try:
            await probe.health(timeout_s)
            self._lifecycle.alive(engine, time.monotonic())
            answers = True
            await probe.model(timeout_s)
            await self._look_at_start(engine)
            await self._prove(engine)
        except ProbeFailed as failure:
            if life.state is State.EJECTED:
                now = time.monotonic()
                self._lifecycle.flunked(engine, str(failure), now, refused=failure.refused)
                if self._reminders[engine].is_due(now):
                    log.warning("engine %s is not taken back yet: %s", probe.engine.id, failure)
            if answers:
                pause = self._pauses[engine]
                pause.left, pause.next = pause.next, min(_LONGEST_PAUSE, pause.next * 2)
            return
        if life.state is State.EJECTED:
            self._lifecycle.passed(engine, time.monotonic())

    # ---- proof

    async def _prove(self, engine: int) -> None:
        """Let the engine compute a token, and hand a KV cache over to or from a peer. Raises ProbeFailed."""
        probe, timeout_s = self._probes[engine], self._rules.probe_timeout_s
        await probe.whole(timeout_s)
        if probe.engine.config.role is Role.BOTH:
            return
        failure: ProbeFailed | None = None
        for peer in self._peers(engine):
            producer, consumer = (probe, peer) if probe.engine.config.role is Role.PREFILL else (peer, probe)
            request = request_for(producer.engine, self._model)
            try:
                handoff = await producer.prefill(request, timeout_s)
            except ProbeFailed as failed:
                if producer is probe:
                    raise
                failure = failed
                continue
            try:
                await consumer.decode(request, handoff, timeout_s)
            except ProbeFailed as failed:
                failure = ProbeFailed(
                    f"a handoff from {producer.engine.id} to {consumer.engine.id}: {failed}"
                )
                continue
            return
        if failure is not None:
            raise failure

    def _peers(self, engine: int) -> list[Probe]:
        """Engines in service at the other end of a handoff: none if there are none, the most able first."""
        lifecycle = self._lifecycle
        peers = lifecycle.in_service(OTHER_ROLE[lifecycle.lives[engine].role])
        peers.sort(key=lambda peer: peer in lifecycle.tainted)
        return [self._probes[peer] for peer in peers[:_PEERS_TRIED]]
