#!/usr/bin/env python3
"""Records what real engines answer, byte for byte, as test data.

    tools/record_streams.py tests/data/streams/vllm-0.32

It starts a fleet of its own (see vllm_cpu_fleet.py), asks each question below, and writes each answer to
NAME.http as it came from the socket, head, chunk sizes and all; index.json says what was asked. Most of them
are asked twice, once as a stream and once not, with the same seed: NAME-stream and NAME-whole hold the same
tokens, so that one can be put together from the other and compared. IDs and times differ from run to run.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it runs as a plain script too

from tools.vllm_cpu.environment import VLLM, SetupError
from tools.vllm_cpu.fleet import BLOCK_TOKENS, Engine, Fleet, FleetError

JSON = dict[str, Any]
MODEL = "tiny"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
READ_TIMEOUT_S = 60.0
TURN_END, THINK_END = 4, 3999  # of the tiny model's vocabulary
# What the router asks a prefill engine for.
PREFILL: JSON = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
# What it adds for a decode engine.
DECODE: JSON = {
    "stream": True,
    "return_token_ids": True,
    "stream_interval": 1,
    "stream_options": {"include_usage": True},
}
MESSAGES = [
    {"role": "system", "content": "You answer in one line."},
    {"role": "user", "content": "How does a whale sleep?"},
]
PROMPT = "A whale sleeps by"
# More than one block, else there is nothing to carry from engine to engine.
LONG_PROMPT = "The narwhal is a whale with a long tusk, and it lives in the cold seas of the north. " * 12
HARD_TEXT = 'Größe 日本語 🐋 "quoted" \\ {"token_ids":[1,2]} \u2028 \x7f\ttab\nline "token_ids":null'
CALLS = (
    'Wait. <tool_call>\n{"name": "get_weather", "arguments": {"place": "São Paulo", "unit": "C"}}\n'
    '</tool_call>\n<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call>'
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "enum": ["Oslo", "São Paulo"]},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["place", "unit"],
            "additionalProperties": False,
        },
    },
}
TIME = {
    "type": "function",
    "function": {
        "name": "get_time",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"type": "string", "enum": ["UTC"]}},
            "required": ["zone"],
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True, slots=True)
class Question:
    """One request, and why its answer is worth keeping."""

    name: str
    path: str
    body: JSON | bytes | None  # None: a GET
    about: str


@dataclass(slots=True)
class Recorder:
    """Asks, and keeps the answers."""

    folder: Path
    index: list[JSON] = field(default_factory=list)

    def ask(self, engine: Engine, question: Question) -> bytes:
        """Ask an engine, keep its answer, and return the payload. Raises OSError, ValueError."""
        raw = _exchange(engine.port, question)
        file = f"{question.name}.http"
        (self.folder / file).write_bytes(raw)
        head, _, rest = raw.partition(b"\r\n\r\n")
        payload = unchunk(rest) if b"transfer-encoding: chunked" in head.lower() else rest
        body = question.body
        self.index.append(
            {
                "name": question.name,
                "file": file,
                "about": question.about,
                "status": int(head.split(b" ", 2)[1]),
                "method": "GET" if body is None else "POST",
                "path": question.path,
                "request": body.decode() if isinstance(body, bytes) else body,
            }
        )
        print(f"{question.name}: {self.index[-1]['status']}, {len(payload)} bytes", flush=True)
        return payload

    def finish(self) -> None:
        """Write the index."""
        made_by = {"engine": VLLM, "command": "tools/record_streams.py tests/data/streams/vllm-0.32"}
        text = json.dumps(made_by | {"recordings": self.index}, indent=1, ensure_ascii=False)
        (self.folder / "index.json").write_text(text + "\n", encoding="utf-8")


def _exchange(port: int, question: Question) -> bytes:
    """Send one request on a fresh connection and return the raw reply."""
    body = question.body
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        f"{'GET' if body is None else 'POST'} {question.path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=READ_TIMEOUT_S) as connection:
        connection.sendall(head.encode() + data)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def unchunk(data: bytes) -> bytes:
    """The payload of a complete chunked body."""
    payload: list[bytes] = []
    while True:
        size, _, data = data.partition(b"\r\n")
        if (length := int(size, 16)) == 0:
            return b"".join(payload)
        payload.append(data[:length])
        data = data[length + 2 :]


def plain_questions() -> Iterator[Question]:
    """What one engine alone is asked."""
    ids, usage = {"return_token_ids": True}, {"stream_options": {"include_usage": True}}
    chat_logprobs = {"logprobs": True, "top_logprobs": 2}
    continuous = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    hard = {"structured_outputs": {"choice": [HARD_TEXT]}, "max_tokens": 120}
    empty = {"logit_bias": {str(TURN_END): 100.0}}
    tools = {"tools": [WEATHER, TIME], "tool_choice": "auto", "max_tokens": 200}
    calls = tools | {"structured_outputs": {"choice": [CALLS]}}
    cut = tools | {"tool_choice": "required", "max_tokens": 24}
    kinds: list[tuple[str, str, JSON, str]] = [
        ("chat", CHAT, {}, "nothing special"),
        ("chat-ids", CHAT, ids, "token IDs asked for"),
        ("chat-logprobs", CHAT, chat_logprobs, "logprobs"),
        ("chat-logprobs-ids", CHAT, chat_logprobs | ids, "logprobs and token IDs"),
        ("chat-hard", CHAT, hard, "text with escapes, several scripts, and what looks like a token-ID field"),
        ("chat-hard-ids", CHAT, hard | ids | chat_logprobs, "the same with token IDs and logprobs"),
        ("chat-empty", CHAT, empty | ids, "the turn ends at once"),
        ("chat-stop-token", CHAT, {"stop_token_ids": list(range(1000, 4000))} | ids, "a stop token ends it"),
        ("chat-tools", CHAT, calls, "text and two tool calls"),
        ("chat-tools-ids", CHAT, calls | ids, "text and two tool calls, token IDs"),
        ("chat-tools-logprobs", CHAT, calls | chat_logprobs, "text and two tool calls, logprobs"),
        ("chat-tools-cut-ids", CHAT, cut | ids, "max_tokens cuts a tool call: the whole reply has none"),
        ("completions", COMPLETIONS, {}, "nothing special"),
        ("completions-ids", COMPLETIONS, ids, "token IDs asked for"),
        ("completions-logprobs", COMPLETIONS, {"logprobs": 2}, "logprobs"),
        ("completions-logprobs-ids", COMPLETIONS, {"logprobs": 2} | ids, "logprobs and token IDs"),
        ("completions-echo", COMPLETIONS, {"echo": True}, "the prompt comes first"),
        (
            "completions-echo-ids",
            COMPLETIONS,
            {"echo": True} | ids,
            "echo, but token IDs asked for: no prompt",
        ),
        ("completions-echo-logprobs", COMPLETIONS, {"echo": True, "logprobs": 1}, "echo with logprobs"),
        (
            "completions-hard",
            COMPLETIONS,
            hard,
            "text with escapes, several scripts, and a false token-ID field",
        ),
        (
            "completions-hard-ids",
            COMPLETIONS,
            hard | ids | {"logprobs": 1},
            "the same with token IDs, logprobs",
        ),
        ("completions-empty", COMPLETIONS, empty | ids, "the turn ends at once"),
        (
            "completions-token-prompt",
            COMPLETIONS,
            {"prompt": [300, 301, 302, 303]} | ids,
            "a prompt of token IDs",
        ),
        ("completions-two", COMPLETIONS, {"n": 2, "max_tokens": 4} | ids, "two choices"),
    ]
    for name, path, extra, about in kinds:
        body = _body(path) | extra
        yield Question(f"{name}-stream", path, body | {"stream": True}, f"{about}; a stream")
        yield Question(f"{name}-whole", path, body, f"{about}; not a stream")
    for name, path, extra, about in (
        ("chat-usage-stream", CHAT, usage, "usage in a last event"),
        ("chat-usage-ids-stream", CHAT, usage | ids, "usage in a last event, token IDs"),
        ("chat-usage-each-stream", CHAT, continuous | ids, "usage in every event, token IDs"),
        ("completions-usage-stream", COMPLETIONS, usage, "usage in a last event"),
        ("completions-usage-ids-stream", COMPLETIONS, usage | ids, "usage in a last event, token IDs"),
        ("completions-usage-each-stream", COMPLETIONS, continuous | ids, "usage in every event, token IDs"),
        ("chat-interval-stream", CHAT, ids | {"stream_interval": 5}, "a stream interval of five tokens"),
    ):
        yield Question(name, path, _body(path) | extra | {"stream": True}, about)
    yield Question(
        "chat-context-error",
        CHAT,
        _body(CHAT) | {"messages": [{"role": "user", "content": "whale " * 3000}], "stream": True},
        "the prompt is longer than the context",
    )
    yield Question("chat-type-error", CHAT, _body(CHAT) | {"temperature": "hot"}, "a field of the wrong type")
    yield Question("chat-range-error", CHAT, _body(CHAT) | {"temperature": -1}, "a field out of range")
    yield Question("chat-model-error", CHAT, _body(CHAT) | {"model": "other"}, "a model it does not serve")
    yield Question("chat-json-error", CHAT, b'{"model": "tiny", "messages": [', "not JSON")
    yield Question("models", "/v1/models", None, "the models it serves")
    yield Question("health", "/health", None, "its health")
    yield Question("tokenize-chat", "/tokenize", _body(CHAT) | tools, "a whole chat body, sized")
    yield Question("tokenize-completions", "/tokenize", _body(COMPLETIONS), "a whole completion body, sized")


def _body(path: str) -> JSON:
    what: JSON = {"messages": MESSAGES} if path == CHAT else {"prompt": PROMPT}
    return {"model": MODEL} | what | {"max_tokens": 20, "temperature": 0.8, "seed": 11}


def record_plain(recorder: Recorder, engine: Engine) -> None:
    for question in plain_questions():
        recorder.ask(engine, question)
    for path, name in ((CHAT, "chat"), (COMPLETIONS, "completions")):
        answer = json.loads(_payload(recorder.folder, f"{name}-whole"))["choices"][0]
        text = answer["message"]["content"] if path == CHAT else answer["text"]
        body = _body(path) | {"stop": [text[12:15]], "return_token_ids": True}
        about = "a stop string ends it"
        recorder.ask(
            engine, Question(f"{name}-stop-stream", path, body | {"stream": True}, f"{about}; a stream")
        )
        recorder.ask(engine, Question(f"{name}-stop-whole", path, body, f"{about}; not a stream"))


def _payload(folder: Path, name: str) -> bytes:
    return (folder / f"{name}.http").read_bytes().partition(b"\r\n\r\n")[2]


def record_handoffs(recorder: Recorder, producer: Engine, consumer: Engine) -> None:
    """Both legs of a request as the router sends them, then the same with a producer that is gone."""
    long_messages = [{"role": "user", "content": LONG_PROMPT}]
    for path, name, what in (
        (CHAT, "chat", {"messages": long_messages}),
        (COMPLETIONS, "completions", {"prompt": LONG_PROMPT}),
    ):
        body = _body(path) | what
        one_token = body | {"max_tokens": 1, "stream": False, "kv_transfer_params": PREFILL}
        for turn, about in (
            ("", "the prefill leg"),
            ("-again", "the prefill leg of a prompt that it has cached"),
        ):
            prefill = json.loads(
                recorder.ask(producer, Question(f"{name}-prefill{turn}", path, one_token, about))
            )
            handoff = prefill["kv_transfer_params"]
            decode = body | DECODE | {"kv_transfer_params": handoff}
            recorder.ask(
                consumer, Question(f"{name}-decode{turn}", path, decode, f"the decode leg after {about}")
            )
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            gone = handoff | {"remote_engine_id": "gone", "remote_port": unused.getsockname()[1]}
        new = "again, " * (BLOCK_TOKENS * 2)  # a prompt that the consumer has not cached
        what = {"messages": [{"role": "user", "content": new}]} if path == CHAT else {"prompt": new}
        decode = body | what | DECODE | {"kv_transfer_params": gone}
        about = "the decode leg when the producer is gone"
        recorder.ask(
            consumer, Question(f"{name}-gone-stream", path, decode, f"{about}: an error at status 200")
        )
        whole = body | what | {"kv_transfer_params": gone}
        recorder.ask(consumer, Question(f"{name}-gone-whole", path, whole, f"{about}; not a stream"))


def record_reasoning(recorder: Recorder, engine: Engine) -> None:
    """An engine with a reasoning parser: what comes before `</think>` is reasoning."""
    ids, logprobs = {"return_token_ids": True}, {"logprobs": True, "top_logprobs": 1}
    thought = {"logit_bias": {str(THINK_END): 8.0}, "max_tokens": 40}
    for name, extra, about in (
        ("reasoning", {}, "never anything but reasoning"),
        ("reasoning-ids", ids, "never anything but reasoning, token IDs"),
        ("reasoning-answer", thought, "reasoning, then an answer"),
        ("reasoning-answer-ids", thought | ids, "reasoning, then an answer, token IDs"),
        ("reasoning-answer-logprobs", thought | logprobs, "reasoning, then an answer, logprobs"),
    ):
        body = _body(CHAT) | extra
        recorder.ask(engine, Question(f"{name}-stream", CHAT, body | {"stream": True}, f"{about}; a stream"))
        recorder.ask(engine, Question(f"{name}-whole", CHAT, body, f"{about}; not a stream"))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="record_streams.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the recordings go")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(options.folder)
    try:
        with tempfile.TemporaryDirectory() as state:
            with Fleet.up(Path(state), {"prefill": 1, "decode": 1}, model=MODEL) as fleet:
                record_handoffs(recorder, fleet.by_role("prefill"), fleet.by_role("decode"))
                record_plain(recorder, fleet.by_role("decode"))
            arguments = ("--reasoning-parser", "deepseek_r1")
            with Fleet.up(Path(state), {"both": 1}, model=MODEL, engine_args=arguments) as fleet:
                record_reasoning(recorder, fleet.by_role("both"))
    except (FleetError, SetupError, OSError, ValueError, LookupError) as error:
        print(f"record_streams.py: {error}", file=sys.stderr)
        return 1
    recorder.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
