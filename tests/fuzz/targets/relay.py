"""An event stream, relayed to a client or put together, from its bytes to what the client gets.

An input is a byte of switches, and the stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from narwhal._fast.assemble import Assembler
from tests.fast.engine_streams import Writer
from tests.fast.oracles import relay as oracle
from tests.fast.oracles.relay import Asked
from tests.fast.recordings import event_streams
from tests.fast.test_relay import Client, deliver
from tests.fuzz import changes
from tests.fuzz.reads import cuts
from tests.fuzz.targets import scan, sse

KEEP_IDS, KEEP_USAGE, ANY_IDS, FIGURE, FRAMED, SMALL, WHOLE, CHAT = (1 << bit for bit in range(8))


def _input(switches: int, blocks: list[bytes]) -> bytes:
    return bytes([switches]) + b"\n\n".join(blocks) + b"\n\n"


def seeds() -> Iterator[bytes]:
    """Streams recorded and written, with every switch."""
    for number, recording in enumerate(event_streams()):
        blocks = recording.payload.split(b"\n\n")[:-1]
        yield _input(number * 37 % 128 | CHAT * recording.chat, [*blocks[:2], *blocks[-3:]])
    random = Random(5)
    for switches in range(256):
        events = Writer(random.randbytes(300), bool(switches & CHAT), odd=switches % 3 == 0).stream()
        blocks = [
            b"data: " + event.replace(b"\r\n", b"\ndata: ").replace(b"{\n", b"{\rdata:") for event in events
        ]
        yield _input(switches, [b": note", *blocks, b"data: [DONE]", b": late"])


def change(data: bytes, random: Random) -> bytes:
    """Another switch, line or event."""
    if not data or random.random() < 0.05:
        return bytes([random.randrange(256)]) + data[1:]
    stream = data[1:]
    at = stream.find(b"data:", random.randrange(len(stream) + 1)) + 5
    end = stream.find(b"\n\n", at)
    if min(at - 5, end) < 0 or random.random() < 0.4:
        return data[:1] + changes.lines(stream, random, sse.WORDS)
    event = changes.json_text(stream[at:end], random, scan.NAMES)
    return data[:1] + stream[:at] + event + stream[end:]


def check(data: bytes) -> None:
    """The client is told what the oracle says, whatever the reads."""
    switches, stream = data[0] if data else 0, data[1:]
    asked = Asked(
        keep_ids=bool(switches & KEEP_IDS),
        keep_usage=bool(switches & KEEP_USAGE),
        need_ids=not switches & ANY_IDS,
        cached_tokens=1234 if switches & FIGURE else None,
        limit=300 if switches & SMALL else 1 << 24,
    )
    assembled = _assembler(switches)
    told = oracle.relay(stream, asked, assembled)
    sizes = told.sizes(len(stream))
    for pieces in cuts(stream):
        assembler = _assembler(switches)
        deliver(Client(asked, bool(switches & FRAMED), assembler), pieces, told, sizes)
        assert _answer(assembler) == _answer(assembled)


def _assembler(switches: int) -> Assembler | None:
    if not switches & WHOLE:
        return None
    return Assembler(bool(switches & CHAT), bool(switches & KEEP_IDS), 3000)


def _answer(assembler: Assembler | None) -> bytes | str:
    try:
        return assembler.finish(1, 2) if assembler else b""
    except ValueError as error:
        return str(error)
