"""Engines leave the fleet when they fail, or are dead, and come back when they work: over sockets."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from narwhal.fleet.lifecycle import State
from narwhal.profiles.drift import WINDOW_S
from narwhal.profiles.drift import State as Drifted
from narwhal.sim import Fault, FaultName, Interval, SimOptions, Timing
from tests.http.support import CHAT, Routed, body_for, eventually, message, on_router

# Quick enough to wait for. Each probe has half a second at the least, since machines are busy.
QUICK = {"liveness_interval_s": 0.75, "liveness_misses": 2, "readmit_ramp_s": 0.2, "probe_timeout_s": 5}
PAIRS: dict[str, Any] = {"prefill": 2, "decode": 2}


def state(where: Routed, engine: str) -> State:
    return where.router.lifecycle.lives[where.router.table.index[engine]].state


def available(where: Routed) -> list[str]:
    table = where.router.table
    return [name for name, engine in table.index.items() if table.available[engine]]


async def served_by(where: Routed) -> tuple[str | None, str]:
    """Serve one request; the engines of its only attempt."""
    rows = sum(where.endings.values())
    assert (await where.ask(CHAT, body_for(CHAT, stream=True))).ended == "whole"
    (attempt,) = (await where.rows(rows + 1))[-1]["attempts"]
    return attempt["prefill"], attempt["decode"]


@pytest.mark.parametrize("fault", [FaultName.REFUSE, FaultName.UNHEALTHY, FaultName.HANG])
def test_a_dead_idle_engine_is_found_in_time_without_a_request_and_comes_back(fault: FaultName) -> None:
    async def test(where: Routed) -> None:
        await eventually(lambda: where.fleet["p0"].stats.connections_opened)
        if fault is FaultName.HANG:
            # As a stopped process does: the kernel takes connections, and nobody answers.
            port = where.fleet["p0"].port
            await where.fleet["p0"].stop()
            silent = socket.create_server(("127.0.0.1", port))
        else:
            where.fleet["p0"].faults.set(Fault(fault, status=503))
        await eventually(lambda: state(where, "p0") is State.EJECTED)
        if fault is FaultName.HANG:
            silent.close()
        # Probes are `liveness_interval_s` apart, so their number is the time.
        life = where.router.lifecycle.lives[where.router.table.index["p0"]]
        assert life.why.startswith(f"{QUICK['liveness_misses']} liveness probes missed")
        assert where.counts["offered"] == 0
        assert (await served_by(where))[0] == "p1"
        if fault is FaultName.HANG:
            await where.fleet["p0"].start(port=port)
        where.fleet["p0"].faults.set()
        await eventually(lambda: state(where, "p0") is State.SERVING)
        assert (await served_by(where))[0] == "p0"

    on_router(test, **PAIRS, recovery=QUICK)


def test_the_way_back_asks_for_health_the_model_a_token_and_a_real_handoff() -> None:
    async def test(where: Routed) -> None:
        d0 = where.fleet["d0"]
        d0.faults.set(Fault(FaultName.BAD_STATUS, leg="decode"))
        for _ in range(3):
            assert (await where.ask(CHAT, body_for(CHAT, stream=True))).status == 200
        # Its health is fine, but it can't compute.
        await eventually(lambda: state(where, "d0") is State.EJECTED)
        assert "answered with 500" in where.router.lifecycle.lives[2].why
        d0.requests.clear()
        where.fleet["p0"].requests.clear()
        d0.faults.set()
        await eventually(lambda: state(where, "d0") in (State.READMITTING, State.SERVING))
        probes = [seen for seen in d0.requests if (seen.header("x-request-id") or "").startswith("probe-")]
        assert [seen.leg for seen in probes][-2:] == ["whole", "decode"]
        assert d0.external_tokens > 128  # KV cache that came from elsewhere
        assert where.fleet["p0"].stats.handoffs_spoiled == 0
        await eventually(lambda: state(where, "d0") is State.SERVING)

    on_router(test, **PAIRS, recovery=QUICK)


def test_an_engine_with_another_model_does_not_come_back() -> None:
    async def test(where: Routed) -> None:
        d0, port = where.fleet["d0"], where.fleet["d0"].port
        await d0.stop()
        await eventually(lambda: state(where, "d0") is State.EJECTED)
        proper, d0.options = d0.options, SimOptions(model="another", role="decode")
        await d0.start(port=port)
        life = where.router.lifecycle.lives[2]
        await eventually(lambda: "does not serve the model sim-model, but another" in life.why)
        assert state(where, "d0") is State.EJECTED
        d0.options = proper

    on_router(test, **PAIRS, recovery=QUICK)


@pytest.mark.parametrize(
    ("fault", "evidence"),
    [
        (Fault(FaultName.IDS_MISSING), "token_ids"),
        (Fault(FaultName.DIE_AFTER, how="close"), "stream"),
        (Fault(FaultName.BAD_STATUS, status=500), "status"),
        (Fault(FaultName.RESET), "connection"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_requests_meet_a_faulty_engine_three_times_and_no_more(fault: Fault, evidence: str) -> None:
    async def test(where: Routed) -> None:
        where.fleet["d0"].faults.set(fault)
        for _ in range(6):
            body = body_for(CHAT, stream=True)
            assert (await where.ask(CHAT, body)).ended == "whole"
            await eventually(lambda: state(where, "d0") is not State.PROBING)
        rows = await where.rows(6)
        assert sum(len(row["attempts"]) - 1 for row in rows) == 3
        assert state(where, "d0") is State.EJECTED
        assert [row["attempts"][-1]["decode"] for row in rows] == ["d1"] * 6
        where.fleet["d0"].faults.set()

    on_router(test, **PAIRS)


def test_an_overloaded_engine_that_says_it_is_well_goes_on() -> None:
    async def test(where: Routed) -> None:
        where.fleet["d0"].faults.set(Fault(FaultName.BAD_STATUS, status=503, count=3))
        for _ in range(3):
            await where.ask(CHAT, body_for(CHAT, stream=True))
        await eventually(lambda: state(where, "d0") is State.SERVING)
        assert "passed the health probe" in where.router.lifecycle.lives[2].why
        assert where.router.lifecycle.ejections == [0, 0, 0, 0]
        assert await served_by(where) == ("p0", "d0")

    on_router(test, **PAIRS)


def test_one_lost_leg_is_enough_where_connections_are_closed_without_a_reply() -> None:
    async def test(where: Routed) -> None:
        where.fleet["d0"].faults.set(Fault(FaultName.RESET, at="accept"))
        assert (await where.ask(CHAT, body_for(CHAT, stream=True))).ended == "whole"
        await eventually(lambda: state(where, "d0") is State.EJECTED)
        assert "3 connection failures in a row" in where.router.lifecycle.lives[2].why
        where.fleet["d0"].faults.set()

    on_router(test, **PAIRS, recovery={"liveness_interval_s": 60})


def test_the_last_of_its_role_is_asked_however_doubtful_it_is() -> None:
    async def test(where: Routed) -> None:
        where.fleet["d0"].faults.set(Fault(FaultName.IDS_MISSING))
        for _ in range(3):
            assert (await where.ask(CHAT, body_for(CHAT))).status == 502
        await eventually(lambda: state(where, "d0") is State.EJECTED)
        assert (await where.ask(CHAT, body_for(CHAT))).status == 502
        where.fleet["d0"].faults.set()
        assert await served_by(where) == ("p0", "d0")

    on_router(test)


def test_prefill_engines_serve_whole_requests_while_no_engine_decodes_and_after_that_none() -> None:
    async def test(where: Routed) -> None:
        d0, port = where.fleet["d0"], where.fleet["d0"].port
        await d0.stop()
        await eventually(lambda: "d0" not in available(where))
        assert await served_by(where) == (None, "p0")
        await d0.start(port=port)
        await eventually(lambda: "d0" in available(where))
        assert await served_by(where) == ("p0", "d0")

    on_router(test, recovery=QUICK)


def test_with_nobody_left_requests_are_turned_away() -> None:
    async def test(where: Routed) -> None:
        for engine in where.fleet.engines:
            engine.faults.set("refuse")
        await eventually(lambda: not available(where))
        answer = await where.ask(CHAT, body_for(CHAT))
        assert (answer.status, answer.json()["error"]["code"]) == (503, "backend_unavailable")

    on_router(test, recovery=QUICK)


def test_a_restart_that_nobody_noticed_is_seen_by_the_processs_start_and_what_was_learned_is_forgotten() -> (
    None
):
    async def test(where: Routed) -> None:
        p0, port = where.fleet["p0"], where.fleet["p0"].port
        lives = where.router.lifecycle
        await served_by(where)
        assert where.router.engines[0].pool.open_connections == 1
        await eventually(lambda: lives.lives[0].started_at is not None)
        learned = where.router.models.engines[0].prefill
        where.router.models.learn_prefill(0, 100, 1.0)
        assert learned.report().samples
        await p0.stop()
        await p0.start(port=port)
        await eventually(lambda: lives.restarts[0] == 1)
        assert not learned.report().samples
        assert lives.lives[0].generation >= 1

    on_router(test, recovery=QUICK | {"liveness_misses": 5})


def test_probes_go_over_connections_of_their_own() -> None:
    async def test(where: Routed) -> None:
        await eventually(lambda: where.fleet["p0"].stats.connections_opened == 1)
        assert where.router.engines[0].pool.open_connections == 0

    on_router(test, recovery=QUICK)


def test_a_monitor_that_keeps_failing_closes_the_door_until_a_clean_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(where: Routed) -> None:
        def broken(now: float) -> None:
            raise RuntimeError("a fault of the router's own")

        with monkeypatch.context() as patch:
            patch.setattr(type(where.router.lifecycle), "tick", lambda self, now: broken(now))
            await eventually(lambda: where.router.readiness.blocker)
            ready = await where.ask("/ready", method="GET")
            assert ready.status == 503
            assert ready.json()["status"] == "monitoring_degraded"
            assert "lives" in ready.json()["reason"]
            refused = await where.ask(CHAT, body_for(CHAT))
            assert (refused.status, refused.json()["error"]["code"]) == (503, "monitoring_degraded")
            assert where.router.monitor.failures["lives"] >= 3
        await eventually(lambda: not where.router.readiness.blocker)
        await served_by(where)

    recovery = {"liveness_interval_s": 0.05, "liveness_misses": 20, "monitor_failure_limit": 3}
    on_router(test, recovery=recovery)


def test_an_engine_that_became_far_slower_than_its_peers_is_put_to_the_proof_and_watched_afterwards() -> None:
    async def test(where: Routed) -> None:
        router = where.router
        drift, now = router.models.drift[0], time.monotonic()

        def windows(count: int, slow: float) -> None:
            nonlocal now
            for _ in range(count):
                for engine in (0, 1):
                    for _ in range(8):
                        router.models.learn_prefill(engine, 1000, slow if engine == 0 else 1.0)
                now += WINDOW_S + 1
                router.judge_drift(now)

        windows(60, 1.0)
        while state(where, "p0") is State.SERVING:
            windows(1, 8.0)
        assert drift.state(0) is Drifted.TAKE_OUT
        await eventually(lambda: state(where, "p0") in (State.READMITTING, State.SERVING))
        assert drift.state(0) is Drifted.PROBATION
        assert router.models.surcharge[0][0] > 0

    on_router(test, **PAIRS, recovery=QUICK)


def test_one_lost_connection_is_enough_to_find_an_engine_dead() -> None:
    async def test(where: Routed) -> None:
        body = body_for(CHAT, stream=True, max_tokens=200)
        assert (await where.ask(CHAT, body_for(CHAT))).status == 200
        await where.fleet["d0"].stop()
        assert (await where.ask(CHAT, body)).ended == "whole"
        await eventually(lambda: state(where, "d0") is State.EJECTED)
        assert where.router.lifecycle.lives[2].refused
        assert [len(row["attempts"]) for row in await where.rows(2)] == [1, 2]

    on_router(test, **PAIRS)


def test_an_engine_whose_tokens_flow_is_not_dead_though_it_says_it_is_unwell() -> None:
    async def test(where: Routed) -> None:
        client = await where.connect()
        client.writer.write(message("POST", CHAT, body_for(CHAT, stream=True, max_tokens=50)))
        await eventually(lambda: where.seats == (0, 1))
        where.fleet["d0"].faults.set(Fault(FaultName.UNHEALTHY, status=503))
        assert (await client.read()).ended == "whole"
        assert state(where, "d0") is State.SERVING
        await eventually(lambda: state(where, "d0") is State.EJECTED)
        where.fleet["d0"].faults.set()

    timing = Timing(interval=Interval(base=0.06))
    on_router(test, **PAIRS, recovery=QUICK, options=SimOptions(timing=timing))
