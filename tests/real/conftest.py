"""A fleet of real vLLM engines, brought up once for all these tests and taken down after the last."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator

import pytest

from tools.vllm_cpu.fleet import Engine, Fleet


def pytest_configure() -> None:
    """Take a request to end, such as that of timeout(1), for a Ctrl-C, which takes the engines down."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def fleet(pytestconfig: pytest.Config) -> Iterator[Fleet]:
    """One prefill and one decode engine. What a run that was killed left over is ended first."""
    terminal = pytestconfig.pluginmanager.getplugin("terminalreporter")
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            terminal.write_line(line)

    # A folder of this checkout's own: two checkouts don't end each other's engines.
    folder = pytestconfig.rootpath / "build" / "real-engines"
    with Fleet.up(folder, {"prefill": 1, "decode": 1}, say=say) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def producer(fleet: Fleet) -> Engine:
    """The engine that prefills."""
    return fleet.by_role("prefill")


@pytest.fixture(scope="session")
def consumer(fleet: Fleet) -> Engine:
    """The engine that decodes."""
    return fleet.by_role("decode")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what the engines logged last."""
    report = yield
    fleet = getattr(item, "funcargs", {}).get("fleet")
    if report.failed and isinstance(fleet, Fleet):
        for engine in fleet.engines:
            report.sections.append((f"the end of {engine.log}", engine.log_tail()))
    return report
