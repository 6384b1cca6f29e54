"""The event scanner against its slow oracle, and the rules it keeps, by example."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from narwhal._fast.scan import Beginning, Scan, excise, scan, tally
from tests.fast import json_text
from tests.fast.json_text import (
    NAMES,
    NUMBERS,
    SCALARS,
    SPELLINGS,
    STRINGS,
    VALUES,
    Text,
    array_of,
    object_,
    padded,
)
from tests.fast.oracles import scan as oracle

ABSENT, NULL, VALID, MALFORMED = range(4)
MAX_SPANS = 32

CHAT = (
    b'{"id":"chatcmpl-8f0e6f2e","object":"chat.completion.chunk","created":1764449823,"model":"m","choices":'
    b'[{"index":0,"delta":{"content":" the"},"logprobs":null,"finish_reason":null,"token_ids":[1234]}]}'
)
COMPLETION = (
    b'{"id":"cmpl-8f0e6f2e","object":"text_completion","created":1764449823,"model":"m","choices":[{"index":0,'
    b'"text":" a","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":[1,2],'
    b'"token_ids":[7,8]}],"usage":null}'
)
FIRST_CHAT = (
    b'{"id":"chatcmpl-8f0e6f2e","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
    b'"finish_reason":null}],"prompt_token_ids":[1,2,3],"prompt_text":"a \\"b\\""}'
)
USAGE = (
    b'{"id":"x","choices":[],"usage":{"prompt_tokens":229,"total_tokens":239,"completion_tokens":10,'
    b'"prompt_tokens_details":{"cached_tokens":128}}}'
)
ERROR = b'{"error": {"message": "lost", "type": "InternalServerError", "param": null, "code": 500}}'

# Texts of events, from what vLLM sends to what nobody should: known names in and out of their places, right
# and wrong values, now and then a name twice in its object.
_TRAPS = st.sampled_from(
    [
        r'"\"token_ids\":[1,"',
        r'"{\"choices\":[{\"token_ids\":[true]}]}"',
        '{"token_ids":[-1]}',
        '[{"token_ids":1}]',
        '{"choices":[{"text":"x","token_ids":[null]}]}',
        '"token_ids"',
        '["prompt_text","token_ids"]',
    ]
)


@st.composite
def _mostly(draw: st.DrawFn, usual: Text, odd: Text) -> str:
    """The odd one time in six: unions would give every branch of the odd its own chance."""
    return draw(usual if draw(st.integers(0, 5)) < 5 else odd)


_ANYTHING = _TRAPS | SCALARS | VALUES
_ID_NUMBERS = st.sampled_from(["0", "7", "151643", "2147483647"]) | st.integers(0, 2**31 - 1).map(str)
_ODD_IDS = st.just("null") | array_of(NUMBERS) | array_of(_ANYTHING) | _ANYTHING
_IDS = _mostly(array_of(_ID_NUMBERS), _ODD_IDS)
_TEXTS = _mostly(st.sampled_from(['" the"', '""', '"a b"', "null"]) | STRINGS, _ANYTHING)
_COUNTS = _mostly(NUMBERS, _ANYTHING)
_CUT: dict[str, Text] = {"token_ids": _IDS, "prompt_token_ids": _IDS, "prompt_text": _TEXTS}
_OUTPUT: dict[str, Text] = dict.fromkeys(sorted(oracle.OUTPUT), _TEXTS)
_STRAYS = st.sampled_from(sorted(oracle.READ_AT_TOP | oracle.READ_IN_CHOICE | oracle.READ_IN_USAGE)) | NAMES


@st.composite
def _object(draw: st.DrawFn, wild: bool, values: dict[str, Text], likely: tuple[str, ...] = ()) -> str:
    names = {name for name in likely if draw(st.integers(0, 3)) < 3}
    names.update(draw(st.lists(st.sampled_from(sorted(values)), max_size=4)))
    members = [(name, draw(values[name])) for name in sorted(names)]
    if wild and draw(st.integers(0, 3)) == 3:
        members.append((draw(_STRAYS), draw(_ANYTHING)))
    spelling = draw(SPELLINGS)
    spelling.shuffle(members)
    return object_(members, spelling)


def _events(wild: bool) -> Text:
    """Texts of events; if wild, with objects and lists of another type, and strays that repeat a name."""

    def typed(texts: Text) -> Text:
        return _mostly(texts, _ANYTHING if wild else st.just("null"))

    delta = _object(wild, _CUT | _OUTPUT | {"role": STRINGS}, ("content",))
    choice = _object(
        wild,
        _CUT
        | _OUTPUT
        | {"index": NUMBERS, "logprobs": _ANYTHING, "message": _mostly(delta, _ANYTHING)}
        | {
            "delta": typed(delta),
            "finish_reason": typed(st.sampled_from(["null", '""', '"stop"', '"length"'])),
        },
        ("delta", "finish_reason", "token_ids"),
    )
    details = _object(wild, {"cached_tokens": _COUNTS, "audio_tokens": _COUNTS}, ("cached_tokens",))
    usage = _object(
        wild,
        {"prompt_tokens": _COUNTS, "completion_tokens": _COUNTS, "total_tokens": _COUNTS}
        | {"prompt_tokens_details": _mostly(details, _ANYTHING)},
        ("prompt_tokens", "prompt_tokens_details"),
    )
    choices = array_of(typed(choice) if wild else choice, max_size=3)
    top = {"choices": typed(choices), "usage": typed(usage), "error": _ANYTHING}
    others = {"id": STRINGS, "model": STRINGS, "created": NUMBERS, "metadata": _ANYTHING}
    return padded(_object(wild, _CUT | top | others, ("choices", "usage")))


EVENTS = _events(wild=False)
WILD_EVENTS = _events(wild=True)


def _agree(data: bytes) -> None:
    try:
        expected = oracle.scan(data)
    except ValueError:
        with pytest.raises(ValueError, match=r"^byte \d+: "):
            scan(data)
        with pytest.raises(ValueError, match=r"^byte \d+: "):
            excise(data)
        return
    found = scan(data)
    assert found._replace(spans=()) == expected
    left = excise(data)
    assert left == oracle.excise(data)
    assert oracle.loads(left) == oracle.without_ids(oracle.loads(data))
    edges = [edge for span in found.spans for edge in span]
    assert edges == sorted(set(edges))
    assert scan(left).spans == ()


@settings(deadline=None, max_examples=300)
@given(EVENTS | WILD_EVENTS)
def test_what_an_event_says_is_what_the_oracle_reads(text: str) -> None:
    _agree(text.encode())


@settings(deadline=None, max_examples=300)
@given(
    json_text.mangled(
        WILD_EVENTS | st.sampled_from([CHAT, COMPLETION, FIRST_CHAT, USAGE, ERROR]).map(bytes.decode)
    )
)
def test_a_mangled_event_is_refused_or_read_like_the_oracle_reads_it(data: bytes) -> None:
    _agree(data)


@settings(deadline=None, max_examples=25)
@given(EVENTS)
def test_an_event_cut_short_anywhere_is_refused(text: str) -> None:
    data = text.strip().encode()
    for end in range(len(data)):
        with pytest.raises(ValueError, match=r"^byte \d+: "):
            scan(data[:end])


@pytest.mark.parametrize("data", [CHAT, COMPLETION, FIRST_CHAT, USAGE, ERROR])
def test_events_as_engines_send_them_are_read_like_the_oracle_reads_them(data: bytes) -> None:
    _agree(data)


def _read(data: bytes, beginning: Beginning | None) -> Scan | str:
    try:
        return scan(data, beginning)
    except ValueError as error:
        return str(error)


@st.composite
def _streams(draw: st.DrawFn) -> list[bytes]:
    """Events of which each begins like the one before it, up to anywhere, and goes on like another."""
    texts = st.sampled_from([CHAT, COMPLETION, FIRST_CHAT, USAGE]) | (EVENTS | WILD_EVENTS).map(str.encode)
    event = draw(texts)
    stream = [event]
    for _ in range(draw(st.integers(1, 6))):
        other = draw(st.just(event) | texts)
        # Half of the time where the output stands, so that both halves are likely to make an event.
        places = [match.end() for match in re.finditer(rb'"(?:content|text)": *|[,{]', event)] + [len(event)]
        cut = draw(st.sampled_from(places) | st.integers(0, len(event)))
        names = [match.end() for match in re.finditer(rb'"(?:content|text)": *', other)] or [len(other)]
        event = event[:cut] + other[draw(st.just(cut) | st.sampled_from(names)) :]
        stream.append(event)
    return stream


@settings(deadline=None, max_examples=200)
@given(_streams())
@example([CHAT, CHAT, FIRST_CHAT, CHAT.replace(b" the", b"")])
@example([COMPLETION, COMPLETION.replace(b"prompt_token_ids", b"token_ids"), COMPLETION])
def test_what_a_streams_events_share_need_not_be_read_twice(stream: list[bytes]) -> None:
    beginning = Beginning()
    for event in stream:
        assert _read(event, beginning) == _read(event, None)


def test_of_events_that_begin_alike_all_before_the_output_is_kept() -> None:
    for event, name in ((CHAT, b'"content":'), (COMPLETION, b'"text":'), (FIRST_CHAT, b'"content":')):
        beginning = Beginning()
        for _ in range(2):
            scan(event, beginning)
            assert beginning.text == event[: event.index(name) + len(name)]
    beginning = Beginning()
    for event in (USAGE, b'{"a":"' + b"x" * 300 + b'",' + CHAT[1:]):
        scan(event, beginning)
        assert beginning.text == b""


def test_a_chat_event_with_output_and_its_ids() -> None:
    found = scan(CHAT)
    assert (found.has_output, found.finished, found.choices) == (True, False, 1)
    assert (found.ids, found.id_count) == (VALID, 1)
    assert excise(CHAT) == CHAT.replace(b',"token_ids":[1234]', b"")


@pytest.mark.parametrize(("reason", "finished"), [(b"null", False), (b'""', False), (b'" "', True)])
def test_an_empty_finish_reason_finishes_nothing(reason: bytes, finished: bool) -> None:
    data = b'{"choices":[{"finish_reason":%b}]}' % reason
    assert scan(data).finished is finished
    _agree(data)


def test_the_prompts_ids_are_cut_but_never_counted() -> None:
    assert (scan(COMPLETION).id_count, scan(FIRST_CHAT).ids) == (2, ABSENT)
    assert excise(FIRST_CHAT).endswith(b'"finish_reason":null}]}')
    assert excise(COMPLETION).endswith(b'"stop_reason":null}],"usage":null}')


def test_usage_is_read_and_the_cached_figure_located() -> None:
    found = scan(USAGE)
    assert (found.choices, found.has_output, found.has_usage) == (0, False, True)
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (229, 10, 128)
    assert found.cached_value is not None
    assert USAGE[slice(*found.cached_value)] == b"128"


def test_an_error_object_is_located() -> None:
    found = scan(ERROR)
    assert found.error_object is not None
    assert ERROR[slice(*found.error_object)] == ERROR[len('{"error": ') : -1]
    assert scan(b'{"error":null,"choices":[]}').error_object is None


@pytest.mark.parametrize(
    ("value", "is_output"),
    [
        *((value, False) for value in (b"null", b'""', b"[]", b"{}", b"[ \n]", b"{\t}")),
        *(
            (value, True)
            for value in (b'" "', b'"\\u0000"', b"[{}]", b'{"a":null}', b"0", b"false", b"[null]")
        ),
    ],
)
@pytest.mark.parametrize("name", sorted(oracle.OUTPUT))
def test_whatever_carries_a_value_is_output(name: str, value: bytes, is_output: bool) -> None:
    member = b'"%s": %s' % (name.encode(), value)
    assert scan(b'{"choices":[{%s}]}' % member).has_output is is_output
    assert scan(b'{"choices":[{"delta":{%s}}]}' % member).has_output is is_output
    assert not scan(
        b'{%s,"choices":[{"logprobs":{%s},"message":{%s}}]}' % (member, member, member)
    ).has_output


@pytest.mark.parametrize(
    ("value", "count", "reason"),
    [
        (b"[]", 0, None),
        (b"[0,1 , 2147483647 ]", 3, None),
        (b"[2147483648]", 0, "a number beyond 2147483647"),
        (b"[99999999999999999999999]", 0, "a number beyond 2147483647"),
        (b"[10000000001,1]", 1, "a number beyond 2147483647"),
        (b"[1,-1]", 1, "a negative number"),
        (b"[-0]", 0, "a negative number"),
        (b"[true]", 0, "a Boolean"),
        (b"[1,false,null]", 1, "a Boolean"),
        (b"[1.0]", 0, "a number with a fraction or an exponent"),
        (b"[1e2,3]", 1, "a number with a fraction or an exponent"),
        (b'["1"]', 0, "a string"),
        (b"[null]", 0, "a null in the list"),
        (b"[[1]]", 0, "a nested list"),
        (b"[{}]", 0, "an object"),
        (b"{}", 0, "not a list"),
        (b"7", 0, "not a list"),
        (b'"[1]"', 0, "not a list"),
        (b"false", 0, "not a list"),
    ],
)
def test_an_id_is_a_plain_integer_from_0_to_2147483647(value: bytes, count: int, reason: str | None) -> None:
    for data in (
        b'{"choices":[{"token_ids":%s}]}' % value,
        b'{"choices":[{"delta":{"token_ids":%s}}]}' % value,
    ):
        found = scan(data)
        assert (found.ids, found.id_count, found.ids_error) == (MALFORMED if reason else VALID, count, reason)


@pytest.mark.parametrize(
    ("choices", "state", "count"),
    [
        (b"[]", ABSENT, 0),
        (b"[{}]", ABSENT, 0),
        (b'[{"token_ids":null},{}]', NULL, 0),
        (b'[{"token_ids":[1]},{"token_ids":null}]', VALID, 1),
        (b'[{"token_ids":null},{"token_ids":[1,2]},{"token_ids":[3]}]', VALID, 3),
        (b'[{"token_ids":null,"delta":{"token_ids":[1]}}]', VALID, 1),
        (b'[{"token_ids":[1],"delta":{"token_ids":[1]}}]', MALFORMED, 2),
        (b'[{"token_ids":[1]},{"token_ids":5},{"token_ids":null}]', MALFORMED, 1),
    ],
)
def test_of_several_lists_the_worst_tells_the_events_state(choices: bytes, state: int, count: int) -> None:
    found = scan(b'{"choices":%s}' % choices)
    assert (found.ids, found.id_count) == (state, count)


def test_names_in_strings_and_in_other_places_mean_nothing_and_stay() -> None:
    data = (
        b'{"x":{"token_ids":[-1]},"choices":[{"text":"\\"token_ids\\":[1]","logprobs":{"token_ids":[true]},'
        b'"\\u0174oken_ids":[4],"delta":{"tool_calls":[{"prompt_text":"a","token_ids":null}]}}],"usage":{"token_ids":[2]},'
        b'"error":{"prompt_token_ids":[3]}}'
    )
    assert scan(data).ids == ABSENT
    assert excise(data) == data


def test_an_escaped_name_is_the_same_name() -> None:
    data = b'{"choices":[{"text":"a","token\\u005fids":[1,2]}],"\\u0070rompt_text":"b"}'
    assert scan(data).id_count == 2
    assert excise(data) == b'{"choices":[{"text":"a"}]}'


@pytest.mark.parametrize(
    ("data", "left"),
    [
        (b'{"token_ids":[1]}', b"{}"),
        (b'{ "token_ids" : [1] }', b"{  }"),
        (b'{"token_ids":[1], "a":1}', b'{"a":1}'),
        (b'{"a":1 , "token_ids":[1] }', b'{"a":1 }'),
        (b'{"a":1, "token_ids":[1], "b":2}', b'{"a":1, "b":2}'),
        (b'{"token_ids":0 , "prompt_text":"" , "a":1 , "prompt_token_ids":[]}', b'{"a":1}'),
        (b'{"token_ids":0,"prompt_text":"","prompt_token_ids":[]}', b"{}"),
        (b'{"a":1,"token_ids":0,"prompt_text":"","b":2,"prompt_token_ids":[],"c":3}', b'{"a":1,"b":2,"c":3}'),
        (
            b'{"choices":[{"message":{"token_ids":[1],"content":"a"},"token_ids":[1]}]}',
            b'{"choices":[{"message":{"content":"a"}}]}',
        ),
    ],
)
def test_a_cut_takes_one_comma_along_and_nothing_else(data: bytes, left: bytes) -> None:
    assert excise(data) == left


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "byte 0: the text ends where a value should be"),
        (b"[DONE]", "byte 0: not a JSON object"),
        (b"null", "byte 0: not a JSON object"),
        (b"{} {}", "byte 3: something follows the object"),
        (b'{"choices":{}}', "byte 11: `choices` is not a list"),
        (b'{"choices":[null]}', "byte 12: a choice is not an object"),
        (b'{"choices":[{"delta":"a"}]}', "byte 21: `delta` is not an object"),
        (b'{"choices":[{"finish_reason":1}]}', "byte 29: `finish_reason` is neither a string nor null"),
        (b'{"usage":[]}', "byte 9: `usage` is not an object"),
        (b'{"choices":[{"text":"\x80"}]}', "byte 21: not UTF-8"),
        (b'{"choices":[{"token_ids":[1,01]}]}', "byte 29: a comma or ] should be here"),
        (b'{"choices":[{"token_ids":[1,]}]}', "byte 28: a value should be here"),
    ],
)
def test_a_text_that_is_no_event_is_refused_with_byte_and_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        scan(data)
    assert str(caught.value) == reason


def _in_place(place: str, members: str) -> bytes:
    return place.replace("*", members).encode()


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("{*}", oracle.READ_AT_TOP),
        ('{"choices":[{*}]}', oracle.READ_IN_CHOICE),
        ('{"choices":[{"delta":{*}}]}', oracle.READ_IN_DELTA),
        ('{"choices":[{"message":{*}}]}', oracle.CUT),
        ('{"usage":{*}}', oracle.READ_IN_USAGE),
        ('{"usage":{"prompt_tokens_details":{*}}}', {"cached_tokens"}),
    ],
)
def test_a_name_that_is_read_must_not_come_twice_in_its_object(place: str, names: set[str]) -> None:
    for name in sorted(
        oracle.READ_AT_TOP | oracle.READ_IN_CHOICE | oracle.READ_IN_USAGE | {"cached_tokens", "id"}
    ):
        data = _in_place(place, f'"{name}":null,"{name[0]}\\u{ord(name[1]):04x}{name[2:]}":null')
        if name in names:
            with pytest.raises(ValueError, match="a key is given twice"):
                scan(data)
        else:
            scan(data)


def test_more_cuts_than_there_is_room_for_are_refused() -> None:
    choice = '{"token_ids":[1],"index":0}'
    most = f'{{"choices":[{",".join([choice] * MAX_SPANS)}]}}'
    assert b"token_ids" not in excise(most.encode())
    with pytest.raises(ValueError, match="too many token-ID fields"):
        scan(most.replace("]}", f",{choice}]}}").encode())


def test_a_tally_sums_many_events() -> None:
    assert tally([CHAT, COMPLETION, FIRST_CHAT, USAGE, ERROR]) == (2, 3)
    with pytest.raises(ValueError, match="not a JSON object"):
        tally([CHAT, b"[]"])


RECORDED = Path(__file__).parents[1] / "data" / "streams"


def _recorded(name: str) -> dict[str, list[bytes]]:
    """By file name: the texts of all events recorded from real engines, or of a whole response's body."""
    found = {}
    for path in sorted(RECORDED.glob(f"*/{name}.http")):
        head, _, body = path.read_bytes().partition(b"\r\n\r\n")
        is_stream = b"text/event-stream" in head
        texts = re.findall(rb"^data: (.*)$", body, re.MULTILINE) if is_stream else [body]
        found[path.name] = [text for text in texts if text.startswith(b"{")]
    assert sum(map(len, found.values())) > 0
    return found


def test_recorded_events_are_read_like_the_oracle_reads_them() -> None:
    for events in _recorded("*").values():
        for event in events:
            _agree(event)


def test_recorded_output_comes_with_its_ids_where_they_were_asked_for() -> None:
    for name, events in _recorded("*-ids-stream").items():
        for event in events:
            found = scan(event)
            assert found.ids == VALID or not found.has_output, (name, event)


def test_recorded_ids_add_up_to_the_engines_own_usage() -> None:
    for name, events in _recorded("*-usage-ids-stream").items():
        usage = json.loads(events[-1])["usage"]
        assert (name, tally(events)[1]) == (name, usage["completion_tokens"])
