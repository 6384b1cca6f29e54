"""The inputs that fuzzing begins with and has found still pass, without a fuzzer."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.one import FOLDER, TARGETS, load, seeds_of


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_kept_crashes_or_is_disputed(name: str) -> None:
    target = load(name)
    kept = [path.read_bytes() for path in sorted((FOLDER / "corpus" / name).iterdir())]
    assert kept
    for data in (*kept, *seeds_of(target)):
        target.check(data)


@pytest.mark.parametrize("name", TARGETS)
def test_any_input_can_be_changed(name: str) -> None:
    target = load(name)
    odd = (b"", b"\0", b'{"a":', b"[,]", b'"', b"data:\n\n\r", b"0\r\n")
    for number, data in enumerate((*odd * 20, *seeds_of(target))):
        assert isinstance(target.change(data, Random(number)), bytes)
