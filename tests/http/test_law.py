"""Every kind of ending, interleaved at random; the counters' law is asked for after every step.

offered == served + failed + expired + cancelled + rejected + refused + invalid_requests + in flight
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import uvloop
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from narwhal.admission.readiness import State
from narwhal.sim.faults import Fault, FaultName
from tests.http.support import CHAT, COMPLETIONS, Routed, body_for, eventually, routed
from tests.http.wire import Closed, Wire, chunked_request, request

ENDINGS = ("served", "failed", "expired", "cancelled", "rejected", "refused", "invalid_requests")


def completion(fault: str | dict[str, Any] | None = None, **more: Any) -> bytes:
    return request("POST", CHAT, body_for(CHAT, sim={"fault": fault} if fault else {}, **more))


REQUESTS = {
    "quick": request("POST", COMPLETIONS, body_for(COMPLETIONS)),
    "stream": completion(stream=True),
    "hangs in prefill": completion("hang"),
    "hangs in decode": completion({"name": "hang", "leg": "decode"}, stream=True),
    "stalls amid its stream": completion({"name": "stall", "after": 2, "leg": "decode"}, stream=True),
    "stalls unseen": completion({"name": "stall", "after": 2, "leg": "decode"}),
    "fails in prefill": completion({"name": "bad_status", "leg": "prefill"}),
    "is cut off amid its stream": completion({"name": "die_after", "after": 3, "leg": "decode"}, stream=True),
    "lacks token IDs": completion({"name": "ids_missing", "after": 1, "leg": "decode"}, stream=True),
    "is turned down by the engine": completion({"name": "bad_status", "status": 422}),
    "is no JSON": request("POST", CHAT, b"{"),
    "has a wrong field": completion(n=0),
    "names another model": completion(model="other"),
    "is too large": request("POST", CHAT, b"x" * 3000),
    "is too large in chunks": chunked_request(CHAT, [b"x" * 1500] * 2),
    "has broken chunks": chunked_request(CHAT, [b"{}"])[:-3] + b"\n\r\n",
    "two at once": completion() + completion(stream=True),
}
SHUT = [state for state in State if state is not State.READY]


class Traffic(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.stack = contextlib.AsyncExitStack()
        limits = {
            "prefill_concurrency": 1, "decode_concurrency": 2, "queue_capacity": 1, "retention_limit": 5,
            "queue_timeout_s": 0.05, "request_timeout_s": 0.12, "body_timeout_s": 0.06,
            "head_timeout_s": 0.06, "max_request_bytes": 2000,
        }  # fmt: skip
        self.on: Routed = self.run(self.stack.enter_async_context(routed(serving=limits)))
        self.watcher: Wire = self.run(Wire.connect(self.on.url))
        self.clients: list[Wire] = []
        self.unsent: dict[Wire, bytes] = {}
        self.codes: Counter[Any] = Counter()
        self.last: dict[str, int] = {}

    def run(self, step: Awaitable[Any]) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(step, 20)

        return self.runner.run(bounded())

    def client(self, data: st.DataObject) -> Wire:
        return data.draw(st.sampled_from(self.clients))

    @rule(kind=st.sampled_from(sorted(REQUESTS)), whole=st.sampled_from([True, True, True, False]))
    def ask(self, kind: str, whole: bool) -> None:
        raw = REQUESTS[kind]
        client = self.run(Wire.connect(self.on.url))
        self.clients.append(client)
        if not whole:
            self.unsent[client] = raw[-2:]
            raw = raw[:-2]
        self.run(client.send(raw))

    @precondition(lambda self: self.unsent)
    @rule(data=st.data())
    def send_the_rest(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(list(self.unsent)))
        rest = self.unsent.pop(client)
        with contextlib.suppress(OSError):
            self.run(client.send(rest))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), how=st.sampled_from(["close", "reset", "half close"]))
    def leave(self, data: st.DataObject, how: str) -> None:
        client = self.client(data)
        if how == "half close":
            with contextlib.suppress(OSError):
                client.half_close()
            return
        self.clients.remove(client)
        self.unsent.pop(client, None)
        client.close() if how == "close" else client.reset()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def wait_for_a_reply(self, data: st.DataObject) -> None:
        client = self.client(data)
        self.clients.remove(client)
        self.unsent.pop(client, None)
        with contextlib.suppress(Closed, ConnectionResetError):
            reply = self.run(client.reply())
            if reply.status >= 400 and reply.header("x-request-id"):
                self.codes[reply.code] += 1
        client.close()

    @rule(state=st.sampled_from(SHUT), shut=st.sampled_from([True, False, False]))
    def change_readiness(self, state: State, shut: bool) -> None:
        if shut:
            self.on.router.readiness.set(state, "test", "a test says so")
        else:
            for one in SHUT:
                self.on.router.readiness.clear(one, "test")

    @rule(engine=st.integers(0, 1), available=st.sampled_from([True, True, False]))
    def an_engine_leaves_or_comes_back(self, engine: int, available: bool) -> None:
        async def change() -> None:
            self.on.router.table.available[engine] = available
            self.on.door.look_again(time.monotonic())

        self.run(change())

    @rule(engine=st.sampled_from(["p0", "d0"]), fault=st.sampled_from([None, None, "refuse", "reset"]))
    def an_engine_breaks_or_is_mended(self, engine: str, fault: str | None) -> None:
        async def change() -> None:
            self.on.fleet[engine].faults.set(*([Fault(FaultName(fault))] if fault else []))

        self.run(change())

    @invariant()
    def the_law_holds(self) -> None:
        state = self.run(self.watcher.ask(request("GET", "/narwhal/state"))).json()
        requests = state["requests"]
        assert requests["offered"] == sum(requests[name] for name in ENDINGS) + requests["in_flight"]
        assert sum(requests["by_reason"].values()) == sum(requests[name] for name in ENDINGS)
        assert requests["held"] == requests["in_flight"] <= 5
        assert 0 <= requests["unsized_offered"] <= requests["offered"]
        assert sum(requests["waiting"].values()) <= requests["held"]
        for name in ("prefill", "decode"):
            seats = [engine["phases"][name] for engine in state["engines"] if name in engine["phases"]]
            assert all(0 <= phase["seats_in_use"] <= phase["seats_limit"] for phase in seats)
            # A whole request, as where a role is empty, takes one of each.
            assert sum(phase["seats_in_use"] for phase in seats) <= requests["held"]
        counters = {name: requests[name] for name in (*ENDINGS, "offered", "unsized_offered")}
        assert all(counters[name] >= self.last.get(name, 0) for name in counters)
        self.last = counters

    def teardown(self) -> None:
        async def end() -> None:
            for client in [*self.clients, self.watcher]:
                client.close()
            for engine in self.on.fleet.engines:
                engine.faults.set()
            await eventually(lambda: not self.on.counts["in_flight"])
            await eventually(lambda: not self.on.server._connections)
            for code, count in self.codes.items():
                if code in self.on.endings:
                    assert self.on.endings[code] >= count
            assert len(await self.on.rows(self.on.counts["offered"])) == self.on.counts["offered"]

        self.run(end())
        self.run(self.stack.aclose())  # which sees that router and engines have come to rest
        self.runner.close()


Traffic.TestCase.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
test_the_law_holds_after_every_step = Traffic.TestCase
