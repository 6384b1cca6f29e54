"""What the router says of itself, and the states in which it takes no requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from narwhal.admission.readiness import State
from narwhal.serving import routes
from tests.http.support import CHAT, COMPLETIONS, Routed, body_for, eventually, on_router
from tests.http.wire import Reply, Wire, request

MAINTENANCE = "/narwhal/maintenance"
SHORT = body_for(COMPLETIONS, max_tokens=1)
NOT_READY = [state for state in State if state is not State.READY]


async def get(on: Routed, path: str, *fields: str) -> Reply:
    async with await Wire.connect(on.url) as client:
        return await client.ask(request("GET", path, None, *fields))


async def post(on: Routed, path: str, body: Any, *fields: str) -> Reply:
    async with await Wire.connect(on.url) as client:
        return await client.ask(request("POST", path, body, *fields))


@pytest.mark.parametrize("state", NOT_READY)
def test_a_router_that_is_not_ready_says_so_and_takes_nothing(state: State) -> None:
    async def run(on: Routed) -> None:
        on.router.readiness.set(state, "test", "the reason is 42")
        ready = await get(on, "/ready")
        assert (ready.status, ready.json()) == (503, {"status": state.value, "reason": "the reason is 42"})
        health = await get(on, "/health")
        assert (health.status, health.json()["status"]) == (200, "ok")
        assert (await get(on, "/narwhal/state")).json()["status"] == state.value
        async with await Wire.connect(on.url) as client:
            for path in (CHAT, COMPLETIONS):
                # Refused on its head: the body is never looked at, but the connection goes on.
                reply = await client.ask(request("POST", path, b"{nonsense"))
                assert (reply.status, reply.error["type"], reply.code) == (503, "not_ready", state.value)
                assert "the reason is 42" in reply.error["message"]
                assert reply.header("retry-after") == "1"
                assert reply.header("x-should-retry") is None
                assert reply.header("x-request-id")
                assert not reply.closes
            assert (on.counts["rejected"], on.endings) == (2, {state.value: 2})
            on.router.readiness.clear(state, "test")
            assert (await get(on, "/ready")).json() == {"status": "ready"}
            assert (await client.ask(request("POST", COMPLETIONS, SHORT))).status == 200

    on_router(run)


def test_the_severest_of_several_states_is_what_clients_are_told() -> None:
    async def run(on: Routed) -> None:
        for state in NOT_READY:
            on.router.readiness.set(state, "a", f"{state} a")
            on.router.readiness.set(state, "b", f"{state} b")
            assert (await get(on, "/ready")).json() == {
                "status": state.value,
                "reason": f"{state} a; {state} b",
            }
        for state in reversed(NOT_READY):
            assert (await get(on, "/ready")).json()["status"] == state.value
            on.router.readiness.clear(state, "a")
            assert (await get(on, "/ready")).json()["reason"] == f"{state} b"
            on.router.readiness.clear(state, "b")
        assert (await get(on, "/ready")).status == 200

    on_router(run)


def test_an_operator_sets_maintenance_by_hand_and_what_runs_goes_on() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as client:
            slow = body_for(CHAT, stream=True, sim={"fault": {"name": "slow_first_token", "seconds": 0.1}})
            await client.send(request("POST", CHAT, slow))
            await eventually(lambda: on.fleet.active)
            reply = await post(on, MAINTENANCE, {"on": True, "reason": "new racks"})
            assert (reply.status, reply.json()) == (200, {"status": "maintenance"})
            assert (await get(on, "/ready")).json() == {"status": "maintenance", "reason": "new racks"}
            refused = await post(on, COMPLETIONS, SHORT)
            assert (refused.status, refused.code, refused.header("retry-after")) == (503, "maintenance", "1")
            assert len((await client.reply()).events) == 9
        await post(on, MAINTENANCE, {"on": True})
        assert "operator" in (await get(on, "/ready")).json()["reason"]
        assert (await post(on, MAINTENANCE, {"on": False})).json() == {"status": "ready"}
        assert (await post(on, MAINTENANCE, {"on": False, "reason": None})).json() == {"status": "ready"}
        assert (await post(on, COMPLETIONS, SHORT)).status == 200
        assert on.endings == {"served": 2, "maintenance": 1}

    on_router(run)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"{", "invalid_json", None),
        (b"[true]", "invalid_body", None),
        (b"{}", None, "on"),
        (b'{"on": 1}', None, "on"),
        (b'{"on": null}', None, "on"),
        (b'{"on": true, "reason": 7}', None, "reason"),
        (b'{"on": true, "reason": ""}', None, "reason"),
        (b'{"on": true, "reason": "' + b"x" * 501 + b'"}', None, "reason"),
        (b'{"on": true, "raeson": "x"}', None, "raeson"),
    ],
)
def test_a_wrong_control_request_changes_nothing_and_says_what_is_allowed(
    body: bytes, code: str | None, param: str | None
) -> None:
    async def run(on: Routed) -> None:
        reply = await post(on, MAINTENANCE, body)
        assert (reply.status, reply.code, reply.error["param"]) == (400, code, param)
        assert len(reply.error["message"]) < 200
        assert (await get(on, "/ready")).status == 200

    on_router(run)


def test_control_routes_answer_loopback_clients_only_and_no_browsers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(on: Routed) -> None:
        for origin in ("https://evil.example", "null"):
            reply = await post(on, MAINTENANCE, {"on": True}, f"Origin: {origin}")
            assert (reply.status, reply.code) == (403, "forbidden")
        monkeypatch.setattr(routes, "_is_loopback", lambda peer: False)
        reply = await post(on, MAINTENANCE, {"on": True})
        assert (reply.status, reply.code) == (403, "forbidden")
        assert "serving.control_token_env" in reply.error["message"]
        assert (await get(on, "/ready")).status == 200

    on_router(run)


@pytest.mark.parametrize(
    ("peer", "loopback"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("local", True),
        ("10.0.0.1", False), ("::ffff:10.0.0.1", False), ("1.127.0.1", False), ("::2", False), ("", False),
    ],
)  # fmt: skip
def test_loopback_is_this_machine_by_either_protocol(peer: str, loopback: bool) -> None:
    assert routes._is_loopback(peer) is loopback


def test_with_a_token_set_control_routes_answer_whoever_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTROL_TOKEN", "s3cret")

    async def run(on: Routed) -> None:
        for wrong in (
            [],
            ["Authorization: Bearer"],
            ["Authorization: Bearer s3cre"],
            ["Authorization: Basic s3cret"],
        ):
            reply = await post(on, MAINTENANCE, {"on": True}, *wrong)
            assert (reply.status, reply.code) == (401, "unauthorized")
            assert reply.header("www-authenticate") == "Bearer"
            assert "s3cret" not in reply.error["message"]
        assert (await get(on, "/ready")).status == 200
        monkeypatch.setattr(routes, "_is_loopback", lambda peer: False)
        for on_off, right in ((True, "Bearer s3cret"), (False, "bearer s3cret")):
            reply = await post(
                on, MAINTENANCE, {"on": on_off}, f"Authorization: {right}", "Origin: https://ops.example"
            )
            assert reply.status == 200
            assert (await get(on, "/ready")).status == (503 if on_off else 200)

    on_router(run, serving={"control_token_env": "CONTROL_TOKEN"})


def test_health_counts_the_engines() -> None:
    async def run(on: Routed) -> None:
        on.router.table.available[1] = 0
        health = await get(on, "/health")
        assert health.json() == {"status": "ok", "engines": {"total": 4, "available": 3, "unavailable": 1}}
        on.router.table.available[1] = 1

    on_router(run, prefill=2, decode=2)


def test_the_state_and_the_metrics_say_what_was_counted() -> None:
    async def run(on: Routed) -> None:
        async with await Wire.connect(on.url) as hanging:
            await hanging.send(request("POST", CHAT, body_for(CHAT, sim={"fault": "hang"})))
            await eventually(lambda: on.fleet.active)
            for body in (SHORT, b"{", {**SHORT, "model": "other"}, {**SHORT, "stream": True}):
                await post(on, COMPLETIONS, body)
            requests = (await get(on, "/narwhal/state")).json()["requests"]
            figures = {name: requests[name] for name in on.counts}
            assert figures == on.counts
            assert figures["offered"] == 5 == sum(figures.values()) - 5 - figures["unsized_offered"]
            assert (figures["served"], figures["invalid_requests"], figures["in_flight"]) == (2, 2, 1)
            assert (requests["held"], figures["unsized_offered"]) == (1, 2)
            page = await get(on, "/metrics")
            assert (
                page.header(
                    "content-type",
                )
                == "text/plain; version=0.0.4; charset=utf-8"
            )
            families = list(text_string_to_metric_families(page.body.decode()))
            samples = {
                (sample.name, sample.labels.get("reason")): sample.value
                for family in families
                for sample in family.samples
            }
            assert samples["narwhal_requests_offered_total", None] == 5
            assert samples["narwhal_requests_total", "served"] == 2
            assert samples["narwhal_requests_total", "model_not_found"] == 1
        await eventually(lambda: on.endings.get("disconnected"))

    on_router(run)


def test_metrics_come_as_openmetrics_to_who_asks_for_it() -> None:
    async def run(on: Routed) -> None:
        page = await get(on, "/metrics", "Accept: application/openmetrics-text; version=1.0.0")
        assert (page.header("content-type") or "").startswith("application/openmetrics-text")
        assert page.body.endswith(b"# EOF\n")

    on_router(run)


def test_a_page_that_fails_is_an_error_to_its_reader_and_to_no_one_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no ink")

    async def run(on: Routed) -> None:
        monkeypatch.setattr(routes, "render", fail)
        async with await Wire.connect(on.url) as client:
            reply = await client.ask(request("GET", "/metrics") + request("GET", "/health"))
            assert (reply.status, reply.code) == (500, "internal_error")
            assert "no ink" not in reply.error["message"]
            assert (await client.reply()).status == 200
        assert "no ink" in caplog.text

    on_router(run)


def test_a_page_is_dropped_when_its_reader_has_left() -> None:
    async def run(on: Routed) -> None:
        for _ in range(20):
            async with await Wire.connect(on.url) as client:
                await client.send(request("GET", "/metrics"))
                client.reset()
        await eventually(lambda: not on.server._connections)
        await asyncio.wait_for(on.router.settled(), 10)
        assert (await get(on, "/health")).status == 200

    on_router(run)
