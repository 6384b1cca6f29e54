"""The figures for Prometheus.

Nothing of prometheus_client is touched until somebody scrapes: then the figures of that instant become metric
families, once. Each name here is part of what users build dashboards and alerts on.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

import narwhal
from narwhal.accounting.histogram import Histogram
from narwhal.accounting.scrape import Scrape
from narwhal.accounting.token_accounting import of_dialect, of_fleet
from narwhal.admission.readiness import State
from narwhal.fleet.lifecycle import State as EngineState
from narwhal.fleet.table import Phase
from narwhal.outcomes import OUTCOMES

_OPENMETRICS = "application/openmetrics-text"


def render(scrape: Scrape, accept: str = "") -> tuple[bytes, str]:
    """The scrape as text, with its content type: OpenMetrics if the Accept header names it, else the plain
    format.

    Takes tens of milliseconds for a thousand engines; needs no loop, so call it on another thread.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(scrape))
    ProcessCollector(registry=registry)
    wanted = (part.partition(";")[0].strip().lower() for part in accept.split(","))
    if _OPENMETRICS in wanted:
        text: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
        return text, openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


def families(scrape: Scrape) -> list[Metric]:
    """The router's own metrics, without the process's."""
    return list(_Families(scrape).collect())


class _Families(Collector):
    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        yield from _requests(self._scrape)
        yield from _latencies(self._scrape)
        yield from _engines(self._scrape)
        yield from _recovery(self._scrape)
        yield from _router(self._scrape)


Labelled = Iterable[tuple[tuple[str, ...], float]]


def _counter(name: str, doc: str, labels: tuple[str, ...], rows: Labelled) -> Metric:
    family = CounterMetricFamily(f"narwhal_{name}", doc, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _gauge(name: str, doc: str, labels: tuple[str, ...], rows: Labelled) -> Metric:
    family = GaugeMetricFamily(f"narwhal_{name}", doc, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _histogram(
    name: str, doc: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], Histogram]]
) -> Metric:
    family = HistogramMetricFamily(f"narwhal_{name}", doc, labels=labels)
    for values, histogram in rows:
        family.add_metric(values, histogram.cumulative(), histogram.sum)
    return family


def _requests(scrape: Scrape) -> Iterator[Metric]:
    counters, serving = scrape.accounts.counters, scrape.config.serving
    yield _counter(
        "requests_offered", "Requests that reached a completion route.", (), [((), counters.offered)]
    )
    yield _counter(
        "requests_unsized",
        "Requests that ended before their input length was known.",
        (),
        [((), counters.unsized_offered)],
    )
    yield _counter(
        "requests",
        "Requests that ended, by outcome and by reason (the row of the table of outcomes).",
        ("outcome", "reason"),
        (((OUTCOMES[name].counter.value, name), count) for name, count in counters.endings.items()),
    )
    yield _counter(
        "requests_within_slo",
        "Requests served that met their TTFT and TPOT targets: the rate of these is goodput.",
        (),
        [((), counters.within_slo)],
    )
    yield _counter(
        "request_retries", "Attempts at requests beyond each one's first.", (), [((), counters.retries)]
    )
    yield _counter(
        "request_continuations",
        "Of these, attempts that went on with an answer whose engine had been lost.",
        (),
        [((), counters.continuations)],
    )
    yield _counter(
        "unserved_placements",
        "Legs that went to an engine though it misses their target, for want of a better one.",
        ("phase",),
        (((phase.name.lower(),), scrape.pace.unserved[phase]) for phase in Phase),
    )
    yield _gauge(
        "requests_in_flight", "Requests that have arrived and not ended.", (), [((), counters.in_flight)]
    )
    yield _gauge("requests_held", "Requests held over HTTP.", (), [((), scrape.held)])
    yield _gauge(
        "requests_held_limit",
        "serving.retention_limit: what may be held.",
        (),
        [((), serving.retention_limit)],
    )
    yield _gauge(
        "requests_waiting",
        "Requests that wait for a seat, by the phase it is for.",
        ("phase",),
        (((phase.name.lower(),), scrape.waiting[phase]) for phase in Phase),
    )
    yield _gauge(
        "requests_waiting_limit",
        "serving.queue_capacity: how many may wait for their first seat.",
        (),
        [((), serving.queue_capacity)],
    )


def _latencies(scrape: Scrape) -> Iterator[Metric]:
    accounts = scrape.accounts
    yield _histogram(
        "time_to_first_token_seconds",
        "From a request's arrival to its first output.",
        (),
        [((), accounts.ttft)],
    )
    yield _histogram(
        "time_per_output_token_seconds",
        "Mean time per output token after the first, one value for each request.",
        (),
        [((), accounts.tpot)],
    )
    yield _histogram(
        "request_duration_seconds",
        "From a request's arrival to its end, by outcome.",
        ("outcome",),
        (((counter.value,), histogram) for counter, histogram in accounts.duration.items()),
    )
    yield _histogram(
        "queue_wait_seconds",
        "Wait for a seat, by the phase it is for.",
        ("phase",),
        (((phase.name.lower(),), accounts.waits[phase]) for phase in Phase),
    )
    yield _gauge(
        "input_estimate_error_ratio",
        "How far estimates of input lengths were off of late, on average, as a share of the true count.",
        ("route", "script"),
        (((one.route, one.script), one.relative_error) for one in scrape.input_lengths),
    )
    yield _gauge(
        "wait_factor",
        "What forecast waits for prefill are multiplied by, as learned from those before.",
        (),
        [((), scrape.pace.wait_factor)],
    )
    yield _histogram("request_body_bytes", "Size of request bodies.", (), [((), accounts.body_bytes)])
    yield _histogram(
        "event_loop_lag_seconds",
        "How late the event loop ran a timer that was due; its resolution is 1 ms.",
        (),
        [((), accounts.loop_lag)],
    )


def _engines(scrape: Scrape) -> Iterator[Metric]:
    engines, counters = scrape.config.engines, scrape.accounts.engines
    ids = [engine.id for engine in engines]
    seats = [
        ((ids[engine], phase.name.lower()), engine, phase)
        for engine, phases in enumerate(scrape.phases)
        for phase in phases
    ]
    yield _gauge(
        "engine_seats_in_use",
        "Legs that have a seat.",
        ("engine", "phase"),
        ((labels, scrape.seats[phase][engine]) for labels, engine, phase in seats),
    )
    yield _gauge(
        "engine_seats_limit",
        "Seats there are.",
        ("engine", "phase"),
        ((labels, scrape.limits[phase][engine]) for labels, engine, phase in seats),
    )
    yield _gauge(
        "engine_available",
        "1 if the engine may be placed on.",
        ("engine",),
        (((name,), value) for name, value in zip(ids, scrape.available, strict=True)),
    )
    yield _counter(
        "engine_legs",
        "Legs started.",
        ("engine", "phase"),
        ((labels, counters.legs[phase][engine]) for labels, engine, phase in seats),
    )
    yield _counter(
        "engine_leg_failures",
        "Legs that failed, by the outcome this gives a request that has no attempt left.",
        ("engine", "phase", "reason"),
        (
            ((ids[engine], phase.name.lower(), reason), count)
            for (engine, phase, reason), count in sorted(counters.failures.items())
        ),
    )
    for name, doc, column in (
        ("engine_output_tokens", "Output tokens relayed.", counters.tokens),
        (
            "engine_usage_disagreements",
            "Answers whose usage.completion_tokens was not the number of tokens counted.",
            counters.usage_disagreements,
        ),
        (
            "engine_output_after_done",
            "Events with output that came after [DONE] and were ignored.",
            counters.output_after_done,
        ),
    ):
        yield _counter(
            name, doc, ("engine",), (((one,), value) for one, value in zip(ids, column, strict=True))
        )
    yield from _pace(scrape)
    info = InfoMetricFamily(
        "narwhal_engine",
        "What an engine is, and how its output tokens are counted.",
        labels=("engine", "role", "dialect", "token_accounting"),
    )
    for engine in engines:
        info.add_metric((engine.id, engine.role, engine.dialect, of_dialect(engine.dialect)), {})
    yield info


def _pace(scrape: Scrape) -> Iterator[Metric]:
    engines = scrape.config.engines
    paces = [(engine.id, pace) for engine, pace in zip(engines, scrape.pace.engines, strict=True)]
    drifts = [
        ((engine, phase.name.lower()), pace.drift[phase])
        for (engine, pace), phases in zip(paces, scrape.phases, strict=True)
        for phase in phases
    ]
    yield _histogram(
        "engine_ttft_of_projected_ratio",
        "The time to first token, as a multiple of what was projected, by the engine that prefilled.",
        ("engine",),
        (
            ((engine.id,), histogram)
            for engine, histogram in zip(engines, scrape.accounts.engines.ttft_ratio, strict=True)
        ),
    )
    for name, doc, figure in (
        ("correction", "What the curve is multiplied by, to be right of late.", "correction"),
        ("spread", "How far single pieces of work are from the corrected curve: a share.", "spread"),
        ("confidence", "How sure the router is of an engine's times: 0 to 1.", "confidence"),
    ):
        yield _gauge(
            f"engine_pace_{name}",
            doc,
            ("engine", "work"),
            (
                ((engine, kind), getattr(report, figure))
                for engine, pace in paces
                for kind, report in pace.work.items()
            ),
        )
    yield _gauge(
        "engine_drift_score",
        "How an engine has changed against its peers: 0 not at all, 0.69 twice as slow.",
        ("engine", "phase"),
        ((labels, drift.score) for labels, drift in drifts if drift.score is not None),
    )
    yield _gauge(
        "engine_on_probation",
        "1 if the engine's price is raised since it has become slower than its peers.",
        ("engine", "phase"),
        ((labels, drift.state != "well") for labels, drift in drifts),
    )
    yield _gauge(
        "engine_prefill_left_seconds",
        "What is left of the prefill work on an engine, as predicted.",
        ("engine",),
        (((engine,), pace.prefill_left_s) for engine, pace in paces),
    )
    yield _gauge(
        "engine_kv_tokens",
        "KV tokens that decode legs hold on an engine, as counted by the router.",
        ("engine",),
        (((engine,), pace.kv_tokens) for engine, pace in paces),
    )


def _recovery(scrape: Scrape) -> Iterator[Metric]:
    recovery = scrape.recovery
    lives = [(engine.id, life) for engine, life in zip(scrape.config.engines, recovery.lives, strict=True)]
    states = StateSetMetricFamily(
        "narwhal_engine_state",
        "Where an engine stands on its way out of the fleet and back.",
        labels=("engine",),
    )
    for name, life in lives:
        states.add_metric((name,), {one.value: one is life.state for one in EngineState})
    yield states
    yield _gauge(
        "engine_last_of_its_role",
        "1 if a doubtful engine is kept in service since its role would be empty without it.",
        ("engine",),
        (((name,), int(life.kept)) for name, life in lives),
    )
    yield _gauge(
        "engine_failures_in_a_row",
        "Failures since the last success, by class of evidence.",
        ("engine", "evidence"),
        (((name, cls), count) for name, life in lives for cls, count in life.failures_in_a_row.items()),
    )
    yield _gauge(
        "engine_handoffs_held",
        "KV caches that an engine holds for decode legs that have not begun to answer.",
        ("engine",),
        (((name,), life.handoffs) for name, life in lives),
    )
    for key, doc in (
        ("ejections", "Times an engine was ejected."),
        ("readmissions", "Times an ejected engine proved itself and came back."),
        ("restarts", "Times another process was found to answer for an engine."),
    ):
        yield _counter(
            f"engine_{key}", doc, ("engine",), (((name,), getattr(life, key)) for name, life in lives)
        )
    yield _gauge(
        "retry_budget", "Further attempts that may be made at once.", (), [((), recovery.retries_left)]
    )
    yield _counter(
        "retries_denied", "Attempts not made for want of budget.", (), [((), recovery.retries_denied)]
    )
    yield _counter(
        "monitor_stage_failures",
        "Failures of the router's own watch over engines, by its stage.",
        ("stage",),
        (((stage,), count) for stage, count in sorted(recovery.monitor_failures.items())),
    )


def _router(scrape: Scrape) -> Iterator[Metric]:
    state = StateSetMetricFamily("narwhal_state", "What the router is; it takes new requests when ready.")
    state.add_metric((), {one.value: one is scrape.state for one in State})
    yield state
    yield InfoMetricFamily(
        "narwhal_token_accounting",
        "How the fleet's output tokens are counted.",
        {"token_accounting": of_fleet(scrape.config.engines).value},
    )
    yield InfoMetricFamily(
        "narwhal_build",
        "The router's version and what it runs on.",
        {
            "version": narwhal.__version__,
            "python": platform.python_version(),
            "implementation": platform.python_implementation(),
        },
    )
    if scrape.journal is not None:
        journal = scrape.journal
        for name, doc, value in (
            ("journal_rows", "Rows written to the journal.", journal.written),
            ("journal_dropped_rows", "Rows lost because the journal could not be written.", journal.dropped),
            ("journal_errors", "Failed tries to open or write the journal.", journal.errors),
        ):
            yield _counter(name, doc, (), [((), value)])
        yield _gauge("journal_backlog", "Rows waiting to be written.", (), [((), journal.waiting)])
