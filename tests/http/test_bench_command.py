"""`narwhal bench`, `narwhal bench compare` and `narwhal report` as a user calls them."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from html.parser import HTMLParser
from pathlib import Path

import orjson
import pytest
import uvloop

from narwhal.cli import main
from narwhal.harness import journal, page, plots
from narwhal.harness.load import Point
from narwhal.harness.measures import Round, point_summary
from narwhal.harness.run import Measured
from narwhal.harness.sample import Outcome, Sample
from narwhal.sim import SimEngine
from tests.http.support import CHAT, Routed, body_for, eventually, on_router

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Checks nesting, and keeps what could reach for the network."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.tags: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        assert not re.search(r"url\(|@import|\bnan\b|\binf\b", text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe")
        assert not {"src", "href", "onload"} & {name for name, _ in attrs}
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


async def bench(*arguments: str) -> tuple[int | None, str, str]:
    """Run the command in a process of its own: its status and its output."""
    child = await start(*arguments)
    out, err = await child.communicate()
    return child.returncode, out.decode(), err.decode()


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "narwhal", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "result"


def test_a_sweep_leaves_rows_a_summary_and_a_page_that_agree_and_compares_with_itself(out: Path) -> None:
    async def test() -> None:
        engine = SimEngine()
        await engine.start()
        status, text, errors = await bench(
            "bench", engine.url, "--rates", "40,80", "--requests", "10", "--rounds", "2", "--warmup", "0",
            "--output", "4", "--slo-ttft", "5", "--slo-tpot", "5", "--out", str(out),
        )  # fmt: skip
        assert (status, errors) == (0, "")
        assert engine.stats["whole"].finished == 40
        await engine.stop()
        rows = [orjson.loads(line) for line in (out / "rows.jsonl").read_bytes().splitlines()]
        summary = orjson.loads((out / "summary.json").read_bytes())
        assert len(rows) == 40
        assert [point["requests"]["good"] for point in summary["points"]] == [20, 20]
        ttfts = sorted(row["ttft_s"] for row in rows if row["point"] == 1)
        assert summary["points"][1]["latency"]["ttft_s"]["max"] == pytest.approx(ttfts[-1], abs=1e-6)
        assert summary["points"][1]["latency"]["gap_s"]["count"] == 60
        assert summary["knee"] == summary["knee"] | {"rate": 80, "beyond": True}
        assert "Knee: 80 requests per second" in text
        assert "40/s" in text
        shown = Page((out / "report.html").read_text())
        assert shown.tags.count("svg") == 6
        assert "Goodput against rate" in shown.text
        status, text, errors = await bench("bench", "compare", str(out), str(out))
        assert (status, errors) == (0, "")
        assert text.count("same") >= 2 * 11
        assert "worse" not in text

    uvloop.run(test())


def test_ctrl_c_gives_the_report_of_what_was_measured(out: Path) -> None:
    async def test() -> None:
        engine = SimEngine()
        await engine.start()
        child = await start("bench", engine.url, "--concurrency", "4", "--warmup", "0", "--out", str(out))
        await eventually(lambda: engine.stats["whole"].finished >= 10)
        child.send_signal(signal.SIGINT)
        text, errors = await child.communicate()
        assert child.returncode == 130
        assert errors == b""
        assert b"ended early" in text
        summary = orjson.loads((out / "summary.json").read_bytes())
        assert summary["interrupted"]
        assert summary["points"][0]["requests"]["served"] >= 10
        assert summary["points"][0]["requests"]["unfinished"] <= 4
        Page((out / "report.html").read_text())
        await engine.stop()

    uvloop.run(test())


@pytest.mark.parametrize(
    ("arguments", "status", "what"),
    [
        (["nonsense"], 2, "allowed: http"),
        (["http://127.0.0.1:1", "http://127.0.0.1:2"], 2, "give one URL"),
        (["compare", "only-one"], 2, "give one URL"),
        (["compare", "/nowhere", "/nowhere"], 1, "/nowhere"),
        (["http://127.0.0.1:1", "--rates", "1,0"], 2, "'0' is no such number"),
        (["http://127.0.0.1:1", "--input", "9-1"], 2, "the smaller one first"),
        (["http://127.0.0.1:1", "--token-ids", "100"], 2, "--api completions"),
        (["http://127.0.0.1:1", "--api-key-env", "NOT_SET_AT_ALL"], 2, "NOT_SET_AT_ALL is not set"),
        (["http://127.0.0.1:1", "--trace", "/nowhere"], 2, "/nowhere"),
        (["http://127.0.0.1:1", "--body", "[]"], 2, "not a JSON object"),
        (["http://127.0.0.1:1"], 1, "/v1/models"),
    ],
)
def test_what_can_not_be_done_is_said_in_a_line(
    arguments: list[str], status: int, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        returned = main(["bench", *arguments])
    except SystemExit as ended:  # argparse's way
        returned = int(ended.code or 0)
    text, errors = capsys.readouterr()
    assert returned == status
    assert text == ""
    assert what in errors


def test_a_routers_journal_is_drawn_with_each_request_as_the_router_saw_it(tmp_path: Path) -> None:
    async def test(where: Routed) -> None:
        for _ in range(5):
            await where.ask(CHAT, body_for(CHAT, stream=True))
        await where.ask(CHAT, b"{")
        rows = await where.rows(6)
        lines = [orjson.dumps(row) for row in rows] + [b'{"half a']
        shown = Page(journal.report(lines, "journal.jsonl"))
        assert "TTFT over time" in shown.text
        assert "1 lines are no rows" in shown.text
        assert "Failed 1 times: invalid_requests: invalid_json" in shown.text
        assert "40 out" in shown.text

    on_router(test)


def test_a_journal_without_rows_is_turned_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "journal.jsonl"
    empty.write_text("{}\n")
    assert main(["report", str(empty), "--out", str(tmp_path / "page.html")]) == 1
    assert "no row" in capsys.readouterr().err


def samples(count: int, **more: object) -> list[Sample]:
    made = []
    for number in range(count):
        sample = Sample(
            number, due_s=number / 10, handed_s=number / 10, outcome=Outcome.SERVED, output_tokens=3
        )
        sample.first_s, sample.last_s, sample.ended_s = (
            number / 10 + 0.1,
            number / 10 + 0.2,
            number / 10 + 0.2,
        )
        for name, value in more.items():
            setattr(sample, name, value)
        made.append(sample)
    return made


@pytest.mark.parametrize(
    "of",
    [
        [],
        samples(1),
        samples(3, first_s=None, last_s=None),
        samples(4000),
        samples(2, outcome=Outcome.FAILED, reason='<script src="x">', detail='"<&>'),
        samples(3, due_s=0.0),
    ],
    ids=["none", "one", "whole replies", "many", "hostile", "all at once"],
)
def test_a_page_is_sound_whatever_was_measured(of: list[Sample]) -> None:
    rounds = [Round(0.0, 400.0, of)]
    points = [{"label": "x", "rate": None, **point_summary(rounds)}] if of else []
    summary = {
        "points": points, "targets": {"ttft_s": 0.05, "tpot_s": None}, "knee": None, "warnings": ["<b>"],
        "started_at": "now",
    }  # fmt: skip
    shown = Page(page.page("<title>", "<head>", [Measured(Point(), rounds)], summary, {"<a>": "<b>"}))
    assert shown.tags.count("circle") <= plots.MOST_DOTS * 2
