"""What the documentation shows is there: fleet files that can be read, links that lead on, commands."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from narwhal.cli import main
from narwhal.config import parse
from narwhal.outcomes import OUTCOMES
from narwhal.serving import routes

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def test_each_fleet_file_shown_can_be_used() -> None:
    files = [(page, block) for page in PAGES for block in blocks(page, "yaml")]
    assert len(files) >= 2
    for page, block in files:
        assert parse(block, str(page)).model


def test_each_script_that_a_page_runs_can_be_run() -> None:
    shown = {name for page in PAGES for name in re.findall(r"(?m)^`?(tools/\w+\.py)\b", page.read_text())}
    assert shown
    assert [name for name in sorted(shown) if not os.access(ROOT / name, os.X_OK)] == []


def test_each_link_within_the_documentation_leads_to_a_file() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).is_file(), f"{page.name}: {target}"


def test_each_command_of_the_readme_exists_and_none_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    offered = set(re.findall(r"^ {4}(\w+) ", capsys.readouterr().out, re.MULTILINE))
    named = set(re.findall(r"^\| `narwhal (\w+)", PAGES[0].read_text(), re.MULTILINE))
    assert named == offered


def test_the_page_on_http_has_every_route_once() -> None:
    table = re.findall(r"^\| (`/.*?) \|", (ROOT / "docs" / "http.md").read_text(), re.MULTILINE)
    named = re.findall(r"`([^`]+)`", " ".join(table))
    assert sorted(named) == sorted(["/v1/models/NAME", *routes._COMPLETIONS, *routes._GET, *routes._CONTROL])


def test_the_error_that_the_page_on_http_shows_is_one_of_the_table() -> None:
    (code,) = set(re.findall(r'"code": "(\w+)"', (ROOT / "docs" / "http.md").read_text()))
    assert code in OUTCOMES
