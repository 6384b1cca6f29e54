"""An event stream, cut into blocks and their fields."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from narwhal._fast.sse import SseDecoder, parse_fields
from tests.fast.oracles import sse as oracle
from tests.fuzz import changes
from tests.fuzz.reads import cuts, exactly
from tests.recordings import recordings

WORDS = (
    *(
        b"data: x",
        b"data:",
        b"data",
        b"event: error",
        b"event:",
        b": note",
        b"id: 1",
        b"retry",
        b"datax",
        b":",
    ),
    *(
        b"data: [DONE]",
        oracle.BOM,
        oracle.BOM[:2],
        b"\x0b",
        b"\x8a\x8d",
        b"\0",
        b" ",
        b"x" * 40,
        "é".encode(),
    ),
)


def seeds() -> Iterator[bytes]:
    """The beginnings of recorded streams, and lines."""
    for name, recording in recordings().items():
        if name.endswith("-stream"):
            yield recording.payload[:600]
    random = Random(2)
    for _ in range(100):
        yield b"".join(
            random.choice(WORDS) + random.choice((b"\n", b"\r\n", b"\r", b"\n\n")) for _ in range(6)
        )


def change(data: bytes, random: Random) -> bytes:
    """Another stream."""
    return changes.lines(data, random, WORDS)


def _decoded(pieces: list[bytes]) -> tuple[list[bytes], bytes]:
    decoder = SseDecoder()
    blocks: list[bytes] = []
    for piece in pieces:
        for block in decoder.feed(exactly(piece)):
            if block == b"\n":
                assert blocks[-1].endswith(b"\r"), blocks
                blocks[-1] += block
            else:
                blocks.append(block)
    return blocks, decoder.rest


def check(data: bytes) -> None:
    """Blocks and fields are the oracle's, whatever the reads."""
    blocks, rest = oracle.blocks(data)
    for pieces in cuts(data):
        assert _decoded(pieces) == (blocks, rest), pieces
    seen = []
    for number, block in enumerate(blocks):
        first, values, is_error, only_comments = parse_fields(exactly(block), first_block=number == 0)
        assert first == (values[0] if values else None)
        text = block.removeprefix(oracle.BOM) if number == 0 else block
        assert only_comments == all(line[:1] in (b"", b":") for line in text.splitlines()), block
        if values:
            seen.append((is_error, b"\n".join(values)))
    assert seen == [(event.type == b"error", event.data) for event in oracle.events(data)], seen
