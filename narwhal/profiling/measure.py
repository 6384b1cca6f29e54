"""Measuring a fleet: prompts of growing length through both legs, then batches that decode together.

A producer and a decoder are measured as a pair, since a handoff must be taken by someone: one prompt after
another gives the time of the prefill leg, and of the decode leg to its first token. A batch's prompts are
prefilled first, then all its streams start at once; what counts is from the moment the last of them has
output to the moment the first is over, so that all run all the time. An engine of role `both` does the same
in one leg, and its time to the first token is its prefill time, as it will be in serving.
"""

from __future__ import annotations

import asyncio
import math
import os
import ssl
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from statistics import median_low
from typing import Protocol

from narwhal.config import EngineConfig, FleetConfig, Role
from narwhal.engines.dialects import DIALECTS
from narwhal.engines.engine import Engine
from narwhal.profiles.curves import DecodeCurve, HandoffCurve, PrefillCurve
from narwhal.profiles.fit import (
    FitError,
    TimedBatch,
    TimedLength,
    fit_decode,
    fit_handoff,
    fit_prefill,
)
from narwhal.profiles.store import EngineProfile, Measured
from narwhal.profiling.pages import Condition
from narwhal.profiling.probe import MeasurementError, Probe, Stream
from narwhal.profiling.sweep import LONGEST, Batch, Effort, batches, lengths

# Token IDs that any vocabulary has; the very first are often special.
_LOWEST_ID, _HIGHEST_ID = 3, 255
# Prompts that alone take this many times the TTFT target are longer than any that will be admitted.
_BEYOND_TARGET = 2.0
_LEAST_LENGTHS = 3
# Tokens that each stream of a batch must have yielded for its interval to be worth something.
_LEAST_TOKENS = 8


class Watcher(Protocol):
    """Is told how it goes."""

    def plan(self, units: float) -> None:
        """All there is to do, in units of work."""

    def begin(self, what: str) -> None:
        """What is measured now."""

    def advance(self, units: float) -> None:
        """So much is done."""

    def note(self, text: str) -> None:
        """Something a person should know."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """An engine that takes part, as found at the start."""

    probe: Probe
    condition: Condition
    longest: int  # prompt tokens
    context: int  # prompt and output


@dataclass(frozen=True, slots=True)
class _Job:
    """A pair to measure (or, without a producer, an engine that does all), and whose figures are wanted."""

    producer: str | None
    decoder: str
    producer_wanted: bool
    decoder_wanted: bool


async def measure(
    config: FleetConfig,
    effort: Effort,
    watcher: Watcher,
    done: Callable[[str, EngineProfile], None],
    only: Sequence[str] = (),
) -> None:
    """Measure the fleet's engines, or `only` some by ID; `done` gets each one's profile as it is made.

    Raises MeasurementError: an engine is busy, fails, or sends a token without its ID.
    """
    jobs = _jobs(config, watcher, only)
    wanted = {name for job in jobs for name in (job.producer, job.decoder) if name is not None}
    async with AsyncExitStack() as stack:
        subjects = {}
        for engine in config.engines:
            if engine.id in wanted:
                probe = Probe(config, _engine(config, engine))
                stack.push_async_callback(probe.close)
                subjects[engine.id] = await _look_at(probe)
        measurer = _Measurer(config, effort, watcher, subjects)
        watcher.plan(sum(measurer.units(job) for job in jobs))
        for job in jobs:
            for name, profile in (await measurer.run(job)).items():
                done(name, profile)


def _jobs(config: FleetConfig, watcher: Watcher, only: Sequence[str]) -> list[_Job]:
    """What is to be measured together."""
    known = [engine.id for engine in config.engines]
    by_role: dict[Role, list[str]] = {role: [] for role in Role}
    for engine in config.engines:
        if DIALECTS[engine.dialect].supplies_token_ids:
            by_role[engine.role].append(engine.id)
        elif engine.id in (only or known):
            watcher.note(
                f"engine {engine.id} is left out: dialect {engine.dialect} supplies no token IDs to count; "
                "the router learns its pace from traffic"
            )
    jobs = [_Job(None, name, False, True) for name in by_role[Role.BOTH] if name in (only or known)]
    producers = [name for name in by_role[Role.PREFILL] if name in (only or known)]
    decoders = [name for name in by_role[Role.DECODE] if name in (only or known)]
    for i in range(max(len(producers), len(decoders))):
        jobs.append(
            _Job(
                producers[i % len(producers)] if producers else by_role[Role.PREFILL][0],
                decoders[i % len(decoders)] if decoders else by_role[Role.DECODE][0],
                i < len(producers),
                i < len(decoders),
            )
        )
    return jobs


def _engine(config: FleetConfig, engine: EngineConfig) -> Engine:
    api_key = os.environ[config.engine.api_key_env] if config.engine.api_key_env else None
    tls = ssl.create_default_context(cafile=config.engine.ca_file) if engine.url.scheme == "https" else None
    return Engine(
        engine, config.engine, api_key=api_key, tls=tls, reply_limit=config.serving.max_response_bytes
    )


async def _look_at(probe: Probe) -> _Subject:
    condition = await probe.idle()
    context = await probe.max_model_len() or LONGEST
    # Room for a few tokens of output.
    longest = min(LONGEST, context - _LEAST_TOKENS, condition.kv_tokens or LONGEST)
    if longest < _LEAST_LENGTHS:
        raise MeasurementError(f"engine {probe.id}: a context of {context} tokens is too short to measure")
    return _Subject(probe, condition, longest, context)


class _Measurer:
    def __init__(
        self, config: FleetConfig, effort: Effort, watcher: Watcher, subjects: dict[str, _Subject]
    ) -> None:
        self._config = config
        self._effort = effort
        self._watcher = watcher
        self._subjects = subjects
        self._random = Random()

    # What there is to do.

    def units(self, job: _Job) -> float:
        """The work in a job: about its tokens."""
        total = sum(self._length_units(length) for length in self._lengths(job))
        if job.decoder_wanted:
            total += sum(self._batch_units(batch) for batch in self._batches(job))
        return total

    def _length_units(self, length: int) -> float:
        return self._effort.repeats * (length + 100.0)

    def _batch_units(self, batch: Batch) -> float:
        return batch.kv_tokens + 50.0 * self._effort.window_tokens

    def _of(self, job: _Job) -> list[_Subject]:
        return [self._subjects[name] for name in (job.producer, job.decoder) if name is not None]

    def _lengths(self, job: _Job) -> list[int]:
        return lengths(min(subject.longest for subject in self._of(job)), self._effort)

    def _batches(self, job: _Job) -> list[Batch]:
        subjects = self._of(job)
        rooms = [subject.condition.kv_tokens for subject in subjects if subject.condition.kv_tokens]
        return batches(
            self._subjects[job.decoder].probe.engine.config.decode_concurrency,
            min(subject.longest for subject in subjects),
            min(rooms, default=None),
            self._effort,
        )

    # Doing it.

    async def run(self, job: _Job) -> dict[str, EngineProfile]:
        """Measure a pair; the profiles that are wanted."""
        prefills, handoffs = await self._sweep(job)
        try:
            prefill = Measured(fit_prefill(prefills), tuple(prefills))
            handoff = Measured(fit_handoff(handoffs), tuple(handoffs)) if handoffs else None
            decode = None
            if job.decoder_wanted:
                timed = await self._time_batches(job, prefill.curve, handoffs or prefills)
                decode = Measured(fit_decode(timed), tuple(timed))
        except FitError as error:
            raise MeasurementError(f"engine {job.producer or job.decoder}: {error}") from None
        for subject in self._of(job):
            now = await subject.probe.idle()
            if now.process_start_time != subject.condition.process_start_time:
                raise MeasurementError(f"engine {subject.probe.id} was restarted while it was measured")
        profiles = {}
        if job.producer is None:
            profiles[job.decoder] = self._profile(job.decoder, prefill, decode, None)
        else:
            if job.producer_wanted:
                profiles[job.producer] = self._profile(job.producer, prefill, None, None)
            if job.decoder_wanted:
                profiles[job.decoder] = self._profile(job.decoder, None, decode, handoff)
        return profiles

    def _profile(
        self,
        name: str,
        prefill: Measured[PrefillCurve, TimedLength] | None,
        decode: Measured[DecodeCurve, TimedBatch] | None,
        handoff: Measured[HandoffCurve, TimedLength] | None,
    ) -> EngineProfile:
        subject = self._subjects[name]
        return EngineProfile(
            url=str(subject.probe.engine.config.url),
            model=self._config.model,
            measured_at=datetime.now(UTC),
            process_start_time=subject.condition.process_start_time,
            prefill=prefill,
            decode=decode,
            handoff=handoff,
        )

    async def _sweep(self, job: _Job) -> tuple[list[TimedLength], list[TimedLength]]:
        """Prompts of growing length: the times of prefill, and of handoffs where there are any."""
        who = f"{job.producer} and {job.decoder}" if job.producer else job.decoder
        todo = self._lengths(job)
        # Not counted: connections are opened, engines meet, kernels are compiled.
        await self._once(job, todo[len(todo) // 2])
        prefills: list[TimedLength] = []
        handoffs: list[TimedLength] = []
        limit = _BEYOND_TARGET * self._config.slo.ttft_s
        for i, length in enumerate(todo):
            self._watcher.begin(f"{who}: prompts of {length:,} tokens")
            timed = [await self._once(job, length) for _ in range(self._effort.repeats)]
            prefills.append(TimedLength(length, median_low(seconds for seconds, _ in timed)))
            if job.producer is not None:
                handoffs.append(TimedLength(length, median_low(seconds for _, seconds in timed)))
            self._watcher.advance(self._length_units(length))
            rest = todo[i + 1 :]
            if rest and len(prefills) >= _LEAST_LENGTHS and prefills[-1].seconds > limit:
                self._watcher.note(
                    f"engine {job.producer or job.decoder}: prompts of over {length:,} tokens were not "
                    f"measured, since they take more than twice the TTFT target ({limit:g} s)"
                )
                self._watcher.advance(sum(map(self._length_units, rest)))
                break
        return prefills, handoffs

    async def _once(self, job: _Job, length: int) -> tuple[float, float]:
        """One prompt: seconds of its prefill, and of its handoff (0 if there is none)."""
        decoder = self._subjects[job.decoder].probe
        prompt = self._prompt(length)
        if job.producer is None:
            seconds, handoff = 0.0, None
        else:
            seconds, handoff = await self._subjects[job.producer].probe.prefill(prompt)
        stream = decoder.stream(prompt, 2, handoff)
        try:
            await decoder.first_output([stream])
            await decoder.first_end([stream])
        finally:
            stream.abort()
        first = stream.first_after_s
        return (first, 0.0) if job.producer is None else (seconds, first)

    async def _time_batches(
        self, job: _Job, prefill: PrefillCurve, starts: Sequence[TimedLength]
    ) -> list[TimedBatch]:
        """Token intervals. `starts` are the times it takes a stream to begin, by prompt length."""
        timed: list[TimedBatch] = []
        most = math.inf  # streams that run together
        left_out = 0
        for batch in self._batches(job):
            self._watcher.begin(f"{job.decoder}: {batch.streams} x {batch.prompt_tokens:,} tokens")
            if batch.streams * prefill.price(batch.prompt_tokens) > self._effort.setup_s:
                left_out += 1
            elif batch.streams < most:
                start_s = next(
                    (point.seconds for point in starts if point.tokens >= batch.prompt_tokens),
                    starts[-1].seconds,
                )
                # Those that begin first must outlast the beginning of the others.
                fastest = min((point.seconds for point in timed), default=math.inf)
                extra = math.ceil(batch.streams * start_s / fastest) if batch.streams > 1 else 0
                point = await self._time_batch(job, batch, self._effort.window_tokens + extra)
                if point is not None:
                    timed.append(point)
                elif batch.streams > 1:
                    most = batch.streams
                    self._watcher.note(
                        f"engine {job.decoder}: {batch.streams} streams did not run all at once; larger "
                        "batches were not measured"
                    )
            self._watcher.advance(self._batch_units(batch))
        if left_out:
            self._watcher.note(
                f"engine {job.decoder}: {left_out} batches were not measured, since their prompts take more "
                f"than {self._effort.setup_s:g} s to prefill"
            )
        return timed

    async def _time_batch(self, job: _Job, batch: Batch, output_tokens: int) -> TimedBatch | None:
        """The token interval of a batch; None if its streams did not all run at once for long enough."""
        subject = self._subjects[job.decoder]
        decoder = subject.probe
        prompts = [self._prompt(batch.prompt_tokens) for _ in range(batch.streams)]
        handoffs: list[bytes | None] = [None] * batch.streams
        if job.producer is not None:
            handoffs = await self._handoffs(self._subjects[job.producer].probe, prompts)
        tokens = min(output_tokens, subject.context - batch.prompt_tokens)
        streams: list[Stream] = []
        try:
            for prompt, handoff in zip(prompts, handoffs, strict=True):
                streams.append(decoder.stream(prompt, tokens, handoff))
            await decoder.first_output(streams)
            begin = [stream.mark() for stream in streams]
            await decoder.first_end(streams)
            end = [stream.mark() for stream in streams]
        finally:
            for stream in streams:
                stream.abort()
        for other in self._of(job):
            await other.probe.idle()
        gained = [after.tokens - before.tokens for before, after in zip(begin, end, strict=True)]
        if min(gained) < _LEAST_TOKENS:
            return None
        seconds = sum(after.at - before.at for before, after in zip(begin, end, strict=True))
        held = sum(
            stream.prompt_tokens + (before.tokens + after.tokens) / 2
            for stream, before, after in zip(streams, begin, end, strict=True)
        )
        return TimedBatch(batch.streams, held, seconds / sum(gained))

    async def _handoffs(self, producer: Probe, prompts: list[list[int]]) -> list[bytes | None]:
        """Prefill some prompts, as many at once as the engine has seats."""
        seats = asyncio.Semaphore(producer.engine.config.prefill_concurrency)

        async def one(prompt: list[int]) -> bytes:
            async with seats:
                return (await producer.prefill(prompt))[1]

        return list(await asyncio.gather(*map(one, prompts)))

    def _prompt(self, length: int) -> list[int]:
        # Random, so that no prefix is in an engine's cache.
        return self._random.choices(range(_LOWEST_ID, _HIGHEST_ID + 1), k=length)
