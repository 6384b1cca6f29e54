"""What was found at the engines, for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from rich.box import SIMPLE_HEAD
from rich.table import Table

from narwhal.checking.visit import Visit, compare
from narwhal.config import FleetConfig, Role


def table(visits: list[Visit]) -> Table:
    """A row for each engine."""
    rows = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading in ("engine", "role", "address", "state", "version", "context", "up"):
        rows.add_column(heading, overflow="fold", justify="right" if heading in ("context", "up") else "left")
    for visit in visits:
        rows.add_row(
            visit.engine.id,
            visit.engine.role,
            str(visit.engine.url),
            "usable" if visit.usable else "unusable" if visit.reached else "unreached",
            visit.version or "",
            str(visit.model.max_model_len or "") if visit.model else "",
            "" if visit.started_at is None else _span(time.time() - visit.started_at),
        )
    return rows


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def findings(visits: list[Visit]) -> Iterator[str]:
    """What is to be said of each, a paragraph a piece."""
    for visit in visits:
        for kind, texts in (("", visit.problems), ("by the way, ", visit.remarks)):
            yield from (f"{visit.engine.id}: {kind}{_sentence(text)}" for text in texts)
    yield from sentences(compare(visits))


def sentences(texts: Iterable[str]) -> Iterator[str]:
    """Each as a paragraph."""
    return map(_sentence, texts)


def _sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


def unknown(config: FleetConfig) -> str | None:
    """What no page tells."""
    if any(engine.role is not Role.BOTH for engine in config.engines):
        return (
            "Not checked: whether the engines hand KV caches over to each other (vLLM's "
            "--kv-transfer-config). Only a request shows that."
        )
    return None
