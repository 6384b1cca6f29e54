"""The fleet file is read again: engines come and go, and their seats change, while requests are served."""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from narwhal._fast.loop import run as run_in_loop
from narwhal.config import ConfigError, EngineConfig, FleetConfig, Role
from narwhal.config.kinds import EngineUrl
from narwhal.fleet.lifecycle import State
from narwhal.fleet.table import Phase
from narwhal.sim import SimEngine, SimFleet, SimOptions
from tests.http.commands import started
from tests.http.support import CHAT, Routed, ask, body_for, eventually, message, on_router
from tests.http.test_recovery import available, served_by, state

PAIRS: dict[str, Any] = {"prefill": 2, "decode": 2}
RECOVERY = {"readmit_ramp_s": 0.01}
SHOW = "/narwhal/lifecycle"


def without(config: FleetConfig, *names: str) -> FleetConfig:
    return replace(config, engines=tuple(engine for engine in config.engines if engine.id not in names))


def test_a_new_engine_serves_once_it_has_proved_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "narwhal.serving")

    async def test(where: Routed) -> None:
        engine = SimEngine(SimOptions(role="decode"))
        await engine.start()
        new = EngineConfig(id="a9", url=EngineUrl("http", engine.host, engine.port), role=Role.DECODE)
        config = replace(where.router.config, engines=(*where.router.config.engines, new))
        changes = where.router.reload(config, "fleet.yaml")
        assert changes.in_words == "added a9"
        (line,) = [record for record in caplog.records if "a9" in record.getMessage()]
        assert (line.levelname, line.getMessage()) == ("INFO", "engine a9: it is new, and is to prove itself")
        assert available(where) == ["p0", "p1", "d0", "d1"]
        await eventually(lambda: "a9" in available(where))
        where.router.lifecycle.tick(1e9)  # its ramp is over
        assert state(where, "a9") is State.SERVING
        # The first of equals, by ID.
        assert await served_by(where) == ("p0", "a9")
        pages = [await where.ask(page, method="GET") for page in (SHOW, "/narwhal/state", "/metrics")]
        assert all(page.status == 200 and b"a9" in page.body for page in pages)
        assert await served_by(where) == ("p0", "a9")
        where.router.reload(without(config, "a9"), "fleet.yaml")
        await engine.stop()

    on_router(test, **PAIRS, recovery=RECOVERY)


def test_an_engine_that_is_gone_from_the_file_is_drained_first_and_can_come_back() -> None:
    async def test(where: Routed) -> None:
        config = where.router.config
        client = await where.connect()
        stall = {"fault": {"name": "stall", "after": 2, "leg": "decode"}}
        client.writer.write(message("POST", CHAT, body_for(CHAT, stream=True, sim=stall)))
        await eventually(lambda: where.seats == (0, 1))
        assert where.router.reload(without(config, "d0"), "fleet.yaml").in_words == "drains d0"
        assert available(where) == ["p0", "p1", "d1"]
        d0 = (await where.ask(SHOW, method="GET")).json()["engines"][2]
        assert (d0["id"], d0["state"], d0["safe_to_stop"]) == ("d0", "draining", False)
        assert await served_by(where) == ("p0", "d1")
        await client.close()
        await eventually(lambda: where.seats == (0, 0))
        shown = (await where.ask(SHOW, method="GET")).json()["engines"]
        assert [engine["id"] for engine in shown] == ["p0", "p1", "d1"]
        assert where.router.reload(without(config, "d0"), "fleet.yaml").in_words == "no change"
        assert where.router.reload(config, "fleet.yaml").in_words == "took back d0"
        await eventually(lambda: "d0" in available(where))
        assert await served_by(where) == ("p0", "d0")

    on_router(test, **PAIRS, recovery=RECOVERY)


def test_other_limits_hold_at_once_and_let_in_who_waits() -> None:
    async def test(where: Routed) -> None:
        config = where.router.config
        hang = {"fault": {"name": "hang", "leg": "prefill"}}
        first, second = await where.connect(), await where.connect()
        for client in (first, second):
            client.writer.write(message("POST", CHAT, body_for(CHAT, sim=hang)))
        await eventually(lambda: where.door.waiting(Phase.PREFILL) == 1)
        p0, d0 = config.engines
        wider = replace(config, engines=(replace(p0, prefill_concurrency=2), d0))
        assert where.router.reload(wider, "fleet.yaml").in_words == "changed the seats of p0"
        await eventually(lambda: where.seats == (2, 0))
        state = (await where.ask("/narwhal/state", method="GET")).json()
        assert state["engines"][0]["phases"]["prefill"]["seats_limit"] == 2
        for client in (first, second):
            await client.close()

    on_router(test, serving={"prefill_concurrency": 1})


def test_what_can_not_change_under_an_engine_changes_nothing_and_is_named() -> None:
    async def test(where: Routed) -> None:
        config = where.router.config
        p0, d0 = config.engines
        moved = replace(
            config, engines=(replace(p0, url=EngineUrl("http", "10.0.0.9", 1)), replace(d0, id="d9"))
        )
        with pytest.raises(ConfigError) as wrong:
            where.router.reload(moved, "fleet.yaml")
        (problem,) = wrong.value.problems
        assert problem.path == "engines[0].url"
        assert "http://10.0.0.9:1 in place of" in problem.seen
        assert where.router.config == config
        assert available(where) == ["p0", "d0"]
        serving = replace(config.serving, max_attempts=7, prefill_concurrency=5)
        other = replace(config, slo=replace(config.slo, ttft_s=9.0), serving=serving)
        words = where.router.reload(other, "fleet.yaml").in_words
        assert words == "left as they are until a restart: slo.ttft_s, serving.max_attempts"

    on_router(test)


def test_a_hangup_signal_has_the_file_read_again_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        file = tmp_path / "fleet.yaml"
        async with SimFleet(**PAIRS) as fleet:
            file.write_text(fleet.yaml(serving={"port": 0}))
            async with started("serve", "--fleet", str(file)) as router:
                url = await router.url()

                async def shown() -> list[str]:
                    page = (await ask(url, "GET", SHOW)).json()
                    return [engine["id"] for engine in page["engines"] if engine["available"]]

                async def logs(text: str) -> str:
                    assert router.child.stderr is not None
                    said = ""
                    async with asyncio.timeout(10):
                        while text not in said:
                            said += (await router.child.stderr.readline()).decode()
                    return said

                assert await shown() == ["p0", "p1", "d0", "d1"]
                config = fleet.config(serving={"port": 0})
                config["engines"] = config["engines"][:3]
                file.write_text(yaml.safe_dump(config))
                router.child.send_signal(signal.SIGHUP)
                assert "drains d1" in await logs("read again")
                assert await shown() == ["p0", "p1", "d0"]
                file.write_text("engines: 5\n")
                router.child.send_signal(signal.SIGHUP)
                assert "changes nothing" in await logs("engines: saw 5")
                assert await shown() == ["p0", "p1", "d0"]
                assert (await ask(url, "POST", CHAT, body_for(CHAT))).status == 200

    run_in_loop(run())
