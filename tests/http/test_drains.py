"""Operators take engines out of service, watch them become safe to stop, and take them back."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from narwhal._fast.loop import run as run_in_loop
from narwhal.fleet.lifecycle import State
from narwhal.sim import SimFleet
from tests.http import commands
from tests.http.support import CHAT, Answer, Routed, body_for, eventually, message, on_router, routed
from tests.http.test_recovery import available, served_by

DRAIN, READMIT, SHOW = "/narwhal/lifecycle/drain", "/narwhal/lifecycle/readmit", "/narwhal/lifecycle"
PAIRS: dict[str, Any] = {"prefill": 2, "decode": 2}
LONG = {"fault": {"name": "stall", "after": 2, "leg": "decode"}}


def by_id(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    return {engine["id"]: engine for engine in answer.json()["engines"]}


async def look(where: Routed, engine: str) -> dict[str, Any]:
    engines = by_id(await where.ask(SHOW, method="GET"))
    found: dict[str, Any] = engines[engine]
    return found


def test_a_draining_engine_gets_nothing_new_and_finishes_what_runs() -> None:
    async def test(where: Routed) -> None:
        client = await where.connect()
        client.writer.write(message("POST", CHAT, body_for(CHAT, stream=True, sim=LONG)))
        await eventually(lambda: where.seats == (0, 1))
        drained = by_id(await where.ask(DRAIN, {"engines": ["d0"], "reason": "a new driver"}))
        assert drained["d0"] | {"for_s": 0} == {
            "id": "d0", "role": "decode", "state": "draining", "for_s": 0, "reason": "a new driver",
            "available": False, "running": 1, "safe_to_stop": False, "drain_reason": "a new driver",
            "deadline_in_s": None,
        }  # fmt: skip
        assert await served_by(where) == ("p0", "d1")
        assert not (await look(where, "d0"))["safe_to_stop"]
        await client.close()
        await eventually(lambda: where.seats == (0, 0))
        d0 = await look(where, "d0")
        assert (d0["state"], d0["safe_to_stop"], d0["running"]) == ("drained", True, 0)
        assert available(where) == ["p0", "p1", "d1"]

        back = by_id(await where.ask(READMIT, {"engines": ["d0"]}))
        assert back["d0"]["state"] == "ejected"
        await eventually(lambda: "d0" in available(where))
        assert await served_by(where) == ("p0", "d0")

    on_router(test, **PAIRS, recovery={"readmit_ramp_s": 0.01})


def test_an_engine_whose_kv_cache_is_still_to_be_fetched_is_not_safe_to_stop() -> None:
    async def test(where: Routed) -> None:
        client = await where.connect()
        hang = {"fault": {"name": "hang", "leg": "decode"}}
        client.writer.write(message("POST", CHAT, body_for(CHAT, sim=hang)))
        await eventually(lambda: where.seats == (0, 1))
        p0 = by_id(await where.ask(DRAIN, {"engines": ["p0"]}))["p0"]
        assert (p0["running"], p0["safe_to_stop"]) == (1, False)
        await client.close()
        await eventually(lambda: where.seats == (0, 0))
        assert (await look(where, "p0"))["safe_to_stop"]

    on_router(test, **PAIRS)


def test_at_its_deadline_an_engine_is_safe_to_stop_whatever_runs() -> None:
    async def test(where: Routed) -> None:
        client = await where.connect()
        client.writer.write(message("POST", CHAT, body_for(CHAT, stream=True, sim=LONG)))
        await eventually(lambda: where.seats == (0, 1))
        d0 = by_id(await where.ask(DRAIN, {"engines": ["d0"], "deadline_s": 0.05}))["d0"]
        assert (d0["state"], d0["safe_to_stop"]) == ("draining", False)
        while not (d0 := await look(where, "d0"))["safe_to_stop"]:
            pass
        assert d0["running"] == 1
        assert "its deadline passed with 1 legs running" in d0["reason"]
        await client.close()

    on_router(test, **PAIRS)


def test_all_engines_at_once_is_maintenance_and_what_is_held_is_served_to_the_end() -> None:
    async def test(where: Routed) -> None:
        client = await where.connect()
        slow = {"fault": {"name": "slow_first_token", "seconds": 0.3, "leg": "prefill"}}
        client.writer.write(message("POST", CHAT, body_for(CHAT, stream=True, sim=slow)))
        await eventually(lambda: where.seats == (1, 0))
        engines = by_id(await where.ask(DRAIN, {"engines": ["p0", "p1", "d0", "d1"]}))
        assert {engine["state"] for engine in engines.values()} == {"draining"}
        ready = await where.ask("/ready", method="GET")
        assert (ready.status, ready.json()["status"]) == (503, "maintenance")
        assert "drained" in ready.json()["reason"]
        refused = await where.ask(CHAT, body_for(CHAT))
        assert (refused.status, refused.json()["error"]["code"]) == (503, "maintenance")
        # It has yet to find an engine for its decode leg.
        assert (await client.read()).ended == "whole"
        engines = by_id(await where.ask(SHOW, method="GET"))
        assert all(engine["safe_to_stop"] for engine in engines.values())
        await where.ask(READMIT, {"engines": ["p1", "d1"]})
        await eventually(lambda: available(where) == ["p1", "d1"])
        assert (await where.ask("/ready", method="GET")).status == 200

    on_router(test, **PAIRS)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "`engines` must be a list of at least one engine's ID; got nothing"),
        ({"engines": []}, "got []"),
        ({"engines": "p0"}, 'got "p0"'),
        ({"engines": [0]}, "got [0]"),
        ({"engines": ["p0", "x9"]}, "`engines[1]` must be an engine of the fleet file (p0, d0); got x9"),
        ({"engines": ["p0"], "deadline_s": -1}, "`deadline_s` must be a number of seconds from 0 to 604800"),
        ({"engines": ["p0"], "deadline_s": True}, "`deadline_s` must be"),
        ({"engines": ["p0"], "reason": ""}, "`reason` must be"),
        ({"engines": ["p0"], "deadline": 5}, "there is no field `deadline`"),
        ([], "must be a JSON object"),
    ],
)
def test_a_wrong_drain_says_what_is_allowed_and_changes_nothing(body: Any, says: str) -> None:
    async def test(where: Routed) -> None:
        answer = await where.ask(DRAIN, body)
        assert answer.status == 400
        assert says in answer.json()["error"]["message"]
        assert available(where) == ["p0", "d0"]

    on_router(test)


def test_drains_survive_a_restart_of_the_router(tmp_path: Path) -> None:
    async def run() -> None:
        recovery = {"state_path": str(tmp_path / "state.json")}
        async with SimFleet(**PAIRS) as fleet:
            async with routed(fleet=fleet, recovery=recovery) as where:
                await where.ask(DRAIN, {"engines": ["p0", "d1"], "deadline_s": 900, "reason": "a new driver"})
                await where.ask(READMIT, {"engines": ["d1"]})
            async with routed(fleet=fleet, recovery=recovery) as where:
                assert available(where) == ["p1", "d0", "d1"]
                p0 = await look(where, "p0")
                assert (p0["state"], p0["drain_reason"]) == ("drained", "a new driver")
                assert 880 < p0["deadline_in_s"] <= 900
                await where.ask(READMIT, {"engines": ["p0"]})
                await eventually(lambda: "p0" in available(where))
            async with routed(fleet=fleet, recovery=recovery) as where:
                assert available(where) == ["p0", "p1", "d0", "d1"]

    run_in_loop(run())
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_a_state_file_that_is_no_such_file_stops_the_start_and_says_what_to_do(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text('{"drains": 5}')
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "model: m\nslo: {ttft_s: 1, tpot_s: 1}\n"
        'engines:\n  - {id: b, url: "http://127.0.0.1:1", role: both}\n'
        "recovery: {state_path: state.json}\nserving: {port: 0}\n"
    )
    ended = commands.run("serve", "--fleet", str(fleet))
    assert ended.returncode == 2
    assert "recovery.state_path" in ended.stderr
    assert "move it away" in ended.stderr
    assert "Traceback" not in ended.stderr


async def command(where: Routed, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a command against the router."""
    return await where.router.loop.run_in_executor(None, lambda: commands.run(*args, "--url", where.url))


def test_the_commands_drain_show_and_readmit() -> None:
    async def test(where: Routed) -> None:
        async def run(*args: str) -> str:
            ended = await command(where, *args)
            assert ended.returncode == 0, ended.stderr
            return ended.stdout

        shown = await run("drain", "d0", "--reason", "a new driver", "--deadline", "60", "--wait")
        assert [line.split()[:3] for line in shown.splitlines() if line.startswith("d0")] == [
            ["d0", "decode", "drained"]
        ]
        assert "a new driver" in shown
        assert "yes" in shown
        assert where.router.lifecycle.lives[2].state is State.DRAINED
        await run("readmit", "--all")
        await eventually(lambda: "d0" in available(where))
        assert "The router is ready." in await run("engines")
        wrong = commands.run("drain", "d0", "--url", "http://127.0.0.1:1")
        assert wrong.returncode == 1
        assert "no answer from http://127.0.0.1:1" in wrong.stderr

    on_router(test, **PAIRS)


def test_draining_the_last_of_a_role_says_at_once_who_serves_instead() -> None:
    async def test(where: Routed) -> None:
        assert (await where.ask(DRAIN, {"engines": ["d0"]})).json()["stand_ins"] == {}
        told = "No decode engine is in service: p0, p1 serve whole requests until one is back."
        shown = await command(where, "drain", "d1")
        assert told in shown.stdout
        assert (await where.ask(SHOW, method="GET")).json()["stand_ins"] == {"decode": ["p0", "p1"]}
        assert (await where.ask(CHAT, body_for(CHAT))).status == 200  # they do
        back = await command(where, "readmit", "d0")
        await eventually(lambda: "d0" in available(where))
        assert (await where.ask(SHOW, method="GET")).json()["stand_ins"] == {}
        assert "whole requests" not in back.stdout + (await command(where, "engines")).stdout

    on_router(test, **PAIRS, recovery={"readmit_ramp_s": 0.01})


def test_a_fleet_that_drains_as_a_whole_has_nobody_who_serves_instead() -> None:
    async def test(where: Routed) -> None:
        everyone = {"engines": ["p0", "p1", "d0", "d1"]}
        assert (await where.ask(DRAIN, everyone)).json()["stand_ins"] == {}

    on_router(test, **PAIRS)


def test_a_readmitted_engine_is_no_fault_in_the_log_and_one_that_breaks_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def lines() -> list[tuple[str, str]]:
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    async def test(where: Routed) -> None:
        await where.ask(DRAIN, {"engines": ["d0"]})
        await where.ask(READMIT, {"engines": ["d0"]})
        await eventually(lambda: "d0" in available(where))
        assert ("INFO", "engine d0: it was readmitted, and is to prove itself") in lines()
        assert not [line for line in lines() if line[0] != "INFO" or "ejected" in line[1]]
        where.router.lifecycle.slowed(2, "it has become slow", monotonic())
        assert ("WARNING", "engine d0 is ejected: it has become slow") in lines()

    with caplog.at_level(logging.INFO, "narwhal.serving"):
        on_router(test, **PAIRS, recovery={"readmit_ramp_s": 0.01})


def test_a_readmitted_engine_that_does_not_prove_itself_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(where: Routed) -> None:
        await where.ask(DRAIN, {"engines": ["d0"]})
        await where.fleet["d0"].stop()
        await where.ask(READMIT, {"engines": ["d0"]})
        await eventually(lambda: caplog.records)
        await eventually(lambda: where.router.monitor._pauses[2].left < -3)  # it has been tried again
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.startswith("engine d0 is not taken back yet: ")
        assert "refused" in line.lower()

    with caplog.at_level(logging.WARNING):
        on_router(test, **PAIRS, recovery={"liveness_interval_s": 0.02})


@pytest.mark.parametrize("what", ["drain", "readmit"])
def test_a_command_on_an_engine_that_is_not_there_says_which_and_which_there_are(what: str) -> None:
    async def test(where: Routed) -> None:
        wrong = await command(where, what, "d1", "d9", "nonsense")
        assert (wrong.returncode, wrong.stdout) == (1, "")
        assert wrong.stderr == (
            'narwhal: the router has no engine "d9" (did you mean d0?) or "nonsense"; nothing was changed. '
            "It has p0, p1, d0, d1\n"
        )
        assert available(where) == ["p0", "p1", "d0", "d1"]

    on_router(test, **PAIRS)
