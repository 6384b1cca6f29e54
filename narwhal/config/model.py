"""The table of keys. Each field is one key of the fleet file; its metadata says what is allowed and what it
is for.

The reader, the error messages and the documentation's table all go by these fields, so a key is added in one
place. A section is a dataclass of its own. A field without a default is a required key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from narwhal.config.kinds import (
    BYTES,
    SEATS,
    SECONDS,
    Boolean,
    CaFile,
    EngineUrl,
    EnvironmentVariable,
    FilePath,
    Host,
    Integer,
    Kind,
    NewFile,
    Number,
    OneOf,
    Text,
    Url,
)


class Role(StrEnum):
    """What an engine is placed for."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"  # no split: one leg does all


class Dialect(StrEnum):
    """How an engine is spoken to."""

    VLLM = "vllm"  # supplies token IDs and KV handoffs
    OPENAI = "openai"  # any OpenAI-compatible server: neither


class Sizing(StrEnum):
    """How a request's input length becomes known."""

    ESTIMATE = "estimate"
    EXACT = "exact"


class Admission(StrEnum):
    """What decides whether a request may come in, beside the limits."""

    PREDICTIVE = "predictive"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Key:
    """What the table knows of one scalar key."""

    kind: Kind
    doc: str
    inherits: str = ""  # path of the key whose value this one takes when it is not given


@dataclass(frozen=True, slots=True)
class Section:
    """A key whose value is a mapping with keys of its own, or a list of those."""

    table: type
    doc: str
    many: bool = False


def _key(kind: Kind, doc: str, inherits: str = "") -> dict[str, Any]:
    return {"narwhal": Key(kind, doc, inherits)}


def _section(table: type, doc: str, many: bool = False) -> dict[str, Any]:
    return {"narwhal": Section(table, doc, many)}


_ID = Text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "letters, digits, and . _ - after the first; at most 64")
_MODEL = Text(r"\S(?:.{0,254}\S)?", "1 to 256 printable characters, no space at either end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """The latency targets of a request that brings none of its own."""

    ttft_s: float = field(metadata=_key(SECONDS, "target for the time to the first token"))
    tpot_s: float = field(metadata=_key(SECONDS, "target for the time per output token after the first"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine, with what it does not set itself filled in."""

    id: str = field(metadata=_key(_ID, "its name in metrics, logs and the journal; unique"))
    url: EngineUrl = field(metadata=_key(Url(), "its base URL, without /v1; unique"))
    role: Role = field(metadata=_key(OneOf(Role), "what it is placed for; `both` runs whole requests"))
    dialect: Dialect = field(
        default=Dialect.VLLM,
        metadata=_key(OneOf(Dialect), "how it is spoken to; `openai` has role `both` only", "engine.dialect"),
    )
    prefill_concurrency: int = field(
        default=8, metadata=_key(SEATS, "its seats for prefill", "serving.prefill_concurrency")
    )
    decode_concurrency: int = field(
        default=256, metadata=_key(SEATS, "its seats for decode", "serving.decode_concurrency")
    )
    kv_capacity_tokens: int | None = field(
        default=None,
        metadata=_key(
            Integer(1, 2**53),
            "tokens that its KV cache holds: a limit with admission `predictive`. None: no limit known",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConfig:
    """The router's own server and its limits."""

    host: str = field(default="127.0.0.1", metadata=_key(Host(), "address to listen on"))
    port: int = field(default=8000, metadata=_key(Integer(0, 65535), "port to listen on; 0: any free one"))
    admission: Admission = field(
        default=Admission.PREDICTIVE,
        metadata=_key(
            OneOf(Admission),
            "`predictive` refuses what would miss its TTFT or TPOT or find no room for its KV cache; `open` "
            "does not",
        ),
    )
    admission_margin: float = field(
        default=0.0, metadata=_key(Number(above=-1, most=10), "widens the budget: ttft_s * (1 + margin)")
    )
    retention_limit: int = field(default=1024, metadata=_key(SEATS, "requests held over HTTP at once"))
    queue_capacity: int = field(
        default=256, metadata=_key(Integer(0, 1_000_000), "requests waiting for a seat")
    )
    queue_timeout_s: float = field(default=10.0, metadata=_key(SECONDS, "the longest wait for a seat"))
    prefill_concurrency: int = field(default=8, metadata=_key(SEATS, "prefill seats of an engine"))
    decode_concurrency: int = field(default=256, metadata=_key(SEATS, "decode seats of an engine"))
    request_timeout_s: float = field(
        default=600.0, metadata=_key(SECONDS, "a request's deadline, from its arrival; outranks the others")
    )
    prefill_timeout_s: float = field(default=120.0, metadata=_key(SECONDS, "the longest prefill leg"))
    first_token_timeout_s: float = field(
        default=30.0, metadata=_key(SECONDS, "the longest wait for output of a decode leg")
    )
    stream_idle_timeout_s: float = field(
        default=60.0, metadata=_key(SECONDS, "the longest silence of an engine between events")
    )
    max_request_bytes: int = field(default=4 << 20, metadata=_key(BYTES, "the largest request body"))
    max_response_bytes: int = field(default=16 << 20, metadata=_key(BYTES, "the largest whole response"))
    max_attempts: int = field(
        default=2, metadata=_key(Integer(1, 16), "attempts at one request, the first included")
    )
    continue_streams: bool = field(
        default=False,
        metadata=_key(Boolean(), "go on elsewhere with an answer whose engine is lost, where that is exact"),
    )
    handoff_timeout_s: float = field(
        default=25.0,
        metadata=_key(
            SECONDS, "the oldest handoff sent on; keep it below the engines' own lease (vLLM: 30 s)"
        ),
    )
    retry_share: float = field(
        default=0.2,
        metadata=_key(Number(above=0, most=16), "further attempts that each request served pays for"),
    )
    retry_reserve: int = field(
        default=100,
        metadata=_key(Integer(0, 1_000_000), "further attempts saved up at most, and at the start"),
    )
    retry_backoff_s: float = field(
        default=0.05,
        metadata=_key(SECONDS, "the longest pause before a second attempt; doubled before each other"),
    )
    graceful_timeout_s: float = field(
        default=30.0, metadata=_key(SECONDS, "how long a stopping router lets requests finish")
    )
    head_timeout_s: float = field(
        default=10.0, metadata=_key(SECONDS, "how long a client may take over a request's head")
    )
    body_timeout_s: float = field(
        default=30.0, metadata=_key(SECONDS, "how long a client may pause while sending a body")
    )
    idle_timeout_s: float = field(
        default=75.0, metadata=_key(SECONDS, "how long an idle client connection stays open")
    )
    client_connection_limit: int = field(
        default=16384,
        metadata=_key(SEATS, "client connections open at once; fewer where `ulimit -n` allows no more"),
    )
    keepalive_s: float | None = field(
        default=None,
        metadata=_key(SECONDS, "send comments this often before the first output; fixes the status at 200"),
    )
    journal_path: str | None = field(
        default=None, metadata=_key(NewFile(), "JSON Lines file with one row per request")
    )
    control_token_env: str | None = field(
        default=None,
        metadata=_key(EnvironmentVariable(), "variable with the bearer token for POST under /narwhal/"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDefaults:
    """What holds for every engine that does not say otherwise."""

    dialect: Dialect = field(default=Dialect.VLLM, metadata=_key(OneOf(Dialect), "how engines are spoken to"))
    sizing: Sizing = field(
        default=Sizing.ESTIMATE,
        metadata=_key(
            OneOf(Sizing), "input lengths: `estimate` (corrected by reports) or `exact` (asked for)"
        ),
    )
    api_key_env: str | None = field(
        default=None, metadata=_key(EnvironmentVariable(), "variable with the bearer token for engines")
    )
    ca_file: str | None = field(
        default=None, metadata=_key(CaFile(), "CAs for https engines, in place of the system's")
    )
    connect_timeout_s: float = field(default=5.0, metadata=_key(SECONDS, "the longest wait for a connection"))
    idle_connection_s: float = field(
        default=30.0, metadata=_key(SECONDS, "how long an idle engine connection is kept")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilesConfig:
    """Measured cost curves."""

    path: str | None = field(
        default=None, metadata=_key(FilePath(), "what `narwhal profile` measured; need not be there yet")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig:
    """How engines that fail leave the fleet, and how they come back."""

    eject_after: int = field(
        default=3, metadata=_key(Integer(1, 1000), "failures of one class in a row that call for a remedy")
    )
    liveness_interval_s: float = field(
        default=2.0, metadata=_key(SECONDS, "with liveness_misses: how soon an idle engine is found dead")
    )
    liveness_misses: int = field(
        default=3, metadata=_key(Integer(1, 100), "liveness probes missed in a row that eject an engine")
    )
    probe_timeout_s: float = field(
        default=10.0, metadata=_key(SECONDS, "the longest that a probe with inference may take")
    )
    readmit_ramp_s: float = field(
        default=30.0, metadata=_key(SECONDS, "how long until an engine that came back has all its seats")
    )
    monitor_failure_limit: int = field(
        default=5, metadata=_key(Integer(1, 1000), "failed passes in a row that make the router degraded")
    )
    state_path: str | None = field(
        default=None, metadata=_key(NewFile(), "file that keeps drains over a restart of the router")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """The fleet file."""

    model: str = field(metadata=_key(_MODEL, "the name clients ask for and engines serve"))
    slo: Slo = field(metadata=_section(Slo, "latency targets"))
    engines: tuple[EngineConfig, ...] = field(metadata=_section(EngineConfig, "the engines", many=True))
    serving: ServingConfig = field(
        default_factory=ServingConfig, metadata=_section(ServingConfig, "the router's own server and limits")
    )
    engine: EngineDefaults = field(
        default_factory=EngineDefaults, metadata=_section(EngineDefaults, "what holds for every engine")
    )
    profiles: ProfilesConfig = field(
        default_factory=ProfilesConfig, metadata=_section(ProfilesConfig, "measured cost curves")
    )
    recovery: RecoveryConfig = field(
        default_factory=RecoveryConfig,
        metadata=_section(RecoveryConfig, "how engines leave the fleet and come back"),
    )
