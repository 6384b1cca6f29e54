"""The demo's figures for people: tables, and in words what is to be seen in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from narwhal.config import FleetConfig
from narwhal.demo.figures import PERCENTS, Figures
from narwhal.demo.load import BURST_REQUESTS, RATE_PER_S, Part
from narwhal.harness.measures import percentile
from narwhal.harness.sample import Sample
from narwhal.outcomes import OUTCOMES


@dataclass(frozen=True, slots=True)
class Load:
    """A load that is over."""

    samples: list[Sample]
    by_part: dict[Part, Figures]
    all: Figures
    took_s: float  # from the first request's due time to the last answer


def _ms(values: list[float], percent: float) -> str:
    if not values:
        return "-"
    seconds = percentile(sorted(values), percent)
    return f"{seconds * 1000:.{1 if seconds < 0.1 else 0}f} ms"


def latencies(load: Load, config: FleetConfig) -> Table:
    """TTFT and TPOT of what was served, against the targets."""
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column("latency")
    for percent in PERCENTS:
        table.add_column(f"p{percent}", justify="right")
    table.add_column("target", justify="right")
    table.add_column("met by", justify="right")
    rows = [(f"TTFT, {part}", one.ttft_s, config.slo.ttft_s) for part, one in load.by_part.items()]
    rows += [("TTFT, all", load.all.ttft_s, config.slo.ttft_s)]
    rows += [("TPOT, all", load.all.tpot_s, config.slo.tpot_s)]
    for name, values, target in rows:
        good = sum(value <= target for value in values)
        table.add_row(
            name,
            *(_ms(values, percent) for percent in PERCENTS),
            f"{target * 1000:g} ms",
            f"{good / len(values):.0%}" if values else "-",
        )
    return table


def outcomes(load: Load) -> Table:
    """How the requests ended."""
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column("requests")
    for heading in ("sent", "served in time", "served late", "refused", "failed"):
        table.add_column(heading, justify="right")
    for name, one in [*load.by_part.items(), ("all", load.all)]:
        counts = (one.sent, one.in_time, one.late, one.refused.total(), one.failed.total())
        table.add_row(name, *map(str, counts))
    return table


def words(load: Load, config: FleetConfig, state: dict[str, Any]) -> Iterator[str]:
    """What the tables show, a paragraph a piece."""
    yield (
        f"Goodput: of {load.all.sent / load.took_s:.1f} requests per second, "
        f"{load.all.in_time / load.took_s:.1f} met both targets (slo.ttft_s {config.slo.ttft_s:g}, "
        f"slo.tpot_s {config.slo.tpot_s:g})."
    )
    waits = state["latency"]["queue_wait_s"]["prefill"]
    waited = waits["count"] - next(iter(waits["at_most"].values()))
    if waited:
        yield (
            f"The burst: {BURST_REQUESTS} requests at once on top of {RATE_PER_S:g} per second, more than "
            f"the prefill engines take. {waited} requests waited in line for a prefill seat, "
            f"{waits['sum'] / waited:.2f} s on average."
        )
    for reason, count in sorted(load.all.refused.items()):
        yield f"Refused: {count} with {reason}: {_why(reason)}. {_reply(load.samples, reason)}"
    if load.all.late:
        yield (
            f"Late: {load.all.late} were served, but past a target, so they are no goodput. A smaller "
            f"serving.queue_capacity ({config.serving.queue_capacity} here) would have refused them instead."
        )
    for what, count in sorted(load.all.failed.items()):
        yield f"Failed: {count}: {what}."


def _why(reason: str) -> str:
    row = OUTCOMES.get(reason.split()[-1])
    return "no outcome that the router knows" if row is None else row.when.replace("`", "")


def _reply(samples: list[Sample], reason: str) -> str:
    for sample in samples:
        if sample.reason == reason:
            after = "" if sample.retry_after_s is None else f", with Retry-After: {sample.retry_after_s}"
            return f"Their clients were told at once: “{sample.detail}”{after}."
    return ""


def disagreements(load: Load, first: Sample, state: dict[str, Any]) -> list[str]:
    """Where the router's books differ from what its clients saw, and where a seat is still taken."""
    requests, engines = state["requests"], state["engines"]
    pairs = {
        "requests offered": (requests["offered"], load.all.sent + 1),
        "requests served": (requests["served"], load.all.served + 1),
        "requests in flight": (requests["in_flight"], 0),
        "output tokens": (
            sum(engine["output_tokens"] for engine in engines), load.all.output_tokens + first.output_tokens,
        ),
        "seats in use": (
            sum(phase["seats_in_use"] for engine in engines for phase in engine["phases"].values()), 0,
        ),
    }  # fmt: skip
    return [
        f"{what}: the router has {ours}, its clients {theirs}"
        for what, (ours, theirs) in pairs.items()
        if ours != theirs
    ]


def books(state: dict[str, Any]) -> str:
    """The router's books in one sentence."""
    requests = state["requests"]
    parts = [
        f"{requests[name]} {name}"
        for name in ("served", "failed", "expired", "cancelled", "rejected", "refused", "invalid_requests")
        if requests[name]
    ]
    tokens = sum(engine["output_tokens"] for engine in state["engines"])
    return (
        f"The router's books agree: {requests['offered']} requests offered = {' + '.join(parts)}; "
        f"{tokens} tokens relayed, each by its ID; no seat in use."
    )
