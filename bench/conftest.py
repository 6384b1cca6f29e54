"""The table that `make bench` ends with: what each part handles in a second, beside Python and a copy."""

from __future__ import annotations

from typing import Any

_COLUMNS = {
    "ns_per_item": "ns an item",
    "megabytes_per_s": "MB/s",
    "times_as_fast_as_python": "× Python",
    "times_a_copy": "× a copy's time",
}


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    """pytest's call at the end of a session."""
    session = getattr(config, "_benchmarksession", None)
    rows = [one for one in (session.benchmarks if session else []) if _COLUMNS.keys() & one.extra_info]
    if not rows:
        return
    terminalreporter.section("throughput")
    terminalreporter.write_line(f"{'':36}" + "".join(f"{title:>17}" for title in _COLUMNS.values()))
    for one in rows:
        cells = "".join(f"{one.extra_info.get(key, ''):>17}" for key in _COLUMNS)
        terminalreporter.write_line(f"{one.name.removeprefix('test_'):36}{cells}")
