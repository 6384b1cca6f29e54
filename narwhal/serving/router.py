"""The router: the rooms wired together, and what all requests share."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from narwhal._fast.relay import Relay
from narwhal.accounting.accounts import Accounts
from narwhal.accounting.journal import Journal
from narwhal.accounting.loop_lag import LoopLag
from narwhal.accounting.record import Record
from narwhal.accounting.recovery import RecoveryFigures
from narwhal.accounting.scrape import Scraper
from narwhal.admission.door import Door
from narwhal.admission.readiness import Readiness, State
from narwhal.config import FleetConfig
from narwhal.engines.engine import Engine, engines_of
from narwhal.fleet.health import Evidence
from narwhal.fleet.lifecycle import DRAINS, Change, Lifecycle
from narwhal.fleet.lifecycle import State as EngineState
from narwhal.fleet.retries import RetryBudget
from narwhal.fleet.table import DEPTH_SHARE, FleetTable, Phase
from narwhal.fleet.work import Work
from narwhal.monitoring.monitor import Monitor
from narwhal.monitoring.probe import Probe
from narwhal.outcomes import Ending
from narwhal.placement.eligible import eligible
from narwhal.placement.place import Placement
from narwhal.profiles.drift import State as Drifted
from narwhal.profiles.input_length import InputLengths
from narwhal.profiles.load import load_models
from narwhal.profiles.model import EngineModel
from narwhal.profiles.output_lengths import OutputLengths
from narwhal.profiles.store import ProfileError
from narwhal.request import Route
from narwhal.serving.drains import Drain, DrainFile, Drains
from narwhal.serving.failures import LegFailure
from narwhal.serving.reload import Changes, compare
from narwhal.serving.repeats import Repeats

if TYPE_CHECKING:
    from narwhal.serving.exchange import Exchange

log = logging.getLogger("narwhal.serving")

_SWEEP_S = 1.0
_LOOK_S = 0.1
# Answers' lengths spread about as log-normal ones do, whose mean is about this quantile.
_MEAN_QUANTILE = 0.7


class Router:
    """One router: its fleet, its door, its accounts, and the requests under way."""

    def __init__(self, config: FleetConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self.loop = loop
        self.table = FleetTable(config.engines)
        self.table.set_depth(DEPTH_SHARE * config.slo.ttft_s)
        self.readiness = Readiness()
        path = config.profiles.path
        self.models, remarks = load_models(self.table.ids, config.model, Path(path) if path else None)
        for remark in remarks:
            log.warning("%s", remark)
        self.work = Work(self.table, self.models, monotonic())
        self.placement = Placement(self.table, self.models)
        self.door = Door(
            self.table,
            self.readiness,
            self.placement,
            self.work,
            retention_limit=config.serving.retention_limit,
            queue_capacity=config.serving.queue_capacity,
        )
        self.engines = engines_of(config)
        self.lifecycle = Lifecycle(
            self.table, config.recovery, monotonic(), self._engine_changed, lambda: self.door.held
        )
        self.monitor = Monitor(
            config.recovery,
            config.model,
            self.lifecycle,
            self.readiness,
            [Probe(engine, config.model) for engine in engines_of(config)],
            self._engine_restarted,
            lambda engine: max((exchange.last_output(engine) for exchange in self.exchanges), default=0.0),
        )
        serving = config.serving
        self.retries = RetryBudget(serving.retry_share, serving.retry_reserve)
        self.random = random.Random()
        self.input_lengths = InputLengths()
        self.output_lengths = OutputLengths()
        self._journal = Journal(config.serving.journal_path) if config.serving.journal_path else None
        self.accounts = Accounts(config, self._journal.write if self._journal else None)
        self.scraper = Scraper(
            config,
            self.accounts,
            self.table,
            self.door,
            self.readiness,
            self.input_lengths,
            self.models,
            self.placement,
            self._recovery_figures,
            self._journal,
        )
        self._loop_lag = LoopLag(self.accounts.loop_lag)
        self.started_at = time.time()
        self.exchanges: set[Exchange] = set()
        self._id_prefix = f"req-{os.urandom(5).hex()}-"
        self._ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()  # a request has begun to run, or ended
        self._sweep: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._leg_warnings = Repeats(log)

        self._drain_file = DrainFile(config.recovery.state_path) if config.recovery.state_path else None
        if self._drain_file is not None:
            self._drain_again(self._drain_file.load())

    def start(self) -> None:
        """Begin the housekeeping that goes on by the clock."""
        self._loop_lag.start(self.loop)
        self.monitor.start()
        self._sweep = self.loop.call_later(_SWEEP_S, self._housekeep)
        self._look = self.loop.call_later(_LOOK_S, self._look_at_the_line)

    async def close(self) -> None:
        """End what is left and close every connection to engines; no request is wanted any more."""
        self.interrupt_all(Ending("shutdown", "the router stopped before the answer was complete"))
        await self.settled()
        for timer in (self._sweep, self._look):
            if timer is not None:
                timer.cancel()
        self._loop_lag.stop()
        self._leg_warnings.flush()
        await self.monitor.close()
        await asyncio.gather(*(engine.pool.close() for engine in self.engines))
        if self._journal is not None:
            await self.loop.run_in_executor(None, self._journal.close)

    async def settled(self) -> None:
        """Wait until every request under way has ended."""
        while self.exchanges or self._tasks:
            if self._tasks:
                await asyncio.wait(self._tasks)
            else:
                self._changed.clear()
                await self._changed.wait()

    def interrupt_all(self, ending: Ending) -> None:
        """End every request under way."""
        for exchange in list(self.exchanges):
            exchange.interrupt(ending)

    # ---- the exchanges' calls

    def _new_id(self) -> str:
        """An ID no other request has: random per process, then counted."""
        return f"{self._id_prefix}{next(self._ids):x}"

    def track(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine for a request and keep it alive."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def arrived(self, exchange: Exchange, route: Route) -> Record:
        """A request came to a completion route."""
        self.exchanges.add(exchange)
        return self.accounts.arrive(self._new_id(), route, now=monotonic(), received_at=time.time())

    def ended(self, exchange: Exchange, ending: Ending | None, status: int | None) -> None:
        """A request has ended; without an ending it was served. `status` is what its client was sent."""
        self.exchanges.discard(exchange)
        self._changed.set()
        if ending is None:
            self.retries.served()
        elif ending.name == "sockets_exhausted":
            self._leg_warnings.warn(ending.name, f"request {exchange.record.request_id}: {ending.message}")
        self.accounts.settle(
            exchange.record,
            ending.name if ending else "served",
            now=monotonic(),
            status=status,
            error=ending.for_the_log if ending else None,
            details=ending.details if ending else None,
        )

    def leg_failed(self, failure: LegFailure, record: Record) -> None:
        """A leg of a request's last attempt failed on its engine."""
        message, engine = failure.ending.for_the_log, failure.engine
        attempt = f"attempt {len(record.attempts)} of {self.config.serving.max_attempts}"
        self._leg_warnings.warn(
            (engine, failure.phase, failure.ending.name), f"request {record.request_id}, {attempt}: {message}"
        )
        self.accounts.engines.leg_failed(engine, failure.phase, failure.ending.name)
        refused = failure.ending.name == "connect_failed"
        self.lifecycle.failed(engine, failure.evidence, message, monotonic(), refused=refused)
        if failure.evidence is not Evidence.CONNECTION:
            self.lifecycle.succeeded(engine, (Evidence.CONNECTION,))
        if failure.evidence in (Evidence.CONNECTION, Evidence.STREAM):
            self.monitor.suspect(engine)

    def leg_succeeded(self, engine: int) -> None:
        """A leg did on its engine what it was to do."""
        self.monitor.heard[engine] = monotonic()
        if engine in self.lifecycle.tainted:
            self.lifecycle.succeeded(engine, Evidence)

    def counted(self, engine: int, relay: Relay) -> None:
        """A decode leg's stream is over: its output counts for its engine."""
        figures = self.accounts.engines
        figures.tokens[engine] += relay.output_tokens()[0] - relay.carried
        figures.output_after_done[engine] += relay.dropped_after_done
        if (
            relay.done
            and relay.completion_tokens >= 0
            and relay.completion_tokens != relay.output_tokens()[0]
        ):
            figures.usage_disagreements[engine] += 1

    def expect_output(self, input_tokens: int, max_tokens: int | None) -> int:
        """How many tokens an answer is expected to have: about the mean, where few are long."""
        return round(self.output_lengths.expect(input_tokens, max_tokens, _MEAN_QUANTILE))

    def reopen_journal(self) -> None:
        """Go on in a new journal file, as after a rotation."""
        if self._journal is not None:
            self._journal.reopen()

    def eligible(self, phase: Phase, avoid: frozenset[int]) -> bool:
        """Whether there are engines for a leg besides those to avoid."""
        return bool(eligible(self.table, phase, avoid))

    def others_eligible(self, engine: int, avoid: frozenset[int]) -> bool:
        """Whether a leg that ran on `engine` could run on one that is not to be avoided."""
        return self.eligible(self.table.asked_for(engine), avoid)

    @property
    def without_token_ids(self) -> frozenset[int]:
        """The engines that don't say which tokens they write."""
        engines = enumerate(self.engines)
        return frozenset(index for index, engine in engines if not engine.dialect.supplies_token_ids)

    def any_engine(self, phase: Phase, avoid: frozenset[int] = frozenset()) -> Engine | None:
        """Some engine that serves a phase, and is not to be avoided."""
        engines = eligible(self.table, phase, avoid)
        return self.engines[engines[0]] if engines else None

    def _recovery_figures(self) -> RecoveryFigures:
        return RecoveryFigures.of(self.lifecycle, self.monitor.failures, self.retries)

    # ---- engines come and go

    def _engine_changed(self, change: Change) -> None:
        name = self.engines[change.engine].id
        if change.is_fault:
            log.warning("engine %s is %s: %s", name, change.after, change.why)
        elif change.after is EngineState.EJECTED:
            log.info("engine %s: %s", name, change.why)  # the state's name would sound like a fault
        else:
            log.info("engine %s is %s: %s", name, change.after, change.why)
        if self.lifecycle.all_drained:
            self.readiness.set(
                State.MAINTENANCE,
                "drain",
                "every engine is drained; readmit one (POST /narwhal/lifecycle/readmit)",
            )
        else:
            self.readiness.clear(State.MAINTENANCE, "drain")
        if change.before is EngineState.EJECTED and change.after not in DRAINS:
            self._back_from_drift(change.engine)
        self.door.look_again(monotonic())
        self.monitor.changed(change)

    def models_of_new(self, new: FleetConfig) -> dict[str, EngineModel]:
        """What is known of engines that are new to the router. Reads a file: call it on another thread."""
        path = new.profiles.path
        names = [engine.id for engine in new.engines if engine.id not in self.table.index]
        try:
            models, remarks = load_models(names, new.model, Path(path) if path else None)
        except ProfileError as error:
            log.warning("%s", error)
            return {}
        for remark in remarks:
            log.warning("%s", remark)
        return dict(zip(names, models.engines, strict=True))

    def reload(
        self, new: FleetConfig, source: str, models: Mapping[str, EngineModel] | None = None
    ) -> Changes:
        """Have the engines of a fleet file that was read again, and go by `models` for those that are new.

        With ConfigError, nothing has changed.
        """
        retired = {self.table.ids[engine] for engine, life in enumerate(self.lifecycle.lives) if life.retired}
        changes = compare(self.config, retired, new, source)
        now, index = monotonic(), self.table.index
        added = replace(self.config, engines=tuple(changes.added))
        engines = [changes.limited.get(engine.id, engine) for engine in self.config.engines]
        self.config = replace(self.config, engines=(*engines, *changes.added))
        self.scraper.fleet_is(self.config)
        for config, engine, probe in zip(changes.added, engines_of(added), engines_of(added), strict=True):
            self.models.add((models or {}).get(config.id) or EngineModel())
            self.table.add(config)
            self.work.add(now)
            self.engines.append(engine)
            self.accounts.engines.add()
            self.monitor.add(Probe(probe, new.model))
            self.lifecycle.add(now)
        for name, config in changes.limited.items():
            limits = (config.prefill_concurrency, config.decode_concurrency)
            self.lifecycle.set_limits(index[name], limits, now)
            self.table.set_kv_capacity(index[name], config.kv_capacity_tokens)
        self.lifecycle.retire([index[name] for name in changes.removed], now)
        self.lifecycle.readmit([index[name] for name in changes.returned], now)
        self.door.look_again(now)
        self.monitor.hurry()
        return changes

    def drain(self, engines: list[int], deadline_s: float | None, reason: str) -> None:
        """Give these engines nothing new; from `deadline_s` on they are safe to stop whatever runs."""
        now = monotonic()
        self.lifecycle.drain(engines, None if deadline_s is None else now + deadline_s, now, reason)

    def readmit(self, engines: list[int]) -> None:
        """Take drained engines back."""
        self.lifecycle.readmit(engines, monotonic())
        self.monitor.hurry()

    def save_drains(self) -> Callable[[], None]:
        """What writes the drains of now to their file, if there is one; call it on another thread."""
        if self._drain_file is None:
            return lambda: None
        ahead = time.time() - monotonic()
        drains = {
            self.table.ids[engine]: Drain(
                None if life.drain_until is None else life.drain_until + ahead, life.drain_reason
            )
            for engine, life in enumerate(self.lifecycle.lives)
            if life.state in DRAINS and not life.retired
        }
        return functools.partial(self._drain_file.save, self._drain_file.ticket(), drains)

    def _drain_again(self, drains: Drains) -> None:
        """Go on with the drains of before a restart."""
        for name, drain in drains.items():
            engine = self.table.index.get(name)
            if engine is None:
                log.warning("engine %s was drained, and is no engine of the fleet any more", name)
            else:
                until = None if drain.until is None else drain.until - time.time()
                self.drain([engine], until, drain.reason)

    def _engine_restarted(self, engine: int) -> None:
        """Another process answers for this engine: nothing listens to the old one's connections any more, and
        what was learned of it is void."""
        self.engines[engine].pool.drop_idle()
        self.models.restarted(engine)

    def judge_drift(self, now: float) -> None:
        """Act on it that engines have become slower than their peers, or are well again."""
        for phase, engine in self.models.tick(now):
            name, state = self.engines[engine].id, self.models.drift[phase].state(engine)
            if state is Drifted.WELL:
                log.info("engine %s is as fast as its peers again (%s)", name, Phase(phase).name.lower())
            else:
                why = f"it has become slower than its peers ({Phase(phase).name.lower()})"
                log.warning("engine %s is on probation: %s", name, why)
                if state is Drifted.TAKE_OUT:
                    self.lifecycle.slowed(engine, why, now)

    def _back_from_drift(self, engine: int) -> None:
        if any(drift.state(engine) is Drifted.TAKE_OUT for drift in self.models.drift):
            self.models.returned(engine)

    # ---- housekeeping

    def _housekeep(self) -> None:
        now = monotonic()
        late = self.accounts.engines.output_after_done
        for index, engine in enumerate(self.engines):
            engine.pool.sweep(now)
            late[index] += engine.pool.events_after_done
            engine.pool.events_after_done = 0
        self.judge_drift(now)
        self._leg_warnings.flush()
        self._sweep = self.loop.call_later(_SWEEP_S, self._housekeep)

    def _look_at_the_line(self) -> None:
        # Where nothing happens, time passes: who waits for an engine that hangs should be told in time.
        if self.door.waiting(Phase.PREFILL):
            self.door.look_again(monotonic())
        self._look = self.loop.call_later(_LOOK_S, self._look_at_the_line)
