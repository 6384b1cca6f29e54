"""The figures as JSON, for `/narwhal/state`: the same as the metrics, engine by engine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import narwhal
from narwhal.accounting.recovery import as_json
from narwhal.accounting.scrape import Scrape
from narwhal.accounting.token_accounting import of_dialect, of_fleet
from narwhal.fleet.table import Phase


def state(scrape: Scrape) -> dict[str, Any]:
    """The scrape as what JSON can say."""
    accounts, serving = scrape.accounts, scrape.config.serving
    counters = accounts.counters
    return {
        "version": narwhal.__version__,
        "model": scrape.config.model,
        "status": scrape.state.value,
        "reason": scrape.state_reason or None,
        "token_accounting": of_fleet(scrape.config.engines).value,
        "requests": {
            **counters.snapshot(),
            "within_slo": counters.within_slo,
            "retries": counters.retries,
            "continuations": counters.continuations,
            "by_reason": dict(counters.endings),
            "held": scrape.held,
            "held_limit": serving.retention_limit,
            "waiting": {phase.name.lower(): scrape.waiting[phase] for phase in Phase},
            "waiting_limit": serving.queue_capacity,
        },
        "slo": {
            "ttft_s": scrape.config.slo.ttft_s,
            "tpot_s": scrape.config.slo.tpot_s,
            # Of the requests that were let in and ran to an end, one way or the other.
            "attainment": _share(counters.within_slo, counters.admitted),
            "goodput_per_s": scrape.goodput,
        },
        "admission": {
            "mode": serving.admission.value,
            "margin": serving.admission_margin,
            "prompt_times_known": scrape.pace.known,
            "wait_factor": scrape.pace.wait_factor,
        },
        "unserved_placements": {phase.name.lower(): scrape.pace.unserved[phase] for phase in Phase},
        "latency": {
            "ttft_s": accounts.ttft.snapshot(),
            "tpot_s": accounts.tpot.snapshot(),
            "duration_s": {counter.value: one.snapshot() for counter, one in accounts.duration.items()},
            "queue_wait_s": {phase.name.lower(): accounts.waits[phase].snapshot() for phase in Phase},
            "event_loop_lag_s": accounts.loop_lag.snapshot(),
        },
        "request_body_bytes": accounts.body_bytes.snapshot(),
        "input_lengths": [one._asdict() for one in scrape.input_lengths],
        "engines": _engines(scrape),
        "retry_budget": {
            "left": round(scrape.recovery.retries_left, 3),
            "denied": scrape.recovery.retries_denied,
        },
        "monitor_failures": scrape.recovery.monitor_failures,
        "journal": None if scrape.journal is None else asdict(scrape.journal),
    }


def _engines(scrape: Scrape) -> list[dict[str, Any]]:
    failures: dict[tuple[int, Phase], dict[str, int]] = {}
    for (index, phase, reason), count in scrape.accounts.engines.failures.items():
        failures.setdefault((index, phase), {})[reason] = count
    return [_engine(scrape, index, failures) for index in range(len(scrape.config.engines))]


def _engine(scrape: Scrape, index: int, failures: dict[tuple[int, Phase], dict[str, int]]) -> dict[str, Any]:
    engine, counters = scrape.config.engines[index], scrape.accounts.engines
    pace = scrape.pace.engines[index]
    return {
        "id": engine.id,
        "url": str(engine.url),
        "role": engine.role.value,
        "dialect": engine.dialect.value,
        "token_accounting": of_dialect(engine.dialect).value,
        "available": bool(scrape.available[index]),
        "lifecycle": as_json(scrape.recovery.lives[index], scrape.now),
        "output_tokens": counters.tokens[index],
        "usage_disagreements": counters.usage_disagreements[index],
        "output_after_done": counters.output_after_done[index],
        "prefill_left_s": pace.prefill_left_s,
        "kv_tokens": pace.kv_tokens,
        "kv_capacity_tokens": engine.kv_capacity_tokens,
        "pace": {name: report._asdict() for name, report in pace.work.items()},
        "ttft_of_projected": counters.ttft_ratio[index].snapshot(),
        "phases": {
            phase.name.lower(): {
                "seats_in_use": scrape.seats[phase][index],
                "seats_limit": scrape.limits[phase][index],
                "legs": counters.legs[phase][index],
                "failures": failures.get((index, phase), {}),
                "drift": pace.drift[phase]._asdict(),
            }
            for phase in scrape.phases[index]
        },
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
