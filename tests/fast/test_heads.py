"""Heads: an engine's response is read the same however it arrives, and no request passes whose body another
parser may end elsewhere."""

from __future__ import annotations

import contextlib

import httptools
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from narwhal._fast.heads import parse_response_head, read_request_head
from tests.fast.oracles import heads as oracle
from tests.fast.splits import damaged

DAMAGE = b"\0\t\n\r :,;05+-_AaZ\x7f\x80"
SPACE = st.sampled_from([b"", b" ", b" \t "])
TOKENS = st.text("!#$%&'*+-.^_`|~09azAZ", min_size=1, max_size=12).map(str.encode)
TEXTS = st.lists(st.sampled_from([b"a", b":", b", ", b"\t", b"\xff", b"~"]), max_size=6).map(b"".join)
OTHER_NAMES = TOKENS.filter(lambda name: name.lower() not in (b"te", b"host"))
LENGTHS = st.sampled_from(
    [b"0", b"5", b"5, 5", b"05,5", b"5,", b"5 5", b"", b"+5", b"9" * 19, b"1" * 20, b"0x5"]
)
CODINGS = st.sampled_from(
    [b"chunked", b"Chunked", b"identity", b"gzip, chunked", b"chunked, chunked", b"chunke"]
)


def in_any_case(name: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from([name, name.lower(), name.upper()])


def head_of(first: bytes, fields: list[tuple[bytes, bytes]], space: bytes = b" ") -> bytes:
    return (
        first + b"\r\n" + b"".join(name + b":" + space + value + b"\r\n" for name, value in fields) + b"\r\n"
    )


def fields_of(*known: tuple[bytes, st.SearchStrategy[bytes]]) -> st.SearchStrategy[list[tuple[bytes, bytes]]]:
    kinds = [st.tuples(in_any_case(name), values) for name, values in known]
    return st.lists(st.one_of(*kinds, st.tuples(OTHER_NAMES, TEXTS)), max_size=5)


RESPONSE_FIELDS = fields_of(
    (b"Content-Length", LENGTHS),
    (b"Transfer-Encoding", CODINGS),
    (
        b"Connection",
        st.sampled_from([b"close", b"Keep-Alive", b"x, CLOSE", b"close-not", b",keep-alive ,", b""]),
    ),
    (
        b"Content-Type",
        st.sampled_from([b"text/event-stream", b"Text/Event-Stream ;charset=utf-8", b"text/plain"]),
    ),
    (b"Retry-After", st.sampled_from([b"0", b"120", b"-1", b"1.5", b"Wed, 21 Oct 2015 07:28:00 GMT"])),
)
RESPONSES = st.builds(
    head_of,
    st.sampled_from([b"HTTP/1.1 200 OK", b"HTTP/1.0 503 No \xe9", b"HTTP/1.1 404", b"HTTP/1.1 100 "]),
    RESPONSE_FIELDS,
    SPACE,
)


def test_a_vllm_head_says_what_the_relay_goes_by() -> None:
    head = (
        b"HTTP/1.1 200 OK\r\ndate: Sat, 29 Nov 2025 20:00:00 GMT\r\nserver: uvicorn\r\n"
        b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    facts = {
        "status": 200,
        "minor_version": 1,
        "content_length": -1,
        "chunked": True,
        "keep_alive": True,
        "event_stream": True,
        "retry_after": -1,
    }
    assert parse_response_head(head + b"fa\r\ndata:") == (len(head), facts)


@settings(max_examples=200, deadline=None)
@given(damaged(RESPONSES, DAMAGE), st.binary(max_size=3))
def test_a_response_head_reads_the_same_at_every_length_of_input(head: bytes, body: bytes) -> None:
    assume(b"\r\n\r\n" in head)
    expected = oracle.read_response(head + body)
    refused = False
    for end in range(len(head + body) + 1):
        try:
            seen = parse_response_head((head + body)[:end])
        except ValueError:
            refused = True
            continue
        assert not refused
        assert seen == (expected if expected and end >= expected[0] else None)
    assert refused == (expected is None)


def test_a_response_head_is_bounded_at_64_kib() -> None:
    start = b"HTTP/1.1 200 OK\r\nA: "
    longest = start + b"x" * (65536 - len(start) - 4) + b"\r\n\r\n"
    assert parse_response_head(longest[:-1]) is None
    parsed = parse_response_head(longest + b"body")
    assert parsed is not None
    assert parsed[0] == 65536
    with pytest.raises(ValueError, match="longer than 65536 bytes"):
        parse_response_head(start + b"x" * 65536)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"HTTP/2 200\r\n", "status line must read"),
        (b"HTTP/1.1 99 \r\n", "status line must read"),
        (b"HTTP/1.1 2000\r\n", "status line must read"),
        (b"\x16\x03\x01", "status line must read"),
        (b"HTTP/1.1 200 OK\nA: b\n\n", "bare LF"),
        (b"HTTP/1.1 200 OK\r\nA: b\n", "bare LF"),
        (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.0"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n", "must be chunked"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n", "different values"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n", "both"),
    ],
)
def test_a_malformed_response_is_refused_as_soon_as_it_shows(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_response_head(data)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "both Content-Length and Transfer-Encoding"),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "both Content-Length and Transfer-Encoding"),
        (b"Content-Length: 5\r\nContent-Length: 6\r\n", "given twice"),
        (b"Content-Length: 5, 6\r\n", "given twice"),
        (b"Content-Length: 5\r\ncontent-length: 5\r\n", "given twice"),
        (b"Content-Length: 5 , 5\t\r\n", "given twice"),
        (b"Content-Length: +5\r\n", "Content-Length must be digits"),
        (b"Content-Length: -5\r\n", "Content-Length must be digits"),
        (b"Content-Length: 5 5\r\n", "Content-Length must be digits"),
        (b"Content-Length: ,5\r\n", "Content-Length must be digits"),
        (b"Content-Length: 0x5\r\n", "Content-Length must be digits"),
        (b"Content-Length:\r\n", "Content-Length must be digits"),
        (b"Content-Length: 00000000000000000005\r\n", "at most 19"),
        (b"Content-Length: 9999999999999999999\r\n", r"at most 2\*\*63-1"),
        (b"Transfer-Encoding: identity\r\n", "must be chunked"),
        (b"Transfer-Encoding: gzip, chunked\r\n", "must be chunked"),
        (b"Transfer-Encoding: chunked, chunked\r\n", "must be chunked"),
        (b"Transfer-Encoding: xchunked\r\n", "must be chunked"),
        (b"Transfer-Encoding: chunked;q=1\r\n", "must be chunked"),
        (b'Transfer-Encoding: "chunked"\r\n', "must be chunked"),
        (b"Transfer-Encoding: \x0bchunked\r\n", "control character"),
        (b"Transfer-Encoding:\r\n", "must be chunked"),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "must be chunked, once"),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "must be chunked, once"),
        (b"A: b\r\n c\r\n", "a field must be on one line"),
        (b"A: b\r\n\tTransfer-Encoding: chunked\r\n", "a field must be on one line"),
        (b"A: b\rContent-Length: 5\r\n", "a bare CR"),
        (b"A: b\r\r\n", "a bare CR"),
        (b"A: b\nContent-Length: 5\r\n", "a bare LF"),
        (b"A: b\0\r\n", "control character"),
        (b"A: b\x08\r\n", "control character"),
        (b"A: b\x7f\r\n", "control character"),
        (b"Content-Length : 5\r\n", "white space in or after a field's name"),
        (b"Content-Length\t: 5\r\n", "white space in or after a field's name"),
        (b"Transfer Encoding: chunked\r\n", "white space in or after a field's name"),
        (b": 5\r\n", "a field without a name"),
        (b"A\0: b\r\n", "a field's name may only be"),
        (b"A(b): c\r\n", "a field's name may only be"),
        (b"\xc3\xa9: c\r\n", "a field's name may only be"),
        (b"A\n: b\r\n", "a bare LF"),
        (b"A\r\n", "a line without a colon"),
        (b"Host: y\r\n", "Host is given twice"),
        (b"host: x\r\n", "Host is given twice"),
    ],
)
def test_each_smuggling_form_is_refused_with_its_reason(fields: bytes, reason: str) -> None:
    for head in (fields + b"Host: x\r\n", b"Host: x\r\n" + fields):
        if head.startswith(b" "):
            continue
        with pytest.raises(ValueError, match=reason):
            read_request_head(b"POST / HTTP/1.1\r\n" + head + b"\r\n")


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"", "request line must be"),
        (b"\r\n\r\n", "request line must be"),
        (b"GET /\r\n\r\n", "request line must be"),
        (b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", "request line must be"),
        (b"GET / x HTTP/1.1\r\nHost: x\r\n\r\n", "request line must be"),
        (b"GET\t/ HTTP/1.1\r\nHost: x\r\n\r\n", "request line must be"),
        (b" GET / HTTP/1.1\r\nHost: x\r\n\r\n", "request line must be"),
        (b"G:T / HTTP/1.1\r\nHost: x\r\n\r\n", "request line must be"),
        (b"GET /\x80 HTTP/1.1\r\nHost: x\r\n\r\n", "request line must be"),
        (b"GET / HTTP/1.1 \r\nHost: x\r\n\r\n", "request line must be"),
        (b"GET / http/1.1\r\nHost: x\r\n\r\n", "request line must be"),
        (b"GET / HTTP/1.1\nHost: x\r\n\r\n", "a bare LF"),
        (b"GET / HTTP/1.1\r\r\nHost: x\r\n\r\n", "a bare CR"),
        (b"GET / HTTP/1.2\r\nHost: x\r\n\r\n", "version must be HTTP/1.0 or HTTP/1.1; seen 'GET / HTTP/1.2'"),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", "version must be"),
        (b"GET / HTTP/0.9\r\nHost: x\r\n\r\n", "version must be"),
        (b"GET / HTTP/1.1\r\n Host: x\r\n\r\n", "a line begins with white space"),
        (b"GET / HTTP/1.1\r\nA: b\r\n\r\n", "needs a Host field"),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.0"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", "before its empty line"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r", "before its empty line"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET", "something follows"),
    ],
)
def test_each_malformed_head_is_refused_with_its_reason(head: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_request_head(head)


@pytest.mark.parametrize(
    ("head", "facts"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", (-1, False)),
        (b"\r\nGET / HTTP/1.1\r\nHost:\r\n\r\n", (-1, False)),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9223372036854775807\r\n\r\n", (2**63 - 1, False)),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTRANSFER-ENCODING: \t ChunkeD \r\nA: \tb\t\xff\r\n\r\n", (-1, True)),
    ],
)
def test_unusual_but_plain_heads_pass(head: bytes, facts: tuple[int, bool]) -> None:
    assert read_request_head(head)[-2:] == facts


class Listener:
    """What httptools says of a request."""

    def __init__(self) -> None:
        self.head_read = False
        self.complete = False

    def on_headers_complete(self) -> None:
        self.head_read = True

    def on_message_complete(self) -> None:
        self.complete = True


def agrees_with_httptools(head: bytes, facts: tuple[int, bool]) -> bool:
    """Whether httptools takes the head too and sees the body end where `facts` say."""
    listener = Listener()
    parser = httptools.HttpRequestParser(listener)
    length, chunked = facts
    body = b"1\r\nx\r\n0\r\n\r\n" if chunked else b"x" * max(length, 0)
    for piece in [head, *(body[at : at + 1] for at in range(len(body)))]:
        if listener.complete:
            return False
        parser.feed_data(piece)
    return listener.head_read and listener.complete


BODIES = st.one_of(
    st.just([]),
    st.integers(0, 20).map(lambda length: [(b"Content-Length", b"%d" % length)]),
    st.builds(lambda *field: [field], in_any_case(b"Transfer-Encoding"), in_any_case(b"chunked")),
)
REQUEST_LINES = st.builds(
    lambda method, path: method + b" /" + path + b" HTTP/1.1",
    st.sampled_from([b"GET", b"POST", b"DELETE", b"OPTIONS"]),
    st.text("abz09-._~%?&=/", max_size=10).map(str.encode),
)
REQUESTS = st.builds(
    lambda line, fields, body, space: head_of(line, [(b"Host", b"x"), *fields, *body], space),
    REQUEST_LINES,
    fields_of((b"Connection", st.sampled_from([b"close", b"keep-alive"])), (b"Accept", TEXTS)),
    BODIES,
    SPACE,
)
ODD_REQUESTS = st.builds(
    head_of,
    REQUEST_LINES,
    fields_of((b"Host", st.just(b"x")), (b"Content-Length", LENGTHS), (b"Transfer-Encoding", CODINGS)),
    SPACE,
)


@settings(max_examples=300, deadline=None)
@given(REQUESTS)
def test_a_well_formed_head_passes_here_and_in_httptools(head: bytes) -> None:
    facts = read_request_head(head)[-2:]
    assert facts == oracle.check_request(head)
    assert agrees_with_httptools(head, facts)


class Parsed:
    """A head as httptools reads it."""

    def __init__(self, head: bytes) -> None:
        self.target = b""
        self.fields: list[tuple[bytes, bytes]] = []
        parser = httptools.HttpRequestParser(self)
        with contextlib.suppress(httptools.HttpParserUpgrade):
            parser.feed_data(head)
        self.method = parser.get_method().decode()

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value))


@settings(max_examples=300, deadline=None)
@given(REQUESTS)
def test_a_head_reads_as_httptools_reads_it(head: bytes) -> None:
    method, target, headers, http11, close, _, _ = read_request_head(head)
    parsed = Parsed(head)
    options = [
        option.strip().lower()
        for name, value in parsed.fields
        if name == b"connection"
        for option in value.split(b",")
    ]
    # httptools leaves white space at a value's end.
    assert (method, target, http11) == (parsed.method, parsed.target, True)
    assert headers == {name: value.strip(b" \t") for name, value in parsed.fields}
    assert close == (b"close" in options)


@settings(max_examples=500, deadline=None)
@given(damaged(st.one_of(REQUESTS, ODD_REQUESTS), DAMAGE))
def test_a_head_passes_only_if_the_oracle_agrees_and_httptools_ends_its_body_there_too(head: bytes) -> None:
    expected = oracle.check_request(head)
    try:
        facts = read_request_head(head)[-2:]
    except ValueError:
        assert expected is None
        return
    assert facts == expected
    if facts[0] <= 1000:
        with contextlib.suppress(httptools.HttpParserError):
            assert agrees_with_httptools(head, facts)
