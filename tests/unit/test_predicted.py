"""The tool that sets projected times beside those seen: what it judges, and its verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.predicted import groups, main, quantile, read


def row(arrived: float, projected: float | None, seen: float | None, **more: Any) -> dict[str, Any]:
    return {
        "received_at": arrived,
        "ended_s": 1.0,
        "input_tokens": 100,
        "prompt_tokens": None,
        "projected_ttft_s": projected,
        "ttft_s": seen,
        "attempts": [{}],
    } | more


def journal(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "journal.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def test_only_first_attempts_with_a_projection_and_a_first_token_are_judged() -> None:
    rows = [
        row(2.0, 1.0, 2.0, prompt_tokens=120),
        row(1.0, None, 1.0),
        row(1.0, 1.0, None),
        row(1.0, 1.0, 1.0, attempts=[{}, {}]),
        row(0.0, 3.0, 2.0),
    ]
    seen, others = read(json.dumps(one).encode() for one in rows)
    assert others == 3
    assert [(one.arrived, one.tokens, one.error) for one in seen] == [(0.0, 100, 0.5), (2.0, 120, 0.5)]


def test_requests_are_told_apart_by_length_and_by_those_under_way_when_they_came() -> None:
    rows = [row(0.0, 1, 1), row(0.5, 1, 1, prompt_tokens=900), row(0.6, 1, 1), row(5.0, 1, 1)]
    seen, _ = read(json.dumps(one).encode() for one in rows)
    sizes = {label: len(members) for label, members in groups(seen).items()}
    assert sizes == {
        "all": 4,
        "100 to 299 tokens": 3,
        "800 to 1,499 tokens": 1,
        "no others": 2,
        "1 to 2 others": 2,
    }


def test_a_quantile_is_the_smallest_value_that_so_many_do_not_exceed() -> None:
    assert [quantile([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 0.99)] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(("off", "status"), [(1.1, 0), (1.3, 1)])
def test_the_status_says_whether_the_projections_were_good_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], off: float, status: int
) -> None:
    path = journal(tmp_path, [row(float(n), off, 1.0) for n in range(20)])
    assert main([str(path)]) == status
    assert f"error, 50%: {off - 1:.1%}, allowed 15%" in capsys.readouterr().out


def test_a_journal_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err
