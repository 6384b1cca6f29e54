"""Figures as people read them, for the terminal and for the report alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from narwhal.harness.sample import Outcome

PERCENTILES = ("p50", "p90", "p95", "p99", "p99.9", "max")
LATENCY_COLUMNS = ("count", *PERCENTILES, "±p50", "±p99")
REQUEST_COLUMNS = ("sent", "served", "good", "refused", "failed")
LATENCY_NAMES = {
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "gap_s": "gap",
    "e2e_s": "E2E",
    "queued_s": "queue",
}
RATE_NAMES = {
    "offered_per_s": "offered",
    "served_per_s": "served",
    "goodput_per_s": "goodput",
    "output_tokens_per_s": "output tokens",
}


class Row(NamedTuple):
    """One line of a table."""

    name: str
    cells: tuple[str, ...]


def milliseconds(seconds: float) -> str:
    """For a column of milliseconds."""
    return number(seconds * 1000)


def duration(seconds: float | None) -> str:
    """In the unit that suits it, to three digits."""
    if seconds is None:
        return "-"
    if seconds >= 100:
        return f"{seconds:.0f} s"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    if seconds >= 0.1:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def number(value: float) -> str:
    """To three digits, or all of them before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def share(part: int, whole: int) -> str:
    """A part in percent."""
    return f"{part / whole:.1%}" if whole else "-"


def half_width(figures: dict[str, Any], of: str) -> str:
    """Half the 95 % interval of one figure, in percent of it; empty with one round."""
    bounds = (figures["interval_95"] or {}).get(of)
    if bounds is None or not figures[of]:
        return ""
    half = (bounds[1] - bounds[0]) / 2 / figures[of]
    return f"{half:.0%}" if half < 1 else ">100%"


def latency_rows(point: dict[str, Any]) -> Iterator[Row]:
    """A point's latencies: how many samples, percentiles in milliseconds, half widths for p50 and p99."""
    for name, title in LATENCY_NAMES.items():
        figures = point["latency"][name]
        if figures is not None:
            cells = (milliseconds(figures[of]) for of in PERCENTILES)
            half_widths = (half_width(figures, of) for of in ("p50", "p99"))
            yield Row(title, (f"{figures['count']:,}", *cells, *half_widths))


def request_row(point: dict[str, Any]) -> tuple[str, ...]:
    """Sent, served, good, refused, failed."""
    requests = point["requests"]
    sent = requests["sent"]
    good = requests["good"]
    cells = [f"{sent:,}", f"{requests[Outcome.SERVED]:,}"]
    cells.append("-" if good is None else f"{good:,} ({share(good, sent)})")
    cells += [f"{requests[Outcome.REFUSED]:,}", f"{requests[Outcome.FAILED]:,}"]
    if requests[Outcome.UNFINISHED]:
        cells[-1] += f" (+{requests[Outcome.UNFINISHED]} unfinished)"
    return tuple(cells)


def rate_cells(point: dict[str, Any]) -> tuple[str, ...]:
    """The rates, with half the width of their intervals; "-" for one that is not known."""
    cells = []
    for name in RATE_NAMES:
        rate = point["rates"].get(name)
        if rate is None:
            cells.append("-")
            continue
        cell = number(rate["value"])
        if rate["interval_95"] is not None:
            cell += f" ±{number((rate['interval_95'][1] - rate['interval_95'][0]) / 2)}"
        cells.append(cell)
    return tuple(cells)


def targets_in_words(summary: dict[str, Any]) -> str:
    """TTFT at most so much, TPOT at most so much; empty without targets."""
    return ", ".join(
        f"{LATENCY_NAMES[name]} at most {duration(value)}"
        for name, value in summary["targets"].items()
        if value is not None
    )


def knee_in_words(summary: dict[str, Any]) -> str | None:
    """What the sweep found; None when there was none."""
    knee = summary["knee"]
    if knee is None:
        return None
    if knee["rate"] is None:
        return f"Knee: below the lowest rate; not even there was it so that {knee['criterion']}."
    beyond = " The highest rate measured is within it: the knee lies further up." if knee["beyond"] else ""
    return (
        f"Knee: {knee['rate']:g} requests per second, the highest rate at which {knee['criterion']}.{beyond}"
    )


def remarks(point: dict[str, Any]) -> Iterator[str]:
    """What else is to be said of a point, a line a piece."""
    tokens = point["tokens"]
    served = point["requests"][Outcome.SERVED]
    if served:
        of = ", ".join(f"{count:,} by {_FROM[source]}" for source, count in tokens["output_from"].items())
        into = ", ".join(f"{count:,} by {_FROM[source]}" for source, count in tokens["input_from"].items())
        line = f"Tokens: {tokens['input']:,} in ({into}), {tokens['output']:,} out ({of})"
        if point["latency"]["gap_s"] is not None and tokens["output"] > 1.05 * tokens["output_events"]:
            line += (
                f"; {tokens['output'] / tokens['output_events']:.2f} in an event, so gaps are between events"
            )
        yield line + "."
    for reason, count in point["refusals"].items():
        detail = point["refusal_details"].get(reason)
        yield f"Refused {count:,} times: {reason}" + (f" (“{detail}”)" if detail else "") + "."
    if point["retried"]:
        yield f"Retried after Retry-After: {point['retried']:,} times."
    for kind, count in point["failures"].items():
        detail = point["failure_details"].get(kind)
        yield f"Failed {count:,} times: {kind}" + (f" (“{detail}”)" if detail else "") + "."
    for oddity, count in point["oddities"].items():
        yield f"Odd, but served: {count:,} {ODDITIES[oddity]}."
    own = point["generator"]
    if own is not None and own["late_s"] is not None:
        late, lag = own["late_s"]["p99"], (own["loop_lag_s"] or {"p99": 0.0})["p99"]
        yield (
            f"The generator: {own['cpu_share']:.0%} of a core; at the 99th percentile it came "
            f"{duration(late)} late to a request and {duration(lag)} late to its sockets."
        )


_FROM = {
    "token_ids": "their IDs",
    "usage": "usage",
    "events": "counting events",
    "estimate": "the router's estimate",
    "plan": "what was asked for",
}
ODDITIES = {
    "no_done": "streams ended without [DONE]",
    "no_usage": "answers came without usage",
    "no_output": "answers had no output",
    "output_after_done": "streams went on after [DONE]",
}
