"""`narwhal profile` on simulated engines, whose curves are known.

The engines run in a thread with a loop of its own, since the command runs its own loop until it is done.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from narwhal import cli
from narwhal.profiles import store
from narwhal.profiles.store import EngineProfile
from narwhal.profiling import plot
from narwhal.sim import SimFleet, SimOptions
from narwhal.sim.faults import Fault, FaultName
from narwhal.sim.timing import FAST, Curve, Interval, Timing

# Long enough that a busy machine's delays are a small part of it.
TIMING = Timing(prefill=Curve(2e-7, 1e-4, 0.02), interval=Interval(0.01, 0.002, 4e-6))


class Engines:
    """A simulated fleet, to be used from another thread than its own."""

    def __init__(self, fleet: SimFleet, loop: asyncio.AbstractEventLoop) -> None:
        self.fleet = fleet
        self._loop = loop

    def do(self, action: Callable[[], Any]) -> Any:
        """Run something in the engines' thread; what it returned."""

        async def run() -> Any:
            return action()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def fault(self, engine: str, fault: Fault) -> None:
        self.do(lambda: self.fleet[engine].faults.set(fault))


@contextmanager
def engines(options: SimOptions, **counts: int) -> Iterator[Engines]:
    started: list[Engines] = []
    ready = threading.Event()
    stop: list[Callable[[], object]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        told = asyncio.Event()
        async with SimFleet(options=options, **counts) as fleet:
            started.append(Engines(fleet, loop))
            stop.append(partial(loop.call_soon_threadsafe, told.set))
            ready.set()
            await told.wait()

    thread = threading.Thread(target=uvloop.run, args=(run(),))
    thread.start()
    try:
        assert ready.wait(10)
        yield started[0]
    finally:
        for call in stop:
            call()
        thread.join(10)


def fleet_file(folder: Path, fleet: SimFleet, **sections: Any) -> Path:
    path = folder / "fleet.yaml"
    path.write_text(fleet.yaml(**{"serving": {"decode_concurrency": 4}, **sections}))
    return path


FAST_OPTIONS = SimOptions(timing=FAST, max_model_len=200)


def profile(path: Path, *more: str) -> int:
    return cli.main(["profile", "--fleet", str(path), "--quick", *more])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, EngineProfile], Engines]]:
    """A fleet's profiles, measured once."""
    folder = tmp_path_factory.mktemp("measured")
    with engines(SimOptions(timing=TIMING, max_model_len=520), prefill=1, decode=1) as running:
        path = fleet_file(folder, running.fleet, profiles={"path": "profiles.json"})
        assert profile(path) == 0
        yield store.read(folder / "profiles.json"), running


def test_no_measured_curve_is_below_the_engines_own(
    measured: tuple[dict[str, EngineProfile], Engines],
) -> None:
    profiles, _ = measured
    prefill, decode = profiles["p0"].prefill, profiles["d0"].decode
    handoff = profiles["d0"].handoff
    assert prefill is not None
    assert decode is not None
    assert handoff is not None
    # Whatever else the machine does adds to what is measured, and nothing takes from it.
    for tokens in (32, 128, 500):
        assert prefill.curve.price(tokens) > 0.8 * TIMING.prefill_s([tokens])
    for running, kv_tokens in ((1, 100), (4, 300), (4, 1000)):
        assert decode.curve.price(running, kv_tokens) > 0.8 * TIMING.interval_s(running, kv_tokens)
    assert handoff.curve.price(64) > 0.7 * TIMING.interval_s(1, 64)
    assert prefill.curve.error is not None
    assert (prefill.curve.lo, prefill.curve.hi) == (32, 512)
    assert decode.curve.running_hi == 4


def test_each_engine_is_measured_in_the_phase_it_serves(
    measured: tuple[dict[str, EngineProfile], Engines],
) -> None:
    profiles, _ = measured
    assert (profiles["p0"].decode, profiles["p0"].handoff) == (None, None)
    assert profiles["d0"].prefill is None


def test_a_profile_says_on_which_process_it_was_measured(
    measured: tuple[dict[str, EngineProfile], Engines],
) -> None:
    profiles, running = measured
    for name, found in profiles.items():
        engine = running.fleet[name]
        assert (found.url, found.model) == (engine.url, engine.options.model)
        assert found.process_start_time == pytest.approx(found.measured_at.timestamp(), abs=120)


def test_every_handoff_is_taken_and_nothing_is_left_running(
    measured: tuple[dict[str, EngineProfile], Engines],
) -> None:
    _, running = measured
    assert running.do(lambda: running.fleet.active) == 0
    assert running.do(lambda: running.fleet["p0"].stats.handoffs_held) == 0


def test_a_whole_engine_is_measured_and_the_fits_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with engines(FAST_OPTIONS, both=1) as running:
        assert profile(fleet_file(tmp_path, running.fleet), "--out", str(tmp_path / "out.json")) == 0
    found = store.read(tmp_path / "out.json")["b0"]
    assert found.prefill is not None
    assert found.decode is not None
    assert found.handoff is None
    printed = capsys.readouterr().out
    assert "prefill" in printed
    assert "interval" in printed
    assert f"profiles: {{path: {tmp_path / 'out.json'}}}" in printed


def test_only_measures_one_engine_and_keeps_what_the_file_has_of_others(tmp_path: Path) -> None:
    with engines(FAST_OPTIONS, prefill=2, decode=1) as running:
        path = fleet_file(tmp_path, running.fleet, profiles={"path": "profiles.json"})
        assert profile(path, "--only", "p0") == 0
        before = store.read(tmp_path / "profiles.json")
        assert set(before) == {"p0"}
        assert profile(path, "--only", "p1") == 0
        assert running.do(lambda: running.fleet["p0"].stats["prefill"].started) < 20
    after = store.read(tmp_path / "profiles.json")
    assert set(after) == {"p0", "p1"}
    assert after["p0"] == before["p0"]


def refused(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    running: Engines,
    *more: str,
    status: int = 1,
    **sections: Any,
) -> str:
    """The message of a measurement that fails; nothing must be left of it."""
    path = fleet_file(tmp_path, running.fleet, **sections)
    out = tmp_path / "refused.json"
    assert profile(path, "--out", str(out), *more) == status
    assert not out.exists()
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return message


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (FaultName.IDS_MISSING, "event 2 with output carries no `token_ids` list"),
        (FaultName.IDS_NEGATIVE, "event 2 with output: `token_ids` holds"),
    ],
)
def test_a_bad_token_id_list_fails_the_measurement_and_names_engine_and_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: FaultName, what: str
) -> None:
    with engines(FAST_OPTIONS, prefill=1, decode=1) as running:
        running.fault("d0", Fault(fault, after=1))
        message = refused(capsys, tmp_path, running)
    assert "engine d0 (decode leg)" in message
    assert what in message


@pytest.mark.parametrize(
    ("engine", "fault", "what"),
    [
        ("p0", Fault(FaultName.BAD_STATUS, status=503), "engine p0 (prefill leg) answered 503"),
        ("p0", Fault(FaultName.NO_HANDOFF), "engine p0 (prefill leg): its kv_transfer_params is null"),
        ("d0", Fault(FaultName.BAD_STATUS, status=400), "engine d0 (decode leg)"),
        ("d0", Fault(FaultName.ERROR_IN_STREAM), "engine d0 (decode leg) sent an error in its stream"),
        ("d0", Fault(FaultName.DIE_AFTER, after=1), "engine d0 (decode leg)"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_an_engine_that_fails_ends_the_measurement_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str, fault: Fault, what: str
) -> None:
    with engines(FAST_OPTIONS, prefill=1, decode=1) as running:
        running.fault(engine, fault)
        assert what in refused(capsys, tmp_path, running)


def test_a_busy_engine_is_not_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("narwhal.profiling.probe._SETTLE_S", 0.2)
    slow = SimOptions(timing=Timing(prefill=Curve(), interval=Interval(base=0.01)), max_model_len=100_000)
    with engines(slow, both=1) as running:
        engine = running.fleet["b0"]
        connection = http.client.HTTPConnection(engine.host, engine.port)
        body = {"model": engine.options.model, "prompt": [1, 2], "max_tokens": 90_000, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        reply = connection.getresponse()
        assert reply.read(1)
        message = refused(capsys, tmp_path, running)
        reply.close()
        connection.close()
    assert "engine b0 is busy (requests running: 1, waiting: 0)" in message


def test_an_engine_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with engines(FAST_OPTIONS, both=1) as running:
        running.fault("b0", Fault(FaultName.REFUSE))
        assert "engine b0 (/metrics) can't be reached" in refused(capsys, tmp_path, running)


def test_what_is_asked_wrongly_is_said_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with engines(FAST_OPTIONS, both=1) as running:
        message = refused(capsys, tmp_path, running, "--only", "x", status=2)
        assert "--only x: the fleet has no such engine; it has b0" in message
        assert "serves sim-model, not other" in refused(capsys, tmp_path, running, model="other")
        monkeypatch.setattr(plot, "is_possible", lambda: False)
        message = refused(capsys, tmp_path, running, "--plot", "curves.png", status=2)
        assert '--plot needs matplotlib: pip install "narwhal[plot]"' in message
        path = fleet_file(tmp_path, running.fleet)
        assert profile(path, "--out", str(tmp_path / "none" / "profiles.json")) == 1
        assert "is no folder that can be written to" in capsys.readouterr().err
        (tmp_path / "bad.json").write_text("{}")
        assert profile(path, "--out", str(tmp_path / "bad.json")) == 1
        assert "bad.json is no profile file that can be used" in capsys.readouterr().err
        assert running.do(lambda: running.fleet["b0"].stats["whole"].started) == 0
