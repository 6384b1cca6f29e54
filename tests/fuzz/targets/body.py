"""A request's body: read, checked, edited."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from random import Random
from typing import Any

from narwhal import request
from narwhal._fast import fields
from narwhal._fast.body import Body, Kind
from narwhal._fast.json import check as check_json
from narwhal._fast.json import members
from narwhal.outcomes import Ending
from tests.fast.oracles import fields as oracle
from tests.fast.oracles import grammar
from tests.fuzz import changes
from tests.fuzz.reads import dice, exactly
from tests.recordings import recordings

_NAMES = r"""
    model stream stream_options include_usage return_token_ids n best_of max_tokens max_completion_tokens
    min_tokens modalities tools messages prompt role content type function text audio functions tool_choice
    temperature \ud83d x
"""
NAMES = (b"", *_NAMES.encode().split())
PUT = {"stream": b"false", "max_tokens": b"1", 'q"\\': b'{"a": [1]}'}

Pairs = list[tuple[str, Any]]


class Written(str):
    """A number as it is written."""


class Whole(Written):
    """One without fraction and exponent."""


def seeds() -> Iterator[bytes]:
    """Recorded requests, and a few with every list."""
    for recording in recordings().values():
        if recording.request is not None:
            yield json.dumps(recording.request).encode()
    yield (
        b'{"model":"m","n":1,"prompt":[1,2,3],"stream":true,"stream_options":{"include_usage":false},'
        b'"modalities":["text","audio"],"max_tokens":10}'
    )
    yield (
        b'{"messages":[{"role":"user","content":[{"type":"text","text":"\\"]}"}]}],"tools":[{"type":"function",'
        b'"function":{"name":"f"}},{"function":{}}],"tool_choice":"auto","max_completion_tokens":1e0}'
    )
    yield b'{ "prompt" : [[1, 2147483647]] , "x":1,"x": 2 }\n'


def change(data: bytes, random: Random) -> bytes:
    """Another body."""
    return changes.json_text(data, random, NAMES)


def _pairs(data: bytes) -> Any:
    return grammar.loads(
        data, object_pairs_hook=lambda pairs: ("object", pairs), parse_int=Whole, parse_float=Written
    )


def _kind(value: Any) -> Kind:
    if isinstance(value, bool):
        return Kind.TRUE if value else Kind.FALSE
    kinds = {
        type(None): Kind.NULL, Whole: Kind.INT, Written: Kind.FLOAT, str: Kind.STRING, list: Kind.ARRAY,
        tuple: Kind.OBJECT,
    }  # fmt: skip
    return kinds[type(value)]


def check(data: bytes) -> None:
    """It is taken exactly if it is an object, read as json reads it, and edited where told."""
    try:
        value = _pairs(data)
    except ValueError:
        _refused(data)
        return
    assert check_json(exactly(data)) == _kind(value)
    for route in request.Route:
        with contextlib.suppress(Ending):
            request.read(route, data, model="m", headers={})
    try:
        body = Body(data)
    except TypeError:
        assert not isinstance(value, tuple)
        return
    pairs: Pairs = value[1]
    _check_reading(body, data, pairs)
    _check_lists(body, json.loads(data.decode(), parse_int=_unsigned))
    _check_editing(body, pairs)


def _refused(data: bytes) -> None:
    for read in (check_json, members, lambda _: Body(data)):
        try:
            seen = read(exactly(data))
        except ValueError:
            continue
        raise AssertionError(f"{read} made {seen} of what is not JSON")


def _check_reading(body: Body, data: bytes, pairs: Pairs) -> None:
    spans = members(exactly(data))
    assert [json.loads(data[slice(*key)]) for key, _ in spans] == [name for name, _ in pairs]
    assert [_pairs(data[slice(*value)]) for _, value in spans] == [value for _, value in pairs]
    last = dict(pairs)
    assert body.keys() == list(last)
    for name, value in last.items():
        raw = body.raw_value(name)
        assert raw is not None
        assert _pairs(raw) == value, (name, raw)
        assert raw == raw.strip()
        assert body.value_size(name) == len(raw)
        assert body.kind(name) is _kind(value), name
        natural = int(value) if type(value) is Whole and int(value) >= 0 else -1
        assert body.natural(name) == min(natural, 2**63 - 1), name
        inner = dict(value[1]) if isinstance(value, tuple) else {}
        for key in ("include_usage", "type"):
            found = body.inner(name, key)
            assert (found is not None) == (key in inner), (name, key)
            if found is not None:
                assert (found[0], _pairs(found[1])) == (_kind(inner[key]), inner[key]), (name, key)


def _unsigned(digits: str) -> int | float:
    # A token ID has no sign, so -0 is none.
    return -0.0 if digits == "-0" else int(digits)


def _path(fault: fields.Fault | None) -> str | None:
    return None if fault is None else fault.path


def _check_lists(body: Body, value: dict[str, Any]) -> None:
    if isinstance(items := value.get("messages"), list):
        assert _path(fields.check_messages(body)) == oracle.messages(items)
    if isinstance(items := value.get("tools"), list):
        assert _path(fields.check_tools(body)) == oracle.tools(items)
        if oracle.tools(items) is None:
            assert _path(fields.foreign_tool(body)) == oracle.foreign_tool(items)
    if isinstance(items := value.get("modalities"), list):
        assert _path(fields.check_modalities(body)) == oracle.modalities(items)
        if oracle.modalities(items) is None:
            assert (fields.foreign_modality(body) is not None) == any(item != "text" for item in items)
    if isinstance(prompt := value.get("prompt"), str | list):
        found = fields.read_prompt(body)
        assert (found.path if isinstance(found, fields.Fault) else found) == oracle.prompt(prompt), found


def _check_editing(body: Body, pairs: Pairs) -> None:
    assert b"".join(body.edit(set(), {})) == body.raw
    random = dice(body.raw)
    names = sorted({name for name, _ in pairs} | PUT.keys())
    drop = set(random.sample(names, random.randrange(len(names))))
    put = dict(random.sample(sorted(PUT.items()), random.randrange(len(PUT) + 1)))
    expected: Pairs = []
    for name, value in pairs:
        if name not in put:
            expected += [] if name in drop else [(name, value)]
        elif name not in dict(expected):
            expected.append((name, _pairs(put[name])))
    expected += [(name, _pairs(value)) for name, value in put.items() if name not in dict(pairs)]
    pieces = body.edit(drop, put)
    edited = b"".join(pieces)
    assert Body.size(pieces) == len(edited)
    assert _pairs(edited) == ("object", expected), (drop, put, edited)
