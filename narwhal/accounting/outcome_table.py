"""The table of outcomes for people: in the terminal, and as the documentation's page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.box import SIMPLE_HEAD
from rich.table import Table

from narwhal.outcomes import OUTCOMES, Counter, Outcome, RetryAfter

_HEADINGS = (
    "condition", "reason", "outcome", "status", "`type`", "`code`", "`param`", "retry advice", "in a stream",
)  # fmt: skip

_RETRY = {
    RetryAfter.NEVER: "`x-should-retry: false`",
    RetryAfter.NONE: "",
    RetryAfter.ONE: "`Retry-After: 1`",
    RetryAfter.ONE_OR_NEVER: "`Retry-After: 1`; `x-should-retry: false` if the prompt alone never fits",
    RetryAfter.OVERRUN: "`Retry-After`: the projected overrun, rounded up",
}

_SHORT_RETRY = {
    RetryAfter.NEVER: "never",
    RetryAfter.NONE: "",
    RetryAfter.ONE: "1 s",
    RetryAfter.ONE_OR_NEVER: "1 s, never",
    RetryAfter.OVERRUN: "overrun",
}

_INTRODUCTION = """\
# How a request can end

Every request to a completion route ends in exactly one row of this table. Its `reason` and `outcome` are the
labels of `narwhal_requests_total` and are in the request's row of the journal.

A failure is answered with the status and the OpenAI envelope of its row as long as no output has been sent:
`{"error": {"message": ..., "type": ..., "param": ..., "code": ...}}`. After that the stream ends with one
event `data: {"error": {...}}` of `type` `decode` with the `code` in the last column, and without `[DONE]`.
Where that column is empty, nothing of the kind meets a stream with output; one that had comments only
(`serving.keepalive_s`) ends with `failed`.

This page is what `narwhal outcomes --markdown` prints.
"""


def markdown() -> str:
    """The page, ending in a newline."""
    lines = [_line(_HEADINGS), _line(["---"] * len(_HEADINGS))]
    lines += [_line(cell.replace("|", "\\|") for cell in row) for row in _rows()]
    return "\n".join([_INTRODUCTION, *lines, ""])


def terminal() -> Table:
    """The table for a rich console, by outcome: what fits 80 columns. The page has the rest."""
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for heading in ("reason", "status", "retry"):
        table.add_column(heading, no_wrap=True)
    table.add_column("condition", overflow="fold")
    for counter in Counter:
        table.add_section()
        table.add_row(f"[bold]{counter}[/bold]")
        for row in OUTCOMES.values():
            if row.counter is counter:
                when = row.when.replace("`", "")
                table.add_row(f"  {row.name}", _status(row), _SHORT_RETRY[row.retry_after], when)
    return table


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rows() -> Iterator[tuple[str, ...]]:
    for row in OUTCOMES.values():
        answered = row.type is not None
        yield (
            row.when,
            f"`{row.name}`",
            f"`{row.counter}`",
            _status(row),
            f"`{row.type}`" if answered else "",
            _code(row) if answered else "",
            row.param if answered else "",
            _RETRY[row.retry_after],
            f"`{row.terminal_code}`" if row.terminal_code else "",
        )


def _status(row: Outcome) -> str:
    if row.status is not None:
        return str(row.status)
    return "engine's" if row.type is not None else "none"


def _code(row: Outcome) -> str:
    if row.code is not None:
        return f"`{row.code}`"
    return "the engine's" if row.status is None else "null"
