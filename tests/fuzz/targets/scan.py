"""An event's JSON, read and excised."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from random import Random

from narwhal._fast.scan import excise, scan, tally
from tests.fast.engine_streams import Writer
from tests.fast.oracles import scan as oracle
from tests.fuzz import changes
from tests.recordings import recordings

NAMES = tuple(
    name.encode()
    for name in sorted(
        oracle.READ_AT_TOP | oracle.READ_IN_CHOICE | oracle.READ_IN_USAGE | {"cached_tokens", "id"}
    )
)


def events_recorded() -> Iterator[bytes]:
    """Events that real engines sent, a few of each stream."""
    for name, recording in recordings().items():
        if name.endswith("-stream"):
            texts = [text.removeprefix(b"data: ") for text in recording.payload.split(b"\n\n")]
            yield from (*texts[:2], *texts[-4:-2])


def seeds() -> Iterator[bytes]:
    """Events recorded, written and small."""
    yield from events_recorded()
    yield b'{"choices":[{"token_ids":[1]}]}'
    yield b'{"choices":[{"delta":{"token_ids":[1]},"message":{"prompt_text":""}}],"usage":null}'
    yield b'{"error":{"code":1},"usage":{"prompt_tokens_details":{"cached_tokens":1}}}'
    for sequence in changes.SEQUENCES:
        yield b'{"choices":[{"text":"%b"}]}' % sequence
    random = Random(1)
    for n in range(200):
        yield Writer(random.randbytes(200), chat=n % 2 == 0, odd=n % 4 > 1).event().encode()


def change(data: bytes, random: Random) -> bytes:
    """Another event."""
    return changes.json_text(data, random, NAMES)


def _refused(read: Callable[[bytes], object], data: bytes) -> None:
    try:
        complaint = f"none, but {read(data)}"
    except ValueError as error:
        complaint = str(error)
    place = re.match(r"byte (\d+): .", complaint)
    assert place, complaint
    assert int(place[1]) <= len(data), complaint


def check(data: bytes) -> None:
    """It is read as the oracle reads it, and so is what excision leaves."""
    try:
        expected = oracle.scan(data)
    except ValueError:
        _refused(scan, data)
        _refused(excise, data)
        return
    found = scan(data)
    assert found._replace(spans=()) == expected, (found, expected)
    assert tally([data, data]) == (2 * found.has_output, 2 * found.id_count)
    left = excise(data)
    assert left == oracle.excise(data), left
    assert oracle.loads(left) == oracle.without_ids(oracle.loads(data)), left
    edges = [edge for span in found.spans for edge in span]
    assert edges == sorted(set(edges)), edges
    assert scan(left).spans == (), left
