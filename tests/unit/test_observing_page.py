"""The page on observing tells of every metric and every field of the journal, and of no others."""

from __future__ import annotations

import asyncio
import re

from narwhal.accounting.record import Attempt, Record, row
from tools.metrics_page import PAGE, exported, page, table


def test_the_table_of_metrics_is_what_the_router_exports() -> None:
    text = PAGE.read_text()
    assert page(text, table(asyncio.run(exported()))) == text, "tools/metrics_page.py writes it anew"


def test_every_field_of_the_journal_is_explained() -> None:
    record = Record("r", "chat", 0.0, 0.0, 1.0, 1.0)
    record.attempts = [Attempt()]
    fields = row(record, "served", "served", 200, None)
    journal = PAGE.read_text().partition("## The journal")[2]
    explained = re.findall(r"^\| `([\w.]+)`", journal, re.MULTILINE)
    assert sorted(explained) == sorted([*fields, *(f"attempts.{name}" for name in fields["attempts"][0])])
