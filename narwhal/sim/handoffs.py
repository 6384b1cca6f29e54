"""The KV caches that simulated engines keep for each other, and how one asks another for them.

A producer holds each handoff it has made until it is taken, once. Engines of one process find each other in a
table of those that run. An engine of another process is asked over HTTP at the address that the handoff
names, so a producer that has died is missed just as a real one is. What a decode engine does with the answer
is vLLM's way: a producer that is gone is an error after some seconds of silence; a handoff that was used
already, or that belongs to another prompt, is answered, with wrong tokens.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from enum import StrEnum
from typing import Any

import orjson

from narwhal.sim.stats import Stats

TAKE_PATH = "/sim/handoffs/take"
MOST_HELD = 100_000
BLOCK_TOKENS = 128
_ASK_TIMEOUT_S = 5.0


class Taken(StrEnum):
    """What became of asking for a handoff."""

    GOOD = "good"
    SPOILED = "spoiled"  # taken before, never made, or made of another prompt
    GONE = "gone"  # nobody answers for that producer


class Producer:
    """The handoffs that one engine holds."""

    def __init__(self, stats: Stats, host: str, port: int) -> None:
        self.engine_id = str(uuid.uuid4())
        self._stats, self._host, self._port = stats, host, port
        self._held: OrderedDict[str, str] = OrderedDict()  # request ID -> digest of its prompt
        self._next_block = 0

    def make(self, request_id: str, digest: bytes, tokens: int, cached: int | None) -> dict[str, Any]:
        """A new handoff, as vLLM's NIXL connector writes it."""
        unique = f"{request_id}-{uuid.uuid4().hex[:8]}"
        self._held[unique] = digest.hex()
        if len(self._held) > MOST_HELD:  # the oldest expire, as real ones do after some minutes
            self._held.popitem(last=False)
        blocks = range(self._next_block, self._next_block + -(-tokens // BLOCK_TOKENS))
        self._next_block = blocks.stop
        self._stats.handoffs_made += 1
        self._stats.handoffs_held = len(self._held)
        handoff = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(blocks)],
            "remote_engine_id": self.engine_id,
            "remote_request_id": unique,
            "remote_host": self._host,
            "remote_port": self._port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
        }
        return handoff if cached is None else handoff | {"remote_prefill_cached_tokens": cached}

    def take(self, request_id: str, digest: str) -> Taken:
        """Give a handoff away."""
        made_of = self._held.pop(request_id, None)
        self._stats.handoffs_held = len(self._held)
        if made_of != digest:
            self._stats.handoffs_spoiled += 1
            return Taken.SPOILED
        self._stats.handoffs_taken += 1
        return Taken.GOOD


_running: dict[str, Producer] = {}


def announce(producer: Producer) -> None:
    """The engine runs: others of this process may find it."""
    _running[producer.engine_id] = producer


def withdraw(producer: Producer) -> None:
    """The engine has stopped, and what it held is gone."""
    _running.pop(producer.engine_id, None)


def gone(handoff: dict[str, Any]) -> dict[str, Any]:
    """The same handoff, but of an engine that does not exist."""
    return handoff | {"remote_engine_id": str(uuid.uuid4()), "remote_host": "127.0.0.1", "remote_port": 1}


def find(handoff: dict[str, Any]) -> Producer | None:
    """A handoff's producer, if it runs in this process."""
    return _running.get(str(handoff.get("remote_engine_id")))


async def ask(handoff: dict[str, Any], digest: bytes) -> Taken:
    """Ask a producer in another process for a handoff."""
    question = {
        "engine_id": handoff.get("remote_engine_id"),
        "request_id": handoff.get("remote_request_id"),
        "digest": digest.hex(),
    }
    try:
        async with asyncio.timeout(_ASK_TIMEOUT_S):
            return await _ask(
                str(handoff.get("remote_host")), int(handoff["remote_port"]), orjson.dumps(question)
            )
    except (OSError, TimeoutError, EOFError, ValueError, KeyError, TypeError):
        return Taken.GONE


async def _ask(host: str, port: int, question: bytes) -> Taken:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        lines = (
            f"POST {TAKE_PATH} HTTP/1.1",
            f"host: {host}",
            f"content-length: {len(question)}",
            "connection: close",
        )
        writer.write("\r\n".join((*lines, "", "")).encode() + question)
        head_end = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head_end.split(b"\r\n", 1)[0]:
            return Taken.GONE
        return Taken(orjson.loads(await reader.read())["taken"])
    finally:
        writer.close()
