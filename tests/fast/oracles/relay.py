"""The relay's oracle: what a client must get of an engine's stream, read off the whole of it at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import NoReturn

from narwhal._fast.assemble import Assembler, AssemblyError
from narwhal._fast.scan import Scan
from tests.fast.oracles import scan, sse


@dataclass(frozen=True)
class Asked:
    """What the client asked for, and what is known of the engine."""

    keep_ids: bool = False
    keep_usage: bool = False
    need_ids: bool = True
    cached_tokens: int | None = None
    limit: int = 1 << 24


@dataclass
class Told:
    """What comes of it. Places are bytes of the stream that must have come."""

    passed: list[tuple[int, bytes]] = field(default_factory=list)  # (place of its end, text), of each block
    outputs: list[int] = field(default_factory=list)  # places of the events with output or tokens
    done_at: int | None = None
    failure: str | None = None
    error_object: bytes | None = None
    tokens: int = 0
    output_events: int = 0
    dropped_after_done: int = 0
    prompt_tokens: int = -1
    completion_tokens: int = -1
    finished: bool = False

    @property
    def released_at(self) -> int | None:
        """The place from which on the client is sent something."""
        return self.outputs[0] if self.outputs else self.done_at

    @property
    def body(self) -> bytes:
        """All that the client is sent; nothing when assembling."""
        return b"" if self.released_at is None else b"".join(text for _, text in self.passed)

    def sizes(self, length: int) -> list[int]:
        """For each place up to `length`, the size of what the client has been sent by then."""
        sizes = [0] * (length + 1)
        if self.released_at is None:
            return sizes
        for end, text in self.passed:
            place = _complete_at(end, text)
            sizes[max(place, self.released_at)] += len(text) - (end - place)
            sizes[max(end, self.released_at)] += end - place
        return list(accumulate(sizes))


def _complete_at(end: int, text: bytes) -> int:
    """A block that ends in CRLF is complete with the CR, and its LF a byte that follows."""
    return end - 1 if text.endswith(b"\r\n") else end


def _edited(block: bytes, first: bool, data: bytes, facts: Scan, asked: Asked) -> bytes:
    """The block without what the client did not ask for, and with the true cached-tokens figure."""
    places = set(range(len(data)) if asked.keep_ids else scan.kept(data))
    new = {place: data[place : place + 1] for place in places}
    if asked.cached_tokens is not None and facts.cached_tokens >= 0:
        assert facts.cached_value is not None
        start, end = facts.cached_value
        for place in range(start, end):
            new[place] = str(asked.cached_tokens).encode() if place == start else b""
    out = b""
    at = 0  # in the data
    for number, line in enumerate(block.splitlines(keepends=True)):
        text = line.rstrip(b"\r\n")
        named = text.removeprefix(sse.BOM) if first and number == 0 else text
        name, _, value = named.partition(b":")
        if name != b"data":
            out += line
            continue
        size = len(value.removeprefix(b" "))
        out += text[: len(text) - size]
        out += b"".join(new.get(place, b"") for place in range(at, at + size))
        out += line[len(text) :]
        at += size + 1
    return out


class _Failed(Exception):
    pass


class _Reading:
    def __init__(self, asked: Asked, assembler: Assembler | None) -> None:
        self.asked = asked
        self.assembler = assembler
        self.told = Told()

    def fail(self, name: str) -> NoReturn:
        self.told.failure = name
        raise _Failed

    def block(self, block: bytes, first: bool, end: int) -> None:
        told, asked = self.told, self.asked
        # A byte order mark counts at the stream's start only.
        events = sse.events(block if first else b"\n" + block)
        if told.done_at is not None:
            told.dropped_after_done += len(events)
            return
        if len(block) - block.endswith(b"\r\n") > asked.limit:
            self.fail("broken_stream")
        text: bytes | None = None if self.assembler else block
        if events:
            text = self.event(block, first, events[0], _complete_at(end, block))
        if text is not None:
            told.passed.append((end, text))
        if (
            not self.assembler
            and told.released_at is None
            and sum(len(text) for _, text in told.passed) > asked.limit
        ):
            self.fail("broken_stream")

    def event(self, block: bytes, first: bool, event: sse.Event, place: int) -> bytes | None:
        """The block as it is passed on, if it is."""
        told, asked, data = self.told, self.asked, event.data
        if data == b"" and event.type != b"error":
            return None if self.assembler else block
        if data == b"[DONE]":
            if not told.outputs and not told.finished:
                self.fail("broken_stream")
            told.done_at = place
            return None if self.assembler else block
        try:
            facts = scan.scan(data)
        except ValueError:
            if event.type != b"error":
                self.fail("broken_stream")
            told.error_object = data
            self.fail("engine_error")
        if facts.error_object is not None or event.type == b"error":
            told.error_object = data[slice(*facts.error_object)] if facts.error_object else data
            self.fail("engine_error")
        self.count(facts, place)
        if self.assembler:
            try:
                self.assembler.add_event(data)
            except AssemblyError as error:
                self.fail("response_too_large" if error.too_large else "assembly")
            return None
        if facts.has_usage and facts.choices <= 0 and not asked.keep_usage:
            return None
        return _edited(block, first, data, facts, asked)

    def count(self, facts: Scan, place: int) -> None:
        told = self.told
        if self.asked.need_ids:
            if facts.ids == scan.MALFORMED or (facts.has_output and facts.ids != scan.VALID):
                self.fail("token_ids")
            told.tokens += facts.id_count
        told.output_events += facts.has_output
        if facts.has_output or facts.id_count:
            told.outputs.append(place)
        told.finished |= facts.finished
        if 0 <= facts.prompt_tokens < 2**31:
            told.prompt_tokens = facts.prompt_tokens
        if 0 <= facts.completion_tokens < 2**31:
            told.completion_tokens = facts.completion_tokens


def relay(stream: bytes, asked: Asked, assembler: Assembler | None = None) -> Told:
    """What comes of a stream that ends where it does."""
    reading = _Reading(asked, assembler)
    end = 0
    try:
        for number, block in enumerate(sse.blocks(stream)[0]):
            end += len(block)
            reading.block(block, number == 0, end)
        if reading.told.done_at is None:
            reading.fail("broken_stream")
    except _Failed:
        pass
    return reading.told
