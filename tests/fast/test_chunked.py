"""Chunked bodies: the payload and its end don't depend on how reads cut them, and odd framing is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal._fast.chunked import ChunkedDecoder
from tests.fast.oracles import chunked as oracle
from tests.fast.splits import CUTS, damaged, splits

SIZES = st.sampled_from(["{:x}", "{:X}", "{:04x}"])
EXTENSIONS = st.sampled_from([b"", b"", b";", b" ; a=b", b'\t;a="\xe9;"\t'])
TRAILERS = st.lists(st.sampled_from([b"A:\r\n", b"x-sum: 1,2\t\r\n", b"!~:\xff\r\n"]), max_size=2)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    coded = b""
    for payload in draw(st.lists(st.binary(min_size=1, max_size=30), max_size=3)):
        size = draw(SIZES).format(len(payload)).encode()
        coded += size + draw(EXTENSIONS) + b"\r\n" + payload + b"\r\n"
    coded += draw(st.sampled_from([b"0", b"000"])) + draw(EXTENSIONS) + b"\r\n"
    return coded + b"".join(draw(TRAILERS)) + b"\r\n" + draw(st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n"]))


def decode(pieces: list[bytes]) -> oracle.Decoded:
    decoder = ChunkedDecoder()
    payload = b""
    try:
        for piece in pieces:
            payload += decoder.feed(piece)
    except ValueError:
        return oracle.Decoded("bad", payload, b"")
    return oracle.Decoded("end" if decoder.done else "more", payload, decoder.unused)


@settings(max_examples=150, deadline=None)
@given(damaged(bodies(), b"\0\t\n\r ;:0aFgx-+\x7f\x80"), CUTS)
def test_a_body_decodes_the_same_however_it_is_cut(body: bytes, cuts: list[int]) -> None:
    expected = oracle.decode(body)
    for pieces in splits(body, cuts):
        seen = decode(pieces)
        if expected.verdict == "bad":
            assert seen.verdict == "bad"
            assert expected.payload.startswith(seen.payload)
        else:
            assert seen == expected
    assert decode([body[at : at + 1] for at in range(len(body))]).payload == expected.payload


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"+5\r\nhello\r\n", "must begin with a hex digit"),
        (b"-5\r\nhello\r\n", "must begin with a hex digit"),
        (b" 5\r\nhello\r\n", "must begin with a hex digit"),
        (b"\r\nhello\r\n", "must begin with a hex digit"),
        (b"0x5\r\nhello\r\n", "only CRLF or an extension"),
        (b"5_0\r\nhello\r\n", "only CRLF or an extension"),
        (b"5 \r\nhello\r\n", "only CRLF or an extension"),
        (b"5\nhello\r\n", "only CRLF or an extension"),
        (b"5\rhello\r\n", "must end in CRLF"),
        (b"5;a\nhello\r\n", "control character in a chunk's size line"),
        (b"5;a\0b\r\nhello\r\n", "control character in a chunk's size line"),
        (b"5\r\nhello!\r\n", "as many bytes as its size says"),
        (b"5\r\nhello\n", "as many bytes as its size says"),
        (b"5\r\nhello\r0", "as many bytes as its size says"),
        (b"4000000000000001\r\n", r"larger than 2\*\*62"),
        (b"10000000000000005\r\nhello\r\n", r"larger than 2\*\*62"),
        (b"0\r\nGET / HTTP/1.1\r\n\r\n", "a field name, a colon and a value"),
        (b"0\r\n folded\r\n\r\n", "begin with a field name"),
        (b"0\r\nA: b\n\r\n", "control character in a trailer"),
        (b"0\r\nA: b\rc\r\n\r\n", "a trailer must end in CRLF"),
        (b"0\r\n\n", "begin with a field name"),
        (b"0\r\n\r\r\n", "a trailer must end in CRLF"),
    ],
)
def test_framing_that_parsers_differ_on_is_refused_with_its_reason(body: bytes, reason: str) -> None:
    for pieces in splits(body):
        decoder = ChunkedDecoder()
        with pytest.raises(ValueError, match=reason):
            b"".join(map(decoder.feed, pieces))
        with pytest.raises(ValueError, match=reason):
            decoder.feed(b"0\r\n\r\n")


def test_the_largest_size_is_2_to_the_62() -> None:
    decoder = ChunkedDecoder()
    assert decoder.feed(b"04000000000000000\r\nabc") == b"abc"


def test_size_lines_are_bounded_at_1024_bytes() -> None:
    longest = b"3;" + b"x" * 1022
    assert ChunkedDecoder().feed(longest + b"\r\nabc\r\n" + longest + b"\r\nde") == b"abcde"
    with pytest.raises(ValueError, match="longer than 1024 bytes"):
        ChunkedDecoder().feed(longest + b"x\r\n")
    with pytest.raises(ValueError, match="longer than 1024 bytes"):
        ChunkedDecoder().feed(b"0" * 1025)


def test_trailers_are_bounded_at_16_kib() -> None:
    longest = b"A: " + b"x" * (16384 - 7) + b"\r\n\r\n"
    decoder = ChunkedDecoder()
    assert decoder.feed(b"0\r\n" + longest + b"next") == b""
    assert decoder.done
    assert decoder.unused == b"next"
    for trailers in (b"x" + longest, b"A:\r\n" * 4097):
        with pytest.raises(ValueError, match="trailers are longer than 16384 bytes"):
            ChunkedDecoder().feed(b"0\r\n" + trailers)


def test_what_follows_the_end_is_left_alone() -> None:
    decoder = ChunkedDecoder()
    assert decoder.feed(b"1\r\na\r\n0\r\n\r\nGET") == b"a"
    assert decoder.feed(b" / ") == b""
    assert decoder.unused == b"GET / "
