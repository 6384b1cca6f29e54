"""Server-sent events: every block is given as soon as it is complete, however reads cut the stream, and its
fields mean what the specification says."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from narwhal._fast.sse import SseDecoder, parse_fields
from tests.fast.oracles import sse as oracle
from tests.fast.splits import CUTS, splits

NAMES = [b"data", b"event", b"id", b"retry", b"dat", b"data ", b"Data", b"datax", b"eventx", b""]
VALUES = [
    b"",
    b" ",
    b"  x",
    b"error",
    b" error",
    b"error ",
    b"[DONE]",
    b"a:b",
    b"\0\t\x0b\x0c",
    "é漢😀".encode(),
]
LINES = st.one_of(
    st.builds(lambda name, value: name + b":" + value, st.sampled_from(NAMES), st.sampled_from(VALUES)),
    st.sampled_from([b"", b"", b"data", b"event", b"data:" + b"x" * 70, oracle.BOM, oracle.BOM + b"data:x"]),
    st.binary(max_size=4),
)
STREAMS = st.builds(
    lambda bom, lines: bom + b"".join(line + end for line, end in lines),
    st.sampled_from([b"", oracle.BOM, oracle.BOM[:2]]),
    st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\n", b"\r\n", b"\r", b""])), max_size=12),
)


def decode(pieces: list[bytes]) -> list[bytes]:
    """The blocks of a stream fed in these pieces, checked after each of them."""
    decoder = SseDecoder()
    blocks: list[bytes] = []
    fed = b""
    for piece in pieces:
        fed += piece
        for block in decoder.feed(piece):
            if block == b"\n":
                assert blocks[-1].endswith(b"\r")
                blocks[-1] += block
            else:
                blocks.append(block)
        assert (blocks, decoder.rest) == oracle.blocks(fed)
    return blocks


@settings(max_examples=150, deadline=None)
@given(STREAMS, CUTS)
@example(b"data: x\r\r\n\r\n\ndata: y\r\n\r\n\r", [])
@example(oracle.BOM + b"\r\n\ndata: x\n\n", [])
@example(b"data: x\n\n" + oracle.BOM + b"\n\ndata: y\n\n", [])
def test_each_block_comes_once_as_soon_as_it_is_complete(stream: bytes, cuts: list[int]) -> None:
    for pieces in splits(stream, cuts):
        decode(pieces)


@settings(max_examples=300, deadline=None)
@given(STREAMS)
@example(oracle.BOM + b"data: x\n\n" + oracle.BOM + b"data: y\n\n")
def test_fields_mean_what_the_specification_says(stream: bytes) -> None:
    seen = []
    for number, block in enumerate(decode([stream])):
        first, data, is_error, only_comments = parse_fields(block, first_block=number == 0)
        assert first == (data[0] if data else None)
        text = block.removeprefix(oracle.BOM) if number == 0 else block
        assert only_comments == all(line[:1] in (b"", b":") for line in text.splitlines())
        if data:
            seen.append((is_error, b"\n".join(data)))
    assert seen == [(event.type == b"error", event.data) for event in oracle.events(stream)]


def test_a_line_end_is_found_at_every_offset() -> None:
    for length in range(100):
        for other in (b"x", b"\t", b"\x0e", b"\x8a\x8d"):
            line = b"data:" + (other * length)[:length]
            for end in (b"\n", b"\r", b"\r\n"):
                block = line + end + b"data: 2" + end + end
                assert decode([block + b"data"]) == [block]
                assert parse_fields(block) == (line[5:], [line[5:], b"2"], False, False)


def test_an_event_whose_blank_line_ends_in_cr_is_not_held_back_for_an_lf() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: x\r\n\r") == [b"data: x\r\n\r"]
    assert decoder.feed(b"\ndata: y\n\n") == [b"\n", b"data: y\n\n"]
    assert decoder.feed(b"data: z\r\r") == [b"data: z\r\r"]
    assert decoder.feed(b"data: w\r\r") == [b"data: w\r\r"]
    assert decoder.feed(b"\n") == [b"\n"]
    assert decoder.feed(b"\n") == []


def test_a_comment_with_a_blank_line_is_a_block_of_its_own() -> None:
    keepalive, event = b": ping\n\n", b": next\ndata: x\n\n"
    assert decode([keepalive + event]) == [keepalive, event]
    assert parse_fields(keepalive) == (None, [], False, True)
    assert parse_fields(event) == (b"x", [b"x"], False, False)
