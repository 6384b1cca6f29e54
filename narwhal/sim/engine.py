"""A simulated engine: an HTTP server that looks like vLLM 0.32 to a client.

It has vLLM's routes, and a few of its own under /sim/ to set faults and to read what it counted. Many engines
can share one event loop.
"""

from __future__ import annotations

import asyncio
import ssl
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import orjson

from narwhal.sim import directives, handoffs, script, shapes, vocabulary
from narwhal.sim.answer import Answer
from narwhal.sim.batch import Batch
from narwhal.sim.faults import EngineFaults, FaultName, Leg, read_faults
from narwhal.sim.handoffs import Producer, Taken
from narwhal.sim.listener import Listener
from narwhal.sim.script import RequestError
from narwhal.sim.server import Connection, Reply, Request
from narwhal.sim.shapes import ChatShape, CompletionShape, Shape
from narwhal.sim.stats import Stats
from narwhal.sim.timing import FAST, Timing

ROLES = ("prefill", "decode", "both")


@dataclass(frozen=True, slots=True)
class SimOptions:
    """What kind of engine it is."""

    model: str = "sim-model"
    role: str = "both"  # which legs of split requests it serves; whole requests are served by all
    timing: Timing = FAST
    seed: int = 0  # for requests that give none, and for faults that strike by chance
    answer: str | None = None  # the text for requests that say nothing of their output; None: made-up words
    max_model_len: int = 131072  # tokens
    max_sequences: int = 1024  # that decode at once; others wait
    reasoning_field: str = "reasoning"  # or reasoning_content, as engines before 2026 have it
    prompt_tokens_details: bool = False  # report the prefix cache's share in usage
    hands_over_cached_tokens: bool = (
        True  # put the true figure into handoffs; else decode reports all as cached
    )
    gone_handoff_s: float = 5.0  # silence before the error when a handoff's producer is gone
    api_key: str | None = None  # ask for this bearer token
    keep_requests: int = 64  # how many of the last requests `SimEngine.requests` holds
    tls: ssl.SSLContext | None = None
    base_path: str = ""  # what every path begins with, as behind a gateway


@dataclass(frozen=True, slots=True)
class Seen:
    """A completion request as it came in, for tests to look at."""

    path: str
    leg: Leg | None  # None: turned down before that was known
    headers: list[tuple[bytes, bytes]] = field(repr=False)
    body: bytes = field(repr=False)
    connection: int  # number of the connection it came over

    def header(self, name: str) -> str | None:
        """A header's value, by its name in lower case."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name.encode()), None)

    def json(self) -> Any:
        return orjson.loads(self.body)


class SimEngine:
    """One engine. `start` it in a running loop, and `stop` it there."""

    def __init__(self, options: SimOptions | None = None) -> None:
        self.options = options or SimOptions()
        self.faults = EngineFaults(self.options.seed)
        self.faults.changed = self._faults_changed
        self.requests: deque[Seen] = deque(maxlen=self.options.keep_requests)
        self.stats = Stats()
        self.batch: Batch
        self.producer: Producer
        self.host, self.port = "", 0
        self._loop: asyncio.AbstractEventLoop
        self._running = False
        self._listener = Listener(lambda: Connection(self, self._loop), self.options.tls)
        self._connections: set[Connection] = set()
        self._empty: asyncio.Event  # set while no connection is open
        self._tasks: set[asyncio.Task[None]] = set()
        self._started_at = 0.0
        self.external_tokens = 0  # prompt tokens whose KV cache came from another engine
        self._routes: dict[str, dict[str, Callable[[Request, Reply], None]]] = {
            "/v1/completions": {"POST": self._completion},
            "/v1/chat/completions": {"POST": self._completion},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics},
            "/tokenize": {"POST": self._tokenize},
            "/sim/faults": {"GET": self._get_faults, "POST": self._set_faults},
            handoffs.TAKE_PATH: {"POST": self._take},
        }

    # Its life.

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"{'https' if self.options.tls else 'http'}://{self.host}:{self.port}{self.options.base_path}"

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen. Port 0: any free one. A stopped engine can start again, as a new process would."""
        self._loop = asyncio.get_running_loop()
        self._empty = asyncio.Event()
        self._empty.set()
        self.stats = Stats()
        self.external_tokens = 0
        self._started_at = time.time()
        self.batch = Batch(self._loop, self.options.timing, self.options.max_sequences)
        self.host = host
        self.port = self._listener.open(host, port)
        self.producer = Producer(self.stats, host, self.port)
        handoffs.announce(self.producer)
        self._running = True
        self._faults_changed()

    async def stop(self) -> None:
        """Stop as a process that is killed: what runs is cut off, what is held for others is gone."""
        if not self._running:
            return
        self._running = False
        handoffs.withdraw(self.producer)
        self.batch.stop()
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listener.cancel()
        for connection in tuple(self._connections):
            connection.reset()
        await self._empty.wait()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call after some seconds."""
        return self._loop.call_later(seconds, call)

    def _faults_changed(self) -> None:
        if not self._running:
            return
        refuse = self.faults.find(FaultName.REFUSE)
        if refuse is not None and self._listener.listening:
            self._listener.close()
            for connection in tuple(self._connections):
                if connection.idle:
                    connection.close()
            if refuse.seconds is not None:
                self.later(refuse.seconds, partial(self.faults.lift, refuse))
        elif refuse is None and not self._listener.listening:
            self._listener.open(self.host, self.port)

    # What connections call.

    def opened(self, connection: Connection) -> bool:
        """A client has connected."""
        self.stats.connections_opened += 1
        self.stats.connections += 1
        connection.number = self.stats.connections_opened
        self._connections.add(connection)
        self._empty.clear()
        return self._running and not self.faults.strikes_connection()

    def closed(self, connection: Connection) -> None:
        """A connection is over."""
        self.stats.connections -= 1
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def handle(self, request: Request, reply: Reply) -> None:
        """Answer a request, as its path says."""
        base = self.options.base_path.encode()
        known = request.target.startswith(base)
        request.target = request.target.removeprefix(base)
        methods = self._routes.get(request.path) if known else None
        method = "GET" if request.method == "HEAD" else request.method
        if methods is None:
            reply.whole(404, b'{"detail":"Not Found"}')
        elif method not in methods:
            reply.whole(405, b'{"detail":"Method Not Allowed"}')
        elif not self._authorized(request):
            reply.whole(401, b'{"error":"Unauthorized"}')
        else:
            methods[method](request, reply)

    def _authorized(self, request: Request) -> bool:
        if self.options.api_key is None or not request.path.startswith("/v1/"):
            return True
        return request.header(b"authorization") == f"Bearer {self.options.api_key}".encode()

    # Completions.

    def _completion(self, request: Request, reply: Reply) -> None:
        leg: Leg | None = None
        try:
            body = _object(request.body)
            if body.get("model") not in (None, self.options.model):
                raise RequestError(
                    f"The model `{body['model']}` does not exist. Valid aliases: {self.options.model}.",
                    status=404,
                    param="model",
                )
            leg = _leg(body)
            if leg is not Leg.WHOLE and self.options.role not in ("both", leg):
                raise RequestError(f"This is a {self.options.role} engine; it serves no {leg} leg.")
            answer = self._answer(request, reply, leg, body)
        except RequestError as problem:
            reply.whole(problem.status, shapes.error(problem.message, problem.status, problem.param))
            return
        finally:
            self.requests.append(Seen(request.path, leg, request.headers, request.body, request.connection))
        if not answer.begin():
            return
        if leg is not Leg.DECODE:
            answer.compute()
            return
        handoff, digest = body["kv_transfer_params"], answer.script.digest
        producer = handoffs.find(handoff)
        if producer is not None:
            self._use(answer, producer.take(str(handoff["remote_request_id"]), digest.hex()))
        else:
            self._run(self._ask(answer, handoff, digest))

    def _answer(self, request: Request, reply: Reply, leg: Leg, body: dict[str, Any]) -> Answer:
        chat = request.path == "/v1/chat/completions"
        try:
            wishes = directives.read(body.get("sim"))
        except ValueError as problem:
            raise RequestError(str(problem), param="sim") from None
        if wishes.text is None and wishes.output_tokens is None:
            wishes = replace(wishes, text=self.options.answer)
        cached: int | None = wishes.cached_tokens
        unique = (request.header(b"x-request-id") or uuid.uuid4().hex.encode()).decode("latin-1")
        request_id = f"{'chatcmpl' if chat else 'cmpl'}-{unique}"
        created = int(time.time())

        def plan(spoiled: bool) -> Shape:
            planned = script.plan(
                chat,
                body,
                wishes,
                default_seed=self.options.seed,
                max_model_len=self.options.max_model_len,
                spoiled=spoiled,
            )
            told = cached
            if leg is Leg.DECODE:
                told = body["kv_transfer_params"].get("remote_prefill_cached_tokens", len(planned.prompt_ids))
            return (ChatShape if chat else CompletionShape)(
                request_id=request_id,
                created=created,
                model=self.options.model,
                body=body,
                script=planned,
                cached_tokens=told if self.options.prompt_tokens_details else None,
                reasoning_field=wishes.reasoning_field or self.options.reasoning_field,
            )

        own = {fault.name: fault for fault in wishes.fault if fault.fits(leg)}
        return Answer(
            self,
            reply,
            plan,
            leg=leg,
            request_id=request_id,
            stream=body.get("stream") is True,
            wishes=wishes,
            faults=self.faults.strike(leg) | own,
            cached_tokens=cached if self.options.hands_over_cached_tokens else None,
        )

    async def _ask(self, answer: Answer, handoff: dict[str, Any], digest: bytes) -> None:
        self._use(answer, await handoffs.ask(handoff, digest))

    def _use(self, answer: Answer, taken: Taken) -> None:
        """Go on with a decode leg, now that it is known what became of its handoff."""
        if taken is Taken.GONE:
            answer.producer_gone(self.options.gone_handoff_s)
            return
        self.external_tokens += answer.prompt_tokens
        answer.compute(spoiled=taken is Taken.SPOILED)

    # Everything else.

    def _models(self, _: Request, reply: Reply) -> None:
        card = {
            "id": self.options.model,
            "object": "model",
            "created": int(self._started_at),
            "owned_by": "vllm",
            "root": self.options.model,
            "parent": None,
            "max_model_len": self.options.max_model_len,
            "permission": [],
        }
        reply.whole(200, orjson.dumps({"object": "list", "data": [card]}))

    def _health(self, _: Request, reply: Reply) -> None:
        fault = self.faults.find(FaultName.UNHEALTHY)
        reply.whole(200 if fault is None else fault.status, b"")

    def _version(self, _: Request, reply: Reply) -> None:
        reply.whole(200, orjson.dumps({"version": shapes.VERSION}))

    def _metrics(self, _: Request, reply: Reply) -> None:
        lines = self.stats.lines(
            self.options.model, self._started_at, self.batch.running, self.batch.waiting, self.external_tokens
        )
        text = "\n".join(lines) + "\n"
        reply.whole(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _tokenize(self, request: Request, reply: Reply) -> None:
        try:
            body = _object(request.body)
            ids = script.prompt_ids("messages" in body, body)
        except RequestError as problem:
            reply.whole(problem.status, shapes.error(problem.message, problem.status, problem.param))
            return
        strings = [vocabulary.decode([token]) for token in ids] if body.get("return_token_strs") else None
        value = {
            "count": len(ids),
            "max_model_len": self.options.max_model_len,
            "tokens": ids,
            "token_strs": strings,
        }
        reply.whole(200, orjson.dumps(value))

    def _get_faults(self, _: Request, reply: Reply) -> None:
        reply.whole(200, orjson.dumps([asdict(fault) for fault in self.faults]))

    def _set_faults(self, request: Request, reply: Reply) -> None:
        try:
            faults = read_faults(orjson.loads(request.body))
        except ValueError as problem:  # orjson's error is one too
            reply.whole(400, shapes.error(str(problem), 400))
            return
        self.faults.set(*faults)
        reply.whole(200, orjson.dumps([asdict(fault) for fault in faults]))

    def _take(self, request: Request, reply: Reply) -> None:
        """Another process' engine asks for a handoff."""
        try:
            question = _object(request.body)
            mine = question["engine_id"] == self.producer.engine_id
            taken = (
                self.producer.take(str(question["request_id"]), str(question["digest"]))
                if mine
                else Taken.GONE
            )
        except (RequestError, KeyError):
            reply.whole(400, shapes.error("the question must have engine_id, request_id and digest", 400))
            return
        reply.whole(200, orjson.dumps({"taken": taken}))


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as problem:
        raise RequestError(f"Invalid JSON: {problem}", param="body") from None
    if not isinstance(body, dict):
        raise RequestError("The body must be a JSON object.", param="body")
    return body


_HANDOFF_FIELDS = ("remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port")


def _leg(body: dict[str, Any]) -> Leg:
    """What the request is. vLLM, too, computes the prompt itself when a handoff lacks a member."""
    params = body.get("kv_transfer_params")
    if params is None:
        return Leg.WHOLE
    if not isinstance(params, dict):
        raise RequestError("kv_transfer_params must be an object", param="kv_transfer_params")
    if params.get("do_remote_decode"):
        return Leg.PREFILL
    whole = all(params.get(name) is not None for name in _HANDOFF_FIELDS)
    return Leg.DECODE if params.get("do_remote_prefill") and whole else Leg.WHOLE
