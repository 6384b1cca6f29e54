"""The journal: each row once and whole, no waiting for the disk, and no loss without a count."""

from __future__ import annotations

import json
import logging
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from narwhal.accounting.journal import Journal


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@contextmanager
def journal_at(path: Path, backlog: int = 10_000) -> Iterator[Journal]:
    journal = Journal(path, backlog=backlog, retry_s=0.002)
    try:
        yield journal
    finally:
        journal.close()


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def test_every_row_is_written_once_in_order_and_is_there_after_closing(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    with journal_at(path) as journal:
        for n in range(2000):
            journal.write({"n": n})
    assert numbers(path) == list(range(2000))
    assert (journal.written, journal.dropped, journal.errors) == (2000, 0, 0)


def test_a_row_is_written_soon_without_another_one_coming(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    with journal_at(path) as journal:
        journal.write({"n": 1})
        until(lambda: path.exists() and path.read_text() == '{"n":1}\n')


def test_an_existing_journal_is_added_to(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text('{"n":0}\n')
    with journal_at(path) as journal:
        journal.write({"n": 1})
    assert numbers(path) == [0, 1]


def test_reopening_goes_on_in_a_new_file_even_when_no_row_comes(tmp_path: Path) -> None:
    path, old = tmp_path / "j.jsonl", tmp_path / "j.jsonl.1"
    with journal_at(path) as journal:
        journal.write({"n": 1})
        until(lambda: journal.written == 1)
        path.rename(old)
        journal.reopen()
        until(path.exists)
        journal.write({"n": 2})
    assert (numbers(old), numbers(path)) == ([1], [2])


def test_rows_too_many_are_dropped_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    with journal_at(folder / "j.jsonl", backlog=3) as journal:
        until(lambda: journal.errors > 0)
        for n in range(1000):
            journal.write({"n": n})
        assert journal.dropped >= 1000 - 3 - 256  # the backlog, and what the thread has taken up
        dropped = journal.dropped
        folder.mkdir()
        until(lambda: journal.written + dropped == 1000)
    found = numbers(folder / "j.jsonl")
    assert found == sorted(set(found))
    assert len(found) == journal.written


def test_a_disk_error_is_said_once_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "missing"
    with caplog.at_level(logging.WARNING, "narwhal.journal"), journal_at(folder / "j.jsonl") as journal:
        journal.write({"n": 1})
        until(lambda: journal.errors > 5)
        journal.write({"n": 2})
        folder.mkdir()
        until(lambda: journal.written == 2)
        assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
        assert "serving.journal_path" in caplog.text
    assert numbers(folder / "j.jsonl") == [1, 2]


@pytest.mark.parametrize("size", [40, 41, 44])
def test_a_write_cut_short_leaves_every_row_whole_once(tmp_path: Path, size: int) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text('{"n":-1}\n')
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with journal_at(path) as journal:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))  # as a disk that full
        try:
            for n in range(100):
                journal.write({"n": n})
            until(lambda: journal.errors > 0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        until(lambda: journal.written == 100)
    assert numbers(path) == list(range(-1, 100))


def test_closing_ends_even_when_the_disk_fails_and_counts_what_is_lost(tmp_path: Path) -> None:
    journal = Journal("/dev/full", retry_s=60)
    for n in range(3):
        journal.write({"n": n})
    until(lambda: journal.errors > 0)
    journal.close()
    journal.write({"n": 3})
    assert (journal.written, journal.dropped) == (0, 4)


def test_a_row_that_strict_json_refuses_is_written_escaped(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    with journal_at(path) as journal:
        journal.write({"n": 1 << 70, "error": "half a pair: \ud800"})
    assert numbers(path) == [1 << 70]
