"""The JSON cursor: the same verdict as Python's json, save where RFC 8259 is stricter, and true spans."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings

from narwhal._fast.json import check, members
from tests.fast import json_text

NULL, FALSE, TRUE, INT, FLOAT, STRING, ARRAY, OBJECT = range(8)
MAX_DEPTH = 256


class _Float(str):
    """A number with a fraction or an exponent, as written."""


class _Int(str):
    """Any other number, as written."""


def _loads(data: bytes) -> Any:
    """What Python's json reads, with what the cursor refuses on purpose refused: bad UTF-8, NaN, Infinity."""

    def refuse(name: str) -> Any:
        raise ValueError(name)

    return json.loads(data.decode(), parse_constant=refuse, parse_float=_Float, parse_int=_Int)


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return TRUE if value else FALSE
    kinds = {type(None): NULL, _Int: INT, _Float: FLOAT, str: STRING, list: ARRAY, dict: OBJECT}
    return kinds[type(value)]


def _verdict(data: bytes) -> int | None:
    try:
        return check(data)
    except ValueError:
        return None


def _python_verdict(data: bytes) -> int | None:
    try:
        return _kind(_loads(data))
    except ValueError:
        return None


def _same_verdicts(texts: Iterable[bytes]) -> None:
    assert [data for data in texts if _verdict(data) != _python_verdict(data)] == []


@settings(deadline=None, max_examples=150)
@given(json_text.padded(json_text.VALUES))
def test_every_json_text_is_read(text: str) -> None:
    assert check(text.encode()) == _kind(_loads(text.encode()))


@settings(deadline=None, max_examples=150)
@given(json_text.mangled(json_text.VALUES))
def test_a_mangled_text_gets_the_verdict_python_gives(data: bytes) -> None:
    _same_verdicts([data])


@pytest.mark.parametrize(("alphabet", "longest"), [('[]{},:"1 ', 5), ("-+01.e", 6)])
def test_every_short_text_of_these_characters_gets_the_verdict_python_gives(
    alphabet: str, longest: int
) -> None:
    _same_verdicts(
        "".join(text).encode() for n in range(longest + 1) for text in itertools.product(alphabet, repeat=n)
    )


def test_every_byte_and_every_escape_is_judged_wherever_it_lies_in_a_string() -> None:
    for lead, offset in itertools.product((b"", b"\\", b"\\u00e", b"\\u0", b"\\u00e90"), range(12)):
        _same_verdicts(b'"' + b"x" * offset + lead + bytes([b]) + b"0" * 9 + b'"' for b in range(256))
        _same_verdicts(b'"' + b"x" * offset + lead + bytes([b]) for b in range(256))


def test_a_number_ends_at_the_first_byte_that_is_no_digit() -> None:
    for digits, lead in itertools.product(range(18), (b"", b"-", b"1.", b"1e")):
        _same_verdicts(b"[" + lead + b"7" * digits + bytes([b]) + b"8" * 9 + b"]" for b in range(256))
        _same_verdicts(b"[" + lead + b"7" * digits + bytes([b]) for b in range(256))


def test_utf8_is_verified_at_every_boundary_of_its_table() -> None:
    leads = bytes.fromhex("7f 80 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 f7 f8 ff")
    others = bytes.fromhex("22 7f 80 8f 90 9f a0 bf c0")
    for tail in (b"", b'"', b'"]', b'  "'):
        _same_verdicts(
            b'"' + bytes(sequence) + tail
            for n in range(4)
            for sequence in itertools.product(leads, *[others] * n)
        )


@settings(deadline=None, max_examples=100)
@given(json_text.VALUES.filter(lambda text: text[0] in '{["'))
def test_every_proper_prefix_is_refused(text: str) -> None:
    data = text.encode()
    for end in range(len(data)):
        with pytest.raises(ValueError, match=r"^byte \d+: "):
            check(data[:end])


@settings(deadline=None, max_examples=100)
@given(json_text.padded(json_text.object_of(json_text.NAMES, json_text.VALUES)))
def test_an_objects_members_are_found_where_they_lie(text: str) -> None:
    data = text.encode()
    found = members(data)
    pairs: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=lambda pairs: pairs)
    assert [json.loads(data[start:end]) for (start, end), _ in found] == [name for name, _ in pairs]
    values = [data[start:end] for _, (start, end) in found]
    assert [json.loads(value, object_pairs_hook=lambda pairs: pairs) for value in values] == [
        value for _, value in pairs
    ]
    assert values == [value.strip() for value in values]


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_bounded(opening: str, closing: str) -> None:
    deepest = opening * (MAX_DEPTH - 1) + "[]" + closing * (MAX_DEPTH - 1)
    assert check(deepest.encode()) in (ARRAY, OBJECT)
    with pytest.raises(ValueError, match="nested too deeply"):
        check((opening + deepest + closing).encode())
    with pytest.raises(ValueError, match="nested too deeply"):
        check(opening.encode() * 1_000_000)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"a":1,}', "byte 7: a key in quotes should be here"),
        (b"[1 2]", "byte 3: a comma or ] should be here"),
        (b'["\xff"]', "byte 2: not UTF-8"),
        (b'["\n"]', "byte 2: a control character in a string"),
        (b"[nul]", "byte 1: no value begins like this"),
        (b"[]x", "byte 2: something follows the value"),
    ],
)
def test_a_refusal_names_byte_and_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        check(data)
    assert str(caught.value) == reason


def test_members_of_what_is_no_object_are_refused() -> None:
    for data in (b"[]", b"", b'{"a":1', b'{"a":1}x'):
        with pytest.raises(ValueError, match=r"^byte \d+: "):
            members(data)
