"""A visit to one engine: its pages are asked for one after another, over the connections and with the key
that the router would use, and what they say is held against the fleet file.

A *problem* means that the engine can't serve as the file has it. A *remark* is worth knowing and no more.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from narwhal.config import Dialect, EngineConfig, FleetConfig
from narwhal.engines.engine import Engine, engines_of
from narwhal.engines.leg import LegLost, Reply
from narwhal.engines.pages import Card, read_metrics, read_models, read_version
from narwhal.engines.pool import ConnectionFailed, Exhausted

AT_ONCE = 256  # engines visited at a time
_SHOWN_MODELS = 5


@dataclass(slots=True)
class Visit:
    """What was found at one engine."""

    engine: EngineConfig
    path: str  # its place in the fleet file
    reached: bool = False
    model: Card | None = None  # the configured one, as the engine has it
    version: str | None = None
    started_at: float | None = None
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        """Whether nothing is known to be in the way."""
        return not self.problems


async def visit_all(config: FleetConfig, timeout_s: float) -> list[Visit]:
    """Visit every engine, many at a time, each for `timeout_s` at the most."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def in_turn(engine: Engine, visit: Visit) -> None:
        async with turns:
            try:
                await _visit(engine, visit, config, timeout_s)
            finally:
                await engine.pool.close()

    visits = [Visit(engine, f"engines[{index}]") for index, engine in enumerate(config.engines)]
    async with asyncio.TaskGroup() as group:
        for engine, visit in zip(engines_of(config), visits, strict=True):
            group.create_task(in_turn(engine, visit))
    return visits


async def _visit(engine: Engine, visit: Visit, config: FleetConfig, timeout_s: float) -> None:
    page = ""
    pages: dict[str, Reply] = {}
    try:
        async with asyncio.timeout(timeout_s):
            for page in ("/health", "/v1/models", "/version", "/metrics"):
                pages[page] = await _get(engine, page)
                visit.reached = True
    except TimeoutError:
        visit.problems.append(
            f"GET {page} was not answered within {timeout_s:g} s. It may still be starting, or hang: its log "
            "says more; or give it longer with --timeout"
        )
    except Exhausted as error:
        visit.problems.append(f"it could not be visited: {error}")
    except ConnectionFailed as error:
        visit.problems.append(f"it can't be reached: {error}. {_advice(str(error), visit)}")
    except LegLost as error:
        scheme = visit.engine.url.scheme
        other = "" if scheme == "https" else f"; if it speaks TLS, write https:// in {visit.path}.url"
        visit.problems.append(f"GET {page} failed: {error}. Its log may say why{other}")
    judge(visit, pages, config)


async def _get(engine: Engine, page: str) -> Reply:
    future: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
    leg = engine.get(page, future)
    try:
        reply = await future
    finally:
        leg.abort()
    assert reply is not None
    return reply


def _advice(error: str, visit: Visit) -> str:
    if error.startswith("TLS"):
        return (
            "If a CA of your own signed its certificate, name that CA's file in engine.ca_file; if it speaks "
            f"plain HTTP, write http:// in {visit.path}.url"
        )
    return f"Is it running, and is {visit.engine.url} its address ({visit.path}.url)?"


def judge(visit: Visit, pages: dict[str, Reply], config: FleetConfig) -> None:
    """Hold the pages that came against the fleet file."""
    if {page for page, reply in pages.items() if reply.status == 404} >= {"/health", "/v1/models"}:
        visit.problems.append(
            "GET /health and GET /v1/models were both answered with 404: it is probably no engine. Is "
            f"{visit.engine.url} an engine's address, without /v1 ({visit.path}.url)?"
        )
        return
    if "/health" in pages:
        _judge_health(visit, pages["/health"])
    if "/v1/models" in pages:
        _judge_models(visit, pages["/v1/models"], config)
    if "/version" in pages and pages["/version"].status == 200:
        visit.version = read_version(pages["/version"].body)
    if "/metrics" in pages:
        _judge_dialect(visit, pages["/metrics"])


def _judge_health(visit: Visit, reply: Reply) -> None:
    if reply.status == 200:
        return
    said = f"GET /health was answered with {reply.status}"
    if visit.engine.dialect is Dialect.OPENAI and reply.status in (404, 405):
        visit.remarks.append(f"{said}: it has no such page")
    elif reply.status == 404:
        visit.problems.append(f"{said}: it is probably no vLLM engine, for those have this page")
    else:
        visit.problems.append(f"{said}: it is not fit to serve now; its log says more")


def _judge_models(visit: Visit, reply: Reply, config: FleetConfig) -> None:
    if reply.status in (401, 403):
        variable = config.engine.api_key_env
        advice = (
            f"the key in {variable} (engine.api_key_env) is not one it takes"
            if variable
            else "it asks for a key: name the environment variable that holds it in engine.api_key_env"
        )
        visit.problems.append(f"GET /v1/models was answered with {reply.status}: {advice}")
        return
    cards = read_models(reply.body) if reply.status == 200 else None
    if cards is None:
        visit.problems.append(
            f"GET /v1/models was answered with {reply.status} and no list of models: is it an "
            f"OpenAI-compatible server, and {visit.engine.url} its address without /v1 ({visit.path}.url)?"
        )
        return
    visit.model = next((card for card in cards if card.name == config.model), None)
    if visit.model is None:
        names = ", ".join(card.name for card in cards[:_SHOWN_MODELS]) or "none"
        visit.problems.append(
            f"it does not serve the model {config.model}, but {names}: set `model` to what the engines "
            f"serve, or start it with --served-model-name {config.model}"
        )


def _judge_dialect(visit: Visit, reply: Reply) -> None:
    metrics = read_metrics(reply.body if reply.status == 200 else b"")
    visit.started_at = metrics.started_at
    is_vllm = metrics.of_vllm or (visit.model is not None and visit.model.owner == "vllm")
    if visit.engine.dialect is Dialect.OPENAI:
        if is_vllm:
            visit.remarks.append(
                f"it looks like vLLM: with `dialect: vllm` ({visit.path}) its tokens are counted"
            )
        return
    if not is_vllm and visit.version is None:
        visit.problems.append(
            "nothing says that it is vLLM: no /version, no figures of vLLM's on /metrics, no model owned by "
            f"vllm. If it is another server, set `dialect: openai` and `role: both` ({visit.path})"
        )
    elif not metrics.of_vllm:
        visit.remarks.append("it has no figures of vLLM's on /metrics")


def compare(visits: list[Visit]) -> list[str]:
    """What only shows when the engines are held against each other."""
    remarks = []
    lengths = {
        visit.engine.id: visit.model.max_model_len
        for visit in visits
        if visit.model is not None and visit.model.max_model_len is not None
    }
    if len(set(lengths.values())) > 1:
        remarks.append(
            f"The engines' longest contexts differ ({_listed(lengths)}): a request that one takes may be "
            "turned down by another"
        )
    versions = {visit.engine.id: visit.version for visit in visits if visit.version is not None}
    if len(set(versions.values())) > 1:
        remarks.append(
            f"The engines' versions differ ({_listed(versions)}): they may not take each other's KV caches"
        )
    return remarks


def _listed(values: dict[str, int] | dict[str, str]) -> str:
    by_value: dict[int | str, list[str]] = {}
    for engine, value in values.items():
        by_value.setdefault(value, []).append(engine)
    return "; ".join(
        f"{value}: {', '.join(ids[:_SHOWN_MODELS])}{' ...' if len(ids) > _SHOWN_MODELS else ''}"
        for value, ids in by_value.items()
    )
