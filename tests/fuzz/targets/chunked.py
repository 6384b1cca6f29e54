"""A chunked body, decoded."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from narwhal._fast.chunked import ChunkedDecoder
from tests.fast.oracles import chunked as oracle
from tests.fuzz import changes
from tests.fuzz.reads import cuts, exactly
from tests.recordings import recordings

WORDS = (
    *(b"0", b"5", b"a", b"FF", b"0000000000000005", b"4000000000000000", b"4000000000000001", b"+", b"0x5"),
    *(
        b";",
        b' ; a="\xe9"',
        b"\t",
        b" ",
        b"A: b",
        b"!~:",
        b"\x7f",
        b"\0",
        b"x" * 1000,
        b"hello",
        b"0\r\n\r\n",
    ),
)


def _coded(payload: bytes, random: Random) -> bytes:
    coded = b""
    while payload:
        size = random.randrange(1, 40)
        coded += b"%x\r\n%b\r\n" % (len(payload[:size]), payload[:size])
        payload = payload[size:]
    return coded + b"0\r\n\r\n"


def seeds() -> Iterator[bytes]:
    """Recorded bodies, and payloads coded anew."""
    random = Random(3)
    for recording in recordings().values():
        if b"chunked" in recording.head:
            yield recording.raw[len(recording.head) :][-1000:]
            yield _coded(recording.payload[:100], random)


def change(data: bytes, random: Random) -> bytes:
    """Another body: another line of it, or its payload in other chunks."""
    if random.random() < 0.2:
        return _coded(oracle.decode(data).payload, random)
    return changes.lines(data, random, WORDS)


def _decoded(pieces: list[bytes]) -> oracle.Decoded:
    decoder = ChunkedDecoder()
    payload = b""
    try:
        for piece in pieces:
            payload += decoder.feed(exactly(piece))
    except ValueError:
        return oracle.Decoded("bad", payload, b"")
    return oracle.Decoded("end" if decoder.done else "more", payload, decoder.unused)


def check(data: bytes) -> None:
    """Payload, end and verdict are the oracle's, whatever the reads."""
    expected = oracle.decode(data)
    for pieces in cuts(data):
        seen = _decoded(pieces)
        if expected.verdict == "bad" and len(pieces) < len(data):
            # What came with the first malformed byte in one read is not handed out.
            assert seen.verdict == "bad", seen
            assert expected.payload.startswith(seen.payload), seen
        else:
            assert seen == expected, (seen, expected)
