"""Over HTTP: what would miss its targets is refused, with the reason in figures, and traffic teaches."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from narwhal.cli import main
from narwhal.fleet.table import Phase
from narwhal.profiles import store
from narwhal.profiles.curves import DecodeCurve, HandoffCurve, PrefillCurve
from tests.http.support import CHAT, COMPLETIONS, Routed, body_for, eventually, message, on_router

PREDICTIVE = {"admission": "predictive"}


@pytest.fixture
def profiles(tmp_path: Path) -> dict[str, Any]:
    """A profile file that says: prompts take a millisecond a token, decode steps 10 ms."""
    engine = store.EngineProfile(
        "http://127.0.0.1",
        "sim-model",
        datetime.now(UTC),
        None,
        store.Measured(PrefillCurve(b=0.001), ()),
        store.Measured(DecodeCurve(c=0.01), ()),
        store.Measured(HandoffCurve(c=0.02), ()),
    )
    path = tmp_path / "profiles.json"
    store.write(path, dict.fromkeys(("p0", "p1", "d0", "b0"), engine))
    return {"path": str(path)}


def prompt_of(tokens: int, **more: Any) -> dict[str, Any]:
    return {"model": "sim-model", "prompt": [7] * tokens, "max_tokens": 4, **more}


def test_a_prompt_that_alone_takes_too_long_is_refused_and_the_journal_says_why(
    profiles: dict[str, Any],
) -> None:
    async def run(on: Routed) -> None:
        answer = await on.ask(COMPLETIONS, prompt_of(3000))
        assert answer.status == 429
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("refused", "prompt_exceeds_ttft")
        assert error["details"]["budget_s"] == 2.0
        assert error["details"]["projected_ttft_s"] > 3.0
        row = await on.row()
        assert (row["outcome"], row["reason"]) == ("refused", "prompt_exceeds_ttft")
        assert row["details"] == error["details"]
        assert on.counts["refused"] == 1
        # The client's own target outranks the fleet's.
        patient = await on.ask(COMPLETIONS, prompt_of(3000), headers={"x-slo-ttft-ms": "9000"})
        assert patient.status == 200

    on_router(run, serving=PREDICTIVE, profiles=profiles)


def test_a_prompt_that_others_make_late_is_refused_and_told_when_to_come_back(
    profiles: dict[str, Any],
) -> None:
    async def run(on: Routed) -> None:
        blocker = await on.connect()
        hang = prompt_of(4000, sim={"fault": "hang"})
        blocker.writer.write(message("POST", COMPLETIONS, hang, {"x-slo-ttft-ms": "9000"}))
        await eventually(lambda: on.seats == (1, 0))
        answer = await on.ask(COMPLETIONS, prompt_of(100))
        assert answer.status == 429
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("refused", "ttft_projected")
        assert 1 <= int(answer.headers["retry-after"]) <= 3
        parts = error["details"]["parts"]
        assert 3 < parts["wait_s"] <= 4
        assert (parts["prefill_s"], parts["handoff_s"]) == (0.1, 0.02)
        assert error["details"]["engine"] == "p0"
        await blocker.close()

    on_router(run, serving=PREDICTIVE, profiles=profiles)


def test_one_who_waits_for_an_engine_that_hangs_is_turned_away_before_its_time_is_up(
    profiles: dict[str, Any],
) -> None:
    async def run(on: Routed) -> None:
        blocker = await on.connect()
        blocker.writer.write(message("POST", COMPLETIONS, prompt_of(200, sim={"fault": "hang"})))
        await eventually(lambda: on.seats == (1, 0))
        answer = await on.ask(COMPLETIONS, prompt_of(100), headers={"x-slo-ttft-ms": "700"})
        error = answer.json()["error"]
        assert (answer.status, error["code"]) == (429, "ttft_projected")
        assert 0.2 < error["details"]["parts"]["elapsed_s"] < 0.7
        await blocker.close()

    on_router(run, serving=PREDICTIVE, profiles=profiles)


def test_a_target_for_tokens_that_no_engine_meets_is_refused(profiles: dict[str, Any]) -> None:
    async def run(on: Routed) -> None:
        answer = await on.ask(COMPLETIONS, prompt_of(10), headers={"x-slo-tpot-ms": "5"})
        error = answer.json()["error"]
        assert (answer.status, error["code"]) == (429, "tpot_projected")
        assert error["details"] == {"projected_tpot_s": 0.01, "target_s": 0.005, "engine": "d0"}

    on_router(run, serving=PREDICTIVE, profiles=profiles)


def test_open_admission_refuses_nobody(profiles: dict[str, Any]) -> None:
    async def run(on: Routed) -> None:
        answer = await on.ask(COMPLETIONS, prompt_of(3000), headers={"x-slo-ttft-ms": "1"})
        assert answer.status == 200
        assert on.router.placement.unserved[Phase.PREFILL] == 1

    on_router(run, serving={"admission": "open"}, profiles=profiles)


def test_the_journal_has_the_price_of_every_candidate(profiles: dict[str, Any]) -> None:
    async def run(on: Routed) -> None:
        on.router.table.set_available(1, False)
        assert (await on.ask(COMPLETIONS, prompt_of(100))).status == 200
        row = await on.row()
        (attempt,) = row["attempts"]
        assert attempt["prefill_prices"] == {"p0": {"price_s": 0.1, "room": True}}
        assert attempt["decode_prices"] == {"d0": {"price_s": 0.01, "room": True}}
        assert row["projected_ttft_s"] == pytest.approx(0.12, abs=0.02)

    on_router(run, prefill=2, serving=PREDICTIVE, profiles=profiles)


@pytest.mark.parametrize("fleet", [{"prefill": 1, "decode": 1}, {"prefill": 0, "decode": 0, "both": 1}])
def test_without_profiles_the_router_lets_everybody_in_and_learns(fleet: dict[str, int]) -> None:
    async def run(on: Routed) -> None:
        client = await on.connect()
        for tokens in range(10, 50):
            body = prompt_of(tokens, stream=True, max_tokens=8)
            answer = await client.ask("POST", COMPLETIONS, body, headers={"x-slo-ttft-ms": "20000"})
            assert answer.status == 200
        state = (await client.ask("GET", "/narwhal/state")).json()
        paces = {name: report for engine in state["engines"] for name, report in engine["pace"].items()}
        assert paces["prefill"]["samples"] == 40
        assert paces["interval"]["samples"] == 40
        assert state["admission"]["prompt_times_known"] == paces["prefill"]["sure"]
        assert state["slo"]["attainment"] == 1.0
        assert state["slo"]["goodput_per_s"] > 0
        rows = await on.rows(40)
        assert rows[0]["projected_ttft_s"] is None
        projected = [row for row in rows if row["projected_ttft_s"] is not None]
        assert sum(engine["ttft_of_projected"]["count"] for engine in state["engines"]) == len(projected)

    on_router(run, **fleet, serving=PREDICTIVE)


def test_a_client_that_reads_slowly_teaches_no_token_interval() -> None:
    async def run(on: Routed) -> None:
        client = await on.connect()
        client.writer.write(message("POST", CHAT, body_for(CHAT, stream=True, max_tokens=100)))
        await eventually(lambda: any(one.record.handoff for one in on.router.exchanges))
        (exchange,) = on.router.exchanges
        exchange.pause()
        exchange.resume()
        answer = await client.read()
        assert answer.ended == "whole"
        await eventually(lambda: not on.router.exchanges)
        (decode,) = [e for e in on.router.models.engines if e.handoff.report().samples]
        assert decode.interval.report().samples == 0

    on_router(run)


def test_an_engine_that_a_new_fleet_file_brings_is_known_by_its_profile(profiles: dict[str, Any]) -> None:
    async def run(on: Routed) -> None:
        router, new = on.router, on.router.config
        (p0,) = [engine for engine in new.engines if engine.id == "p0"]
        p1 = replace(p0, id="p1", kv_capacity_tokens=1000)
        unknown = replace(p0, id="p9")
        new = replace(new, engines=(*new.engines, p1, unknown))
        models = router.models_of_new(new)
        assert list(models) == ["p1", "p9"]
        router.reload(new, "fleet.yaml", models)
        assert [model.prefill.measured for model in router.models.engines] == [True, True, True, False]
        assert router.table.kv_capacity[2] == 1000
        assert (await on.ask(COMPLETIONS, prompt_of(100))).status == 200

    on_router(run, serving=PREDICTIVE, profiles=profiles)


def test_a_profile_file_that_cannot_be_used_stops_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profiles.json").write_bytes(orjson.dumps({"format": "narwhal-profiles", "version": 99}))
    (tmp_path / "fleet.yaml").write_text(
        "model: m\nslo: {ttft_s: 1, tpot_s: 0.1}\nprofiles: {path: profiles.json}\n"
        "engines:\n  - {id: b, url: 'http://127.0.0.1:1', role: both}\nserving: {port: 0}\n"
    )
    assert main(["serve", "--fleet", str(tmp_path / "fleet.yaml")]) == 1
    assert "profiles.json" in capsys.readouterr().err
