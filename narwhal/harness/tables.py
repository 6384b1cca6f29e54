"""The closing tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from narwhal.harness.figures import (
    LATENCY_COLUMNS,
    RATE_NAMES,
    REQUEST_COLUMNS,
    knee_in_words,
    latency_rows,
    rate_cells,
    remarks,
    request_row,
    targets_in_words,
)

if TYPE_CHECKING:
    from rich.console import RenderableType


def closing(summary: dict[str, Any]) -> Iterator[RenderableType]:
    """What a run came to."""
    points = summary["points"]
    if not points:
        yield Text("Nothing was measured.")
        return
    for point in points:
        table = _table("ms", *LATENCY_COLUMNS, title=point["label"])
        for row in latency_rows(point):
            table.add_row(row.name, *row.cells)
        yield table
    targets = targets_in_words(summary)
    for first, columns, cells in (
        ("requests", REQUEST_COLUMNS, request_row),
        ("per second", tuple(RATE_NAMES.values()), rate_cells),
    ):
        table = _table(first, *columns)
        for point in points:
            table.add_row(point["label"], *cells(point))
        yield table
    yield Text(
        f"Good: {targets}." if targets else "No targets were given (--slo-ttft, --slo-tpot): no goodput."
    )
    knee = knee_in_words(summary)
    if knee is not None:
        yield Text(knee, style="bold")
    for point in points:
        lines = list(remarks(point))
        head = [f"At {point['label']}:"] if len(points) > 1 else []
        yield Text("\n".join(head + lines))
    for warning in summary["warnings"]:
        yield Text(f"Warning: {warning}", style="yellow")


def _table(first: str, *columns: str, title: str | None = None) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, title=title, title_justify="left", title_style="bold")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table
