"""Writes the table of metrics into docs/observing.md, from what a router exports.

    .venv/bin/python tools/metrics_page.py

So the page has the names, labels and meanings that Prometheus is told; a test holds it to that.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it runs as a plain script too

from narwhal.accounting.metrics import families
from narwhal.config import parse
from narwhal.serving.server import Server

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "observing.md"
BEGIN, END = "<!-- the metrics -->\n", "<!-- end of the metrics -->\n"

# A fleet with every role, and a journal, so that no metric is missing.
FLEET = """\
model: m
slo: {{ttft_s: 1, tpot_s: 1}}
engines:
  - {{id: p, url: "http://p", role: prefill}}
  - {{id: d, url: "http://d", role: decode}}
  - {{id: b, url: "http://b", role: both}}
serving: {{journal_path: {folder}/journal.jsonl}}
"""
_SUFFIX = {"counter": "_total", "info": "_info"}


async def exported() -> list[Metric]:
    """The metrics of a router that has done nothing yet."""
    with tempfile.TemporaryDirectory() as folder:
        router = Server(parse(FLEET.format(folder=folder), "fleet.yaml")).attach()
        try:
            return families(router.scraper.take())
        finally:
            await router.close()


def table(metrics: Iterable[Metric]) -> str:
    """The metrics as a table in Markdown."""
    lines = ["| metric | type | labels | what it is |", "| --- | --- | --- | --- |"]
    for metric in metrics:
        name = metric.name + _SUFFIX.get(metric.type, "")
        labels = ", ".join(f"`{label}`" for label in _labels(metric))
        lines.append(f"| `{name}` | {metric.type} | {labels} | {metric.documentation} |")
    return "\n".join([*lines, ""])


def _labels(metric: Metric) -> list[str]:
    # A metric of which nothing has been counted yet has no samples, but knows its labels.
    names = metric.samples[0].labels if metric.samples else getattr(metric, "_labelnames", ())
    return [name for name in names if name != "le"]


def page(text: str, metrics: str) -> str:
    """The page with the table in its place. Raises ValueError if it has no such place."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no lines {BEGIN.strip()} and {END.strip()}")
    return before + begin + metrics + end + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), table(asyncio.run(exported()))))
