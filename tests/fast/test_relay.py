"""The relay: what a client gets of an engine's stream, and what is known of it, however reads cut it.

The streams are drawn, and recorded of real engines; the rules at a stream's ends are told by example.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from narwhal._fast.assemble import Assembler
from narwhal._fast.outlet import Outlet
from narwhal._fast.recall import Recall
from narwhal._fast.relay import Relay
from tests.fast.oracles import chunked, scan, sse
from tests.fast.oracles import relay as oracle
from tests.fast.oracles.relay import Asked, Told
from tests.fast.recordings import Recording, event_streams
from tests.fast.splits import CUTS, splits
from tests.fast.test_scan import EVENTS
from tests.fast.transports import RecordingTransport

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"

T = TypeVar("T")


class Owner:
    """Who has the relay; keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.then: dict[str, Callable[[], None]] = {}

    def on_output(self) -> None:
        self._called("output")

    def on_end(self) -> None:
        self._called("end")

    def _called(self, name: str) -> None:
        self.calls.append(name)
        self.then.get(name, lambda: None)()


class Client:
    """A relay with a client behind it."""

    def __init__(
        self,
        asked: Asked | None = None,
        framed: bool = False,
        assembler: Assembler | None = None,
        transport: RecordingTransport | None = None,
    ) -> None:
        self.asked = asked or Asked()
        self.framed = framed
        self.owner = Owner()
        self.transport = transport or RecordingTransport()
        outlet = Outlet()
        outlet.attach(self.transport)
        self.relay = Relay(
            self.owner,
            outlet=None if assembler else outlet,
            head=HEAD,
            framed=framed,
            keep_ids=self.asked.keep_ids,
            keep_usage=self.asked.keep_usage,
            limit=self.asked.limit,
            recall=Recall(True),  # it takes note, and changes nothing
        )
        self.begin(assembler)

    def begin(self, assembler: Assembler | None = None) -> None:
        """Begin an attempt."""
        self.relay.begin(self.asked.need_ids, assembler)
        self.relay.set_cached_tokens(self.asked.cached_tokens)

    def feed(self, *pieces: bytes) -> None:
        """Bring reads; each may make one write."""
        for piece in pieces:
            before = len(self.transport.writes)
            self.relay.feed(piece)
            assert len(self.transport.writes) <= before + 1

    @property
    def sent(self) -> bytes:
        """All that was written."""
        return b"".join(self.transport.writes)

    @property
    def body(self) -> bytes:
        """The payload in it. The head came first, and the framing is as it should be."""
        if not self.sent:
            return b""
        assert self.transport.writes[0].startswith(HEAD)
        assert len(self.transport.writes[0]) > len(HEAD)
        body = self.sent[len(HEAD) :]
        if not self.framed:
            return body
        decoded = chunked.decode(body)
        assert decoded.verdict == ("end" if self.relay.done else "more")
        assert not decoded.unused
        return decoded.payload


def chat(content: str, ids: str | None = "[7]", more: str = "") -> bytes:
    """A chat event's data."""
    ids = "" if ids is None else f',"token_ids":{ids}'
    text = json.dumps(content)
    return f'{{"id":"c","choices":[{{"index":0,"delta":{{"content":{text}}}{ids}}}]{more}}}'.encode()


def event(data: bytes, end: bytes = b"\n") -> bytes:
    """A block with this data."""
    return b"data: " + data + end + end


ROLE = (
    b'{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1,2]}'
)
FINISH = b'{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop","token_ids":[]}]}'
SILENT = b'{"id":"c","choices":[{"index":0,"delta":{"content":""},"token_ids":[5]}]}'
USAGE = (
    b'{"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens": 128 }}}'
)
ERROR = b'{"error":{"message":"lost","code":500}}'
HOSTILE = (
    b'{"choices":[{"delta":{"content":"\\"token_ids\\":[1]}","x":{"token_ids":[-1]}},"token_ids":[1, 2] }],'
    b'"prompt_text":"\\"}","token_ids":{"a":[]},"choices2":[{"text":"x"}]}'
)
ESCAPED = b'{"choices":[{"t\\u0065xt":"\\ud83d\\ude00\\u0000","token\\u005fids":[0,2147483647]}]}'
PLAIN = [chat("a"), chat(" the ", "[1,2,3]"), chat("漢😀é\u2028"), HOSTILE, ESCAPED]

# Streams as texts: most of what is drawn is as engines send it, so that most streams get somewhere.
_DATA = st.one_of(
    st.sampled_from([chat("a"), chat("a"), chat("b", "[1,2]"), ROLE, FINISH]),
    st.sampled_from([*PLAIN, ROLE, FINISH, SILENT, USAGE, chat("x", more=',"usage":{"prompt_tokens":4}')]),
    st.sampled_from(
        [
            json.dumps(
                json.loads(chat("x" * 9, more=',"usage":{"prompt_tokens_details":{}}')), indent=1
            ).encode(),
            b'{"token_ids":[1],\n"choices":[{\n"delta":{"content":"a"},\n"token_ids":[\n7,\n8]\n}]\n}',
            b'{"choices":[\n],"usage":{"prompt_tokens_details":{\n"cached_tokens"\n:\n12}},\n"prompt_text":""}',
            b'{"usage":{"prompt_tokens_details":{"cached_tokens":null}}}',
            chat("x" * 400, str([*range(80)])),
        ]
    ),
    st.sampled_from(
        [
            *(chat("x", ids) for ids in (None, "null", "[true]", "[-1]", "[[1]]", "7", "[1.0]", '["1"]')),
            b'{"choices":[{"text":"x","token_ids":[1],"delta":{"token_ids":[2]}}]}',
            ERROR,
            b'{"error":null,"choices":[]}',
            b'{"choices":[{"text":"x"',
            b"{} {}",
            b"boom",
            b"",
            b"[DONE]",
        ]
    ),
    st.sampled_from([chat("a"), chat("c", "[2147483647]"), chat("")]),
    st.sampled_from([chat("a"), SILENT, USAGE]),
    st.sampled_from([chat("a"), chat("b")]),
    EVENTS.map(str.encode),
)
_EXTRAS = st.sampled_from(
    [b": note", b"id: 7", b"event: message", b"retry", b"datax: 1", b"", b":", b"x: data: y"]
)
_ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@st.composite
def blocks(draw: st.DrawFn, ends: st.SearchStrategy[bytes]) -> bytes:
    """An event of one or more data lines, among other fields, or only these."""
    lines = []
    chance = draw(st.integers(0, 19))
    if chance < 4:
        lines += draw(st.lists(_EXTRAS, max_size=2))
    if chance == 4:
        lines.append(b"event: error")
    if chance != 3:
        for line in re.split(rb"\r\n|\r|\n", draw(_DATA)):
            lines.append(draw(st.sampled_from([b"data: ", b"data: ", b"data:"])) + line)
            if chance == 5:
                lines += draw(st.lists(_EXTRAS.filter(bool), max_size=1))
    return b"".join(line + draw(ends) for line in lines) + draw(ends)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A stream with one line ending throughout, or mixed, and with [DONE] or not."""
    ends = draw(
        st.sampled_from([b"\n", b"\n", b"\r", b"\r\n", None]).map(lambda end: st.just(end) if end else _ENDS)
    )
    stream = draw(st.sampled_from([b"", b"", b"", sse.BOM, b"\n", b": hello\n\n", b"\r\n\r\n"]))
    stream += b"".join(draw(st.lists(blocks(ends), min_size=1, max_size=6)))
    if draw(st.integers(0, 3)) < 3:
        stream += b"data: [DONE]" + draw(ends) + draw(ends)
    return stream + draw(st.sampled_from([b"", b"", b"", event(chat("late")), b": late\n\n", b"data: x"]))


ASKED = st.builds(
    Asked,
    keep_ids=st.booleans(),
    keep_usage=st.booleans(),
    need_ids=st.sampled_from([True, True, False]),
    cached_tokens=st.sampled_from([None, 0, 7, 123456]),
    limit=st.sampled_from([1 << 24, 1 << 24, 1 << 24, 120, 150, 300, 420]),
)


def at_done(body: bytes) -> bytes:
    """A body that ends with [DONE], less the LF that the relay does not wait for."""
    return body[:-1] if body.endswith(b"\r\n") else body


def facts_of(relay: Relay) -> dict[str, object]:
    """What a relay has seen."""
    return {
        "failure": relay.failure,
        "error_object": relay.error_object,
        "tokens": relay.tokens,
        "output_events": relay.output_events,
        "prompt_tokens": relay.prompt_tokens,
        "completion_tokens": relay.completion_tokens,
        "finished": relay.finished,
        "done": relay.done,
    }


def expected_facts(told: Told) -> dict[str, object]:
    """What it should have seen."""
    return {
        name: told.done_at is not None if name == "done" else getattr(told, name)
        for name in facts_of(Relay(Owner()))
    }


def deliver(client: Client, pieces: list[bytes], told: Told, sizes: list[int]) -> None:
    """Bring a stream in these pieces; all that can be seen after each of them is as told."""
    relay, transport = client.relay, client.transport
    outputs = [*told.outputs, len(sizes)]
    place = output = 0
    for piece in pieces:
        place += len(piece)
        writes, last_at = len(transport.writes), relay.last_at
        relay.feed(piece)
        assert len(transport.writes) <= writes + 1
        assert (relay.last_at > last_at) == (outputs[output] <= place)
        while outputs[output] <= place:
            output += 1
        assert (relay.first_at > 0) == (output > 0)
        if not client.framed:
            assert abs(max(0, transport.written - len(HEAD)) - sizes[place]) <= relay.done
    relay.end_feed()
    body, expected = client.body, told.body
    assert (at_done(body) == at_done(expected)) if relay.done else (body == expected)
    assert facts_of(relay) == expected_facts(told)
    assert len(pieces) > 1 or relay.dropped_after_done == told.dropped_after_done
    assert (relay.failure_message is None) == (relay.failure is None)
    assert client.owner.calls == ["output"] * bool(told.outputs) + ["end"]
    assert relay.output_sent == bool(told.outputs and expected)


@settings(max_examples=200, deadline=None)
@given(streams(), ASKED, CUTS)
@example(event(chat("a")) + b"data: x\r\n\r\n" + DONE, Asked(), [])
@example(b"data: " + chat("a") + b"\r\n\r\ndata: [DONE]\r\n\r\n", Asked(limit=len(chat("a")) + 9), [])
@example(event(USAGE, b"\r\n") + event(chat("a"), b"\r\n") + event(USAGE, b"\r\n") + DONE, Asked(), [])
def test_what_a_client_gets_does_not_depend_on_how_reads_cut_the_stream(
    stream: bytes, asked: Asked, cuts: list[int]
) -> None:
    told = oracle.relay(stream, asked)
    sizes = told.sizes(len(stream))
    for pieces in splits(stream, cuts):
        deliver(Client(asked), pieces, told, sizes)


@settings(max_examples=60, deadline=None)
@given(streams(), ASKED, CUTS)
def test_chunks_are_framed_and_the_last_one_ends_the_body(
    stream: bytes, asked: Asked, cuts: list[int]
) -> None:
    told = oracle.relay(stream, asked)
    sizes = told.sizes(len(stream))
    whole, bytewise, *_, cut = splits(stream, cuts)
    for pieces in (whole, bytewise, cut):
        deliver(Client(asked, framed=True), pieces, told, sizes)


@settings(max_examples=60, deadline=None)
@given(streams(), ASKED, CUTS)
def test_a_response_is_assembled_the_same_however_reads_cut_the_stream(
    stream: bytes, asked: Asked, cuts: list[int]
) -> None:
    told, expected = _assembled(lambda assembler: oracle.relay(stream, asked, assembler))
    sizes = told.sizes(len(stream))
    for pieces in splits(stream, cuts):

        def take(assembler: Assembler, pieces: list[bytes] = pieces) -> Client:
            client = Client(asked, assembler=assembler)
            deliver(client, pieces, told, sizes)
            return client

        client, response = _assembled(take)
        assert response == expected
        assert not client.relay.output_sent


def _assembled(take: Callable[[Assembler], T]) -> tuple[T, bytes | str]:
    assembler = Assembler(True, True, 3000)
    taken = take(assembler)
    try:
        return taken, assembler.finish(1, 2)
    except ValueError as error:
        return taken, str(error)


def _cuts_of_each_event(stream: bytes) -> Iterator[list[bytes]]:
    """The stream cut at the same byte of each event, for every byte there is."""
    found = sse.blocks(stream)[0]
    for at in range(1, max(map(len, found))):
        pieces = [piece for block in found for piece in (block[:at], block[at:])]
        # What follows one cut up to the next comes in one read.
        yield [
            pieces[0],
            *(after + before for after, before in zip(pieces[1::2], [*pieces[2::2], b""], strict=True)),
        ]


@pytest.mark.parametrize("recording", event_streams(), ids=lambda recording: recording.name)
@pytest.mark.parametrize("keep_ids", [True, False])
def test_a_recorded_stream_is_relayed_the_same_however_reads_cut_it(
    recording: Recording, keep_ids: bool
) -> None:
    payload = recording.payload
    options = recording.request.get("stream_options") or {}
    asked = Asked(keep_ids, keep_usage=bool(options.get("include_usage")), need_ids=recording.has_ids)
    told = oracle.relay(payload, asked)
    sizes = told.sizes(len(payload))
    cuts = [[payload], [payload[at : at + 1] for at in range(len(payload))], *_cuts_of_each_event(payload)]
    for pieces in cuts:
        deliver(Client(asked), pieces, told, sizes)
    if len(payload) < 5500:
        for at in range(len(payload)):
            client = Client(asked)
            client.feed(payload[:at], payload[at:])
            assert client.body == told.body
    if "gone" in recording.name:
        assert (told.failure, told.body) == ("engine_error", b"")
    else:
        assert told.failure is None
        _compare_with_recording(told.body, payload, keep_ids)


def _compare_with_recording(body: bytes, payload: bytes, keep_ids: bool) -> None:
    if keep_ids:
        assert body == payload
    for sent, came in zip(sse.events(body), sse.events(payload), strict=True):
        if came.data == b"[DONE]" or keep_ids:
            assert sent == came
        else:
            assert scan.loads(sent.data) == scan.without_ids(scan.loads(came.data))


@pytest.mark.parametrize("recording", event_streams(), ids=lambda recording: recording.name)
def test_a_recorded_stream_is_assembled_the_same_however_reads_cut_it(recording: Recording) -> None:
    asked = Asked(need_ids=recording.has_ids)

    def assemble(pieces: list[bytes]) -> tuple[object, bytes | str]:
        client, response = _assembled(lambda assembler: _fed(asked, assembler, pieces))
        return facts_of(client.relay), response

    payload = recording.payload
    expected = assemble([payload])
    for pieces in _cuts_of_each_event(payload):
        assert assemble(pieces) == expected


def _fed(asked: Asked, assembler: Assembler, pieces: list[bytes]) -> Client:
    client = Client(asked, assembler=assembler)
    client.feed(*pieces)
    client.relay.end_feed()
    return client


def test_a_slow_client_gets_the_same_bytes_through_its_socket_and_its_transport() -> None:
    stream = b"".join(event(chat("x" * size, "[1]")) for size in range(0, 60_000, 500)) + DONE
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for end in (ours, theirs):
            end.setblocking(False)
        client = Client(framed=True, transport=RecordingTransport(ours))
        received = b""
        for at in range(0, len(stream), 70_000):
            client.relay.feed(stream[at : at + 70_000])
            with contextlib.suppress(BlockingIOError):
                received += theirs.recv(30_000)
            client.transport.flush(20_000)
        assert client.transport.queue
        while not received.endswith(LAST_CHUNK):
            received += theirs.recv(1 << 20)
            client.transport.flush(1 << 20)
    assert chunked.decode(received.removeprefix(HEAD)).payload == oracle.relay(stream, Asked()).body


# Rule 7, and the ends of a stream.


def test_nothing_is_written_before_the_first_output_and_then_all_of_it_as_one_write() -> None:
    client = Client(framed=True)
    early = [b": hello\n\n", event(ROLE), event(b'{"choices":[]}')]
    client.feed(*early)
    assert client.transport.writes == []
    assert not client.relay.under_way
    client.feed(event(chat("a")) + event(chat("b")))
    assert len(client.transport.writes) == 1
    assert client.owner.calls == ["output"]
    assert client.relay.under_way
    expected = oracle.relay(b"".join(early) + event(chat("a")) + event(chat("b")), Asked())
    assert client.body == expected.body


def test_a_token_without_text_is_output_enough_to_begin() -> None:
    client = Client()
    client.feed(event(SILENT))
    assert client.owner.calls == ["output"]
    assert client.relay.output_tokens() == (1, "token_ids")


@pytest.mark.parametrize(
    ("block", "failure"),
    [
        (event(chat("x", None)), "token_ids"),
        (event(ERROR), "engine_error"),
        (b"event: error\ndata: boom\n\n", "engine_error"),
        (event(b"boom"), "broken_stream"),
        (DONE, "broken_stream"),
    ],
)
def test_a_failure_before_output_leaves_the_client_without_a_byte(block: bytes, failure: str) -> None:
    client = Client()
    client.feed(b": hello\n\n" + event(ROLE), block, event(chat("late")), DONE)
    assert client.transport.writes == []
    assert client.owner.calls == ["end"]
    assert client.relay.failure == failure
    assert not client.relay.output_sent


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_failure_after_output_still_passes_on_what_came_before_it(pieces: int) -> None:
    client = Client(framed=True)
    reads = [event(chat("a")), event(chat("b")) + event(ERROR) + event(chat("c"))]
    client.feed(*reads if pieces == 2 else [b"".join(reads)])
    assert client.body == oracle.relay(b"".join(reads[:2]), Asked()).body
    assert client.body.count(b"content") == 2
    assert client.owner.calls == ["output", "end"]
    assert client.relay.output_sent
    client.relay.end_with(b"data: {}\n\n")
    assert chunked.decode(client.sent[len(HEAD) :]).payload.endswith(b"}]}\n\ndata: {}\n\n")
    assert client.sent.endswith(LAST_CHUNK)


def test_the_end_is_told_with_done_and_the_lf_after_it_is_not_waited_for() -> None:
    client = Client(framed=True)
    client.feed(event(chat("a"), b"\r\n"), b"data: [DONE]\r\n\r")
    assert client.owner.calls == ["output", "end"]
    assert client.relay.done
    assert client.body.endswith(b"data: [DONE]\r\n\r\n")
    writes = list(client.transport.writes)
    client.feed(b"\n", event(chat("late")))
    assert client.transport.writes == writes


@pytest.mark.parametrize("limit", [1 << 24, 120])
def test_what_follows_done_is_dropped_and_counted(limit: int) -> None:
    client = Client(Asked(limit=limit))
    client.feed(
        event(chat("a")) + DONE + event(chat("late")) + event(ERROR) + b": note\n\n" + b"data: half" * 20
    )
    assert client.body == oracle.relay(event(chat("a")) + DONE, Asked()).body
    client.feed(b"x" * 200, b"\n\n" + event(chat("later")))
    assert client.relay.dropped_after_done == 3
    assert client.relay.failure is None


def test_done_without_output_is_an_empty_answer_if_the_engine_said_why_it_finished() -> None:
    finish = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
    client = Client()
    client.feed(event(finish), DONE)
    assert client.body == event(finish) + DONE
    assert client.owner.calls == ["end"]
    assert client.relay.failure is None


def test_a_stream_that_ends_without_done_has_failed() -> None:
    client = Client(framed=True)
    client.feed(event(chat("a")), b"data: [DONE]\n")
    client.relay.end_feed()
    assert client.relay.failure == "broken_stream"
    assert client.owner.calls == ["output", "end"]
    assert LAST_CHUNK not in client.sent


def test_output_is_counted_by_ids_else_by_usage_else_by_events() -> None:
    for need_ids, blocks, expected in [
        (True, [event(chat("a", "[1,2]")), event(USAGE)], (2, "token_ids")),
        (False, [event(chat("a", "[1,2]")), event(USAGE)], (3, "usage")),
        (False, [event(chat("a", None)), event(chat("b", None))], (2, "events")),
    ]:
        client = Client(Asked(need_ids=need_ids))
        client.feed(*blocks)
        assert client.relay.output_tokens() == expected


# Attempts.


def test_another_attempt_starts_with_nothing_of_the_one_before() -> None:
    client = Client(Asked(cached_tokens=5))
    client.feed(b": first\n\n" + event(ROLE), event(FINISH) + event(USAGE) + b"data: " + b"x" * 999)
    client.relay.end_feed()
    client.begin()
    client.feed(event(ROLE), event(chat("a", "[1]")))
    client.feed(DONE)
    told = oracle.relay(event(ROLE) + event(chat("a", "[1]")) + DONE, Asked())
    assert client.body == told.body
    assert facts_of(client.relay) == expected_facts(told)
    assert client.owner.calls == ["end", "output", "end"]


class Shout:
    """Rewrites events: leaves the quiet ones out, and refuses some."""

    def event(self, data: bytes) -> bytes | None:
        if b"no" in data:
            raise ValueError("no")
        for name in () if b"quiet" in data else (b"id", b"index"):
            data = data.replace(b'"%b"' % name, b'"%b"' % name.upper())
        return None if b"quiet" in data else data


REST = b": now\r\n\r\ndata: %b\n\ndata: {\ndata:}\n\ndata: %b\r\rdata: %b\n\ndata: [DONE]\n\n" % (
    chat("quiet", "[1]"), chat("b", "[2,3]"), chat("c", "[4]"),
)  # fmt: skip


@pytest.mark.parametrize("framed", [False, True])
def test_an_attempt_goes_on_with_the_answer_of_the_one_before_however_reads_cut_it(
    framed: bool,
) -> None:
    for pieces in splits(REST):
        goes_on(list(pieces), framed)


def goes_on(pieces: list[bytes], framed: bool) -> None:
    """An answer that is cut after its first event, and goes on with these reads, is whole."""
    client = Client(framed=framed)
    client.feed(b"data: %b\n\ndata: {" % chat("a"))
    client.relay.end_feed()
    before = client.sent
    assert (client.relay.output_sent, client.relay.tokens, client.relay.carried) == (True, 1, 0)
    client.relay.begin(True, None, Shout())
    assert (client.relay.output_sent, client.relay.first_at, client.relay.carried) == (True, 0, 1)
    client.feed(*pieces)
    rest = b": now\r\n\r\ndata: { }\n\n" + b"".join(
        b'data: {"ID":"c","choices":[{"INDEX":0,"delta":{"content":"%b"}}]}\n\n' % text
        for text in (b"b", b"c")
    )
    assert client.sent.startswith(before)
    assert client.body == b"data: %b\n\n" % chat("a", None) + rest + DONE
    assert (client.relay.tokens, client.relay.carried, client.relay.done) == (4, 1, True)
    assert client.owner.calls == ["output", "end", "output", "end"]


def test_a_rest_that_brings_no_output_leaves_the_client_as_it_was() -> None:
    client = Client()
    client.feed(b"data: %b\n\n" % chat("a"))
    client.relay.end_feed()
    before = client.sent
    for rest in (
        b"data: %b\n\n" % chat("quiet"),
        b"data: %b\n\n" % chat("no"),
        b"data: [DONE]\n\n",
        b"data: x\n\n",
    ):
        client.relay.begin(True, None, Shout())
        client.feed(rest)
        client.relay.end_feed()
        assert client.sent == before
        assert client.relay.failure == "broken_stream"
        assert client.relay.unjoinable == (b"no" in rest)
        assert (client.relay.output_sent, client.relay.tokens) == (True, 1)


def test_the_first_output_of_each_attempt_at_assembling_is_told() -> None:
    client = Client(assembler=Assembler(True, False, 1000))
    client.feed(event(chat("a")), event(ERROR))
    client.begin(Assembler(True, False, 1000))
    client.feed(event(chat("a")), DONE)
    assert client.owner.calls == ["output", "end"] * 2


def test_an_abandoned_attempt_sends_and_tells_nothing_more() -> None:
    client = Client()
    client.feed(event(ROLE) + b"data: ")
    client.relay.abandon()
    client.feed(chat("a") + b"\n\n", event(chat("b")), DONE)
    client.relay.end_feed()
    assert client.transport.writes == []
    assert client.owner.calls == []


def test_the_first_output_may_lead_its_owner_to_abandon_the_attempt() -> None:
    client = Client()
    client.owner.then["output"] = client.relay.abandon
    client.feed(event(chat("a")), event(chat("b")), DONE)
    assert client.body == oracle.relay(event(chat("a")), Asked()).body
    assert client.owner.calls == ["output"]


def test_a_write_may_lead_to_the_attempt_being_abandoned() -> None:
    client = Client()
    client.transport.on_write = client.relay.abandon
    client.feed(event(chat("a")) + event(ERROR))
    client.feed(event(chat("b")))
    assert len(client.transport.writes) == 1
    assert client.owner.calls == []


def test_a_relay_needs_somewhere_to_bring_the_answer() -> None:
    relay = Relay(Owner())
    with pytest.raises(TypeError, match="an outlet or an assembler"):
        relay.begin(True)


def test_a_broken_way_out_never_lets_bytes_reach_another_client() -> None:
    class BrokenTransport(RecordingTransport):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            raise RuntimeError("broken")

    outlet = Outlet()
    outlet.attach(BrokenTransport())
    broken = Relay(Owner(), outlet=outlet)
    broken.begin(False)
    with pytest.raises(RuntimeError, match="broken"):
        broken.feed(event(chat("a secret")))
    other = Client()
    other.feed(event(chat("a")))
    assert b"secret" not in other.sent


# Silence.


def test_comments_come_after_the_head_and_leave_another_attempt_possible() -> None:
    client = Client(framed=True)
    client.relay.comment()
    client.relay.comment()
    assert client.transport.writes[0].startswith(HEAD)
    assert client.body == b": keep-alive\n\n" * 2
    assert client.relay.under_way
    assert not client.relay.output_sent
    client.feed(event(ROLE), event(ERROR))
    client.begin()
    client.feed(event(ROLE), event(chat("a")) + DONE)
    told = oracle.relay(event(ROLE) + event(chat("a")) + DONE, Asked())
    assert client.body == b": keep-alive\n\n" * 2 + told.body


def test_a_byte_order_mark_is_left_out_where_it_is_no_longer_at_the_start() -> None:
    client = Client()
    client.relay.comment()
    client.feed(sse.BOM + event(chat("a")))
    assert [event.data for event in sse.events(client.body)] == [scan.excise(chat("a"))]


def test_nothing_follows_the_end_of_a_body() -> None:
    for ended in (DONE, event(ERROR)):
        client = Client(framed=True)
        client.feed(event(chat("a")), ended)
        if ended != DONE:
            client.relay.end_with(b"data: {}\n\n")
        writes = list(client.transport.writes)
        assert writes[-1].endswith(LAST_CHUNK)
        client.relay.comment()
        client.relay.end_with(b"data: {}\n\n")
        client.feed(event(chat("b")), DONE)
        assert client.transport.writes == writes


def test_what_is_assembled_is_never_commented_on() -> None:
    client = Client(assembler=Assembler(True, False, 1000))
    client.relay.comment()
    client.relay.end_with(b"data: {}\n\n")
    assert not client.relay.under_way


# The producer's figure.


def _relayed(block: bytes, cached: int | None = 7, keep_ids: bool = False) -> bytes:
    client = Client(Asked(keep_ids, keep_usage=True, cached_tokens=cached))
    client.feed(event(chat("a")))
    before = len(client.body)
    client.feed(block)
    return client.body[before:]


@pytest.mark.parametrize("figure", [b"0", b"128", b"9007199254740993"])
@pytest.mark.parametrize("cached", [0, 7, 123456789])
def test_the_producers_figure_replaces_the_digits_and_nothing_else(figure: bytes, cached: int) -> None:
    data = (
        b'{ "choices":[] , "usage":{"prompt_tokens":9,"prompt_tokens_details": {"audio_tokens":128,\t'
        b'"cached_tokens": %s },"completion_tokens_details":{"cached_tokens":128}},"cached_tokens":128}'
    )
    assert _relayed(event(data % figure), cached) == event(data % str(cached).encode())
    assert _relayed(event(data % figure), None) == event(data % figure)


@pytest.mark.parametrize(
    "usage",
    [
        b"null",
        b"{}",
        b'{"prompt_tokens_details":null}',
        b'{"prompt_tokens_details":{}}',
        b'{"prompt_tokens_details":5}',
        b'{"prompt_tokens_details":{"cached_tokens":null}}',
        b'{"prompt_tokens_details":{"cached_tokens":"128"}}',
        b'{"prompt_tokens_details":{"cached_tokens":1.5}}',
        b'{"prompt_tokens_details":{"cached_tokens":-1}}',
        b'{"prompt_tokens_details":{"cached_tokens":[128]}}',
    ],
)
def test_where_no_figure_is_given_none_is_put(usage: bytes) -> None:
    block = event(b'{"choices":[],"usage":%s}' % usage)
    assert _relayed(block) == block


@pytest.mark.parametrize("keep_ids", [True, False])
def test_figure_and_ids_change_in_one_event_of_several_lines(keep_ids: bool) -> None:
    ids = (
        [b'"token_ids":[\ndata: 1],\r\ndata:', b',"prompt_text":"x"']
        if keep_ids
        else [b"\ndata: \r\ndata:", b""]
    )
    block = (
        b'id: 1\ndata: {%s"usage":{"prompt_tokens_details":{\rdata: "cached_tokens":\n: note\ndata:%s}}\n'
        b'data: ,"choices":[]%s}\n\n'
    )
    came = block % (b'"token_ids":[\ndata: 1],\r\ndata:', b" 128 ", b',"prompt_text":"x"')
    assert _relayed(came, 42, keep_ids) == block % (ids[0], b" 42 ", ids[1])


# Bounds and memory.


def test_an_event_larger_than_the_limit_fails_however_it_comes() -> None:
    block = event(chat("x" * 300))
    for limit, failure in [(len(block), None), (len(block) - 1, "broken_stream")]:
        for pieces in splits(block):
            client = Client(Asked(limit=limit))
            client.feed(*pieces)
            assert client.relay.failure == failure


def test_what_is_held_before_the_first_output_is_bounded() -> None:
    comment = b": " + b"x" * 97 + b"\n"
    for pieces in ([comment + b"\n"] * 11, [(comment + b"\n") * 11]):
        client = Client(Asked(limit=1000))
        client.feed(*pieces)
        assert client.relay.failure == "broken_stream"
        assert "without any output" in str(client.relay.failure_message)
        assert client.transport.writes == []


def test_a_stream_with_nothing_pending_keeps_no_buffers() -> None:
    size = 4 << 20
    client = Client(Asked(limit=size * 2))
    client.feed(event(chat("a")))
    client.transport.writes.clear()
    client.transport.write = lambda data: None  # type: ignore[method-assign]
    tracemalloc.start()
    try:
        half = chat("x" * size)
        client.feed(b"data: ", half[: size // 2])
        pending = tracemalloc.get_traced_memory()[0]
        client.feed(half[size // 2 :], b"\n\n")
        del half
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert client.relay.output_events == 2
    assert pending > size * 3 // 2
    assert left < 100_000


def test_after_a_failure_nothing_is_kept_of_what_was_held() -> None:
    client = Client()
    tracemalloc.start()
    try:
        client.feed(b": " + b"x" * 1_000_000 + b"\n\n", event(ERROR))
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert left < 100_000
