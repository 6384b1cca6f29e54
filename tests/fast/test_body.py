"""The body reader and splicer against the parts a text was put together from, and against Python's json."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal._fast.body import Body, Kind

moderate = settings(max_examples=150, deadline=None)

KEYS = ("stream", "n", "max_tokens", "a b", "", "ключ", 'q"\\/', "\ud83d", "🦄", "x" * 40)
SPACES = st.sampled_from(("", "", " ", "\n  ", "\t", "\r\n"))
ODD_VALUES = (
    "1.10",
    "-0",
    "1E5",
    "123456789012345678901234567890",
    '"\\ud800"',
    '"\\u0041"',
    "[ ]",
    '{"a":1,"a":2}',
)


class Member(NamedTuple):
    key: str
    text: str  # the key as written, up to the value
    value: str


class Parts(NamedTuple):
    """A JSON object's text, member by member."""

    head: str  # up to the first member
    members: list[Member]
    separators: list[str]  # before each member; the first is not used
    tail: str  # from the last member's end, or from the opening bracket if there is none

    @property
    def raw(self) -> bytes:
        return self.put_together([m.text + m.value for m in self.members], self.separators)

    def put_together(self, members: list[str], separators: list[str]) -> bytes:
        text = self.head
        for i, member in enumerate(members):
            text += (separators[i] if i else "") + member
        return (text + self.tail).encode()


@st.composite
def spelt_keys(draw: st.DrawFn) -> tuple[str, str]:
    key = draw(st.sampled_from(KEYS))
    escape = draw(st.sampled_from(("none", "some", "all")))
    text = ""
    for i, unit in enumerate(key):
        if unit == "\ud83d" or (ord(unit) < 0x10000 and (escape == "all" or (escape == "some" and i % 2))):
            text += f"\\u{ord(unit):04x}"
        else:
            text += json.dumps(unit, ensure_ascii=False)[1:-1]
    return key, f'"{text}"'


VALUES = st.one_of(
    st.sampled_from(ODD_VALUES),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=3,
    ).map(lambda value: json.dumps(value, ensure_ascii=False)),
    st.integers(4000, 5000).map(lambda n: f'"{"p" * n}"'),
)


@st.composite
def objects(draw: st.DrawFn) -> Parts:
    members = []
    for _ in range(draw(st.integers(0, 6))):
        key, spelt = draw(spelt_keys())
        members.append(Member(key, f"{spelt}{draw(SPACES)}:{draw(SPACES)}", draw(VALUES)))
    return Parts(
        head=f"{draw(SPACES)}{{" + (draw(SPACES) if members else ""),
        members=members,
        separators=[f"{draw(SPACES)},{draw(SPACES)}" for _ in members],
        tail=f"{draw(SPACES)}}}{draw(SPACES)}",
    )


drops = st.sets(st.sampled_from(KEYS), max_size=4)
puts = st.dictionaries(
    st.sampled_from([key for key in KEYS if key != "\ud83d"]), VALUES.map(str.encode), max_size=4
)


def edited(parts: Parts, drop: set[str], put: dict[str, bytes]) -> bytes:
    """The obvious way: go through the members, keep, replace or leave out each, add what is new."""
    members, separators = [], []
    replaced = set()
    for member, separator in zip(parts.members, parts.separators, strict=True):
        if member.key in put:
            if member.key in replaced:
                continue
            replaced.add(member.key)
            members.append(member.text + put[member.key].decode())
        elif member.key in drop:
            continue
        else:
            members.append(member.text + member.value)
        separators.append(separator)
    for key, value in put.items():
        if key not in replaced:
            members.append(json.dumps(key, ensure_ascii=False) + ":" + value.decode())
            separators.append(",")
    return parts.put_together(members, separators)


def as_sent(raw: bytes) -> dict[str, Any]:
    # Numbers as they are written: 1.10 is not 1.1 to whoever compares bytes.
    value = json.loads(raw, parse_int=lambda s: ("int", s), parse_float=lambda s: ("float", s))
    assert isinstance(value, dict)
    return value


@moderate
@given(objects(), drops, puts)
def test_an_edit_touches_what_was_named_and_nothing_else(
    parts: Parts, drop: set[str], put: dict[str, bytes]
) -> None:
    pieces = Body(parts.raw).edit(drop, put)
    assert b"".join(pieces) == edited(parts, drop, put)
    assert Body.size(pieces) == len(b"".join(pieces))


@moderate
@given(objects(), drops, puts)
def test_an_edited_body_means_what_the_edited_dict_means(
    parts: Parts, drop: set[str], put: dict[str, bytes]
) -> None:
    expected = {key: value for key, value in as_sent(parts.raw).items() if key not in drop or key in put}
    for key, value in put.items():
        expected[key] = as_sent(b'{"v":' + value + b"}")["v"]
    assert as_sent(b"".join(Body(parts.raw).edit(drop, put))) == expected


@moderate
@given(objects())
def test_reading_goes_by_the_last_of_several_equal_keys(parts: Parts) -> None:
    body = Body(parts.raw)
    last = {member.key: member.value for member in parts.members}
    assert body.keys() == list(last)
    for key in KEYS:
        if key not in last:
            assert (body.kind(key), body.raw_value(key), body.value(key)) == (None, None, None)
            assert body.value_size(key) == 0
            continue
        assert body.raw_value(key) == last[key].encode()
        assert body.value_size(key) == len(last[key].encode())
        value = json.loads(last[key], parse_int=within_64_bits)
        assert body.kind(key) is kind_of(json.loads(last[key]))
        assert body.value(key) == value
        assert body.natural(key) == natural(json.loads(last[key]))
        inner = json.loads(last[key])
        assert body.inner_natural(key, "a") == (natural(inner.get("a")) if isinstance(inner, dict) else -1)
        if isinstance(value, dict) and "a" in value:
            kind, raw = body.inner(key, "a") or (None, b"")
            assert kind is kind_of(value["a"])
            assert json.loads(raw) == value["a"]


def within_64_bits(digits: str) -> int | float:
    return int(digits) if -(2**63) <= int(digits) < 2**64 else float(digits)


def natural(value: object) -> int:
    return min(value, 2**63 - 1) if type(value) is int and value >= 0 else -1


def kind_of(value: object) -> Kind:
    if value is None:
        return Kind.NULL
    if isinstance(value, bool):
        return Kind.TRUE if value else Kind.FALSE
    kinds = {int: Kind.INT, float: Kind.FLOAT, str: Kind.STRING, list: Kind.ARRAY, dict: Kind.OBJECT}
    return kinds[type(value)]


def no_constants(name: str) -> NoReturn:
    raise ValueError(name)


def verdict(parse: Callable[[bytes], object], raw: bytes) -> str:
    try:
        return "object" if isinstance(parse(raw), (dict, Body)) else "another value"
    except TypeError:
        return "another value"
    except ValueError:
        return "not JSON"


@settings(max_examples=300, deadline=None)
@given(objects(), st.data())
def test_a_body_is_taken_exactly_if_it_is_a_json_object(parts: Parts, data: st.DataObject) -> None:
    raw = bytearray(parts.raw)
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from(
                (b"", b",", b'"', b"}", b"{", b"[", b"\\", b"0", b".", b"\x00", b"\xff", b" ", b"null")
            )
        )
    expected = verdict(lambda raw: json.loads(raw.decode(), parse_constant=no_constants), bytes(raw))
    assert verdict(Body, bytes(raw)) == expected


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"", "nothing was sent"),
        (b"\xef\xbb\xbf{}", "byte 0: a byte order mark"),
        (b'{"a":"\xc3"}', "byte 6: not UTF-8"),
        (b'{"a":NaN}', "byte 5: no value begins like this"),
        (b"{} {}", "byte 3: something follows the value"),
        (b'{"a":' + b"[" * 300 + b"]" * 300 + b"}", "nested too deeply"),
    ],
)
def test_the_complaint_says_what_is_wrong_where(raw: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Body(raw)


def test_the_number_of_members_is_bounded() -> None:
    members = [f'"k{i}":{i}' for i in range(4097)]
    assert len(Body(("{" + ",".join(members[:-1]) + "}").encode()).keys()) == 4096
    with pytest.raises(TypeError, match="more than 4096 members"):
        Body(("{" + ",".join(members) + "}").encode())


def test_large_stretches_are_views_of_what_came() -> None:
    raw = b'{"stream":true,"prompt":"' + b"x" * 100_000 + b'","n":1,"suffix":"' + b"y" * 100_000 + b'"}'
    pieces = Body(raw).edit({"n"}, {"stream": b"false", "seed": b"1"})
    views = [piece for piece in pieces if isinstance(piece, memoryview)]
    assert all(view.obj is raw for view in views)
    assert Body.size(pieces) - sum(map(len, views)) < 100


def test_a_small_body_is_one_piece() -> None:
    pieces = Body(b'{ "a": 1, "stream": true, "b": 2 }').edit({"b"}, {"stream": b"false", "c": b"3"})
    assert pieces == [b'{ "a": 1, "stream": false,"c":3 }']
