"""The side-by-side bench works on a machine that has no other router."""

from __future__ import annotations

import subprocess
import sys

from tests.http.commands import WAIT_S, environment


def test_each_case_is_measured_and_nothing_fails() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.compare", "--rounds", "1", "--seconds", "0.2", "--streams", "4"],
        capture_output=True, text=True, timeout=2 * WAIT_S, env=environment(PATH="/nonexistent"), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines() if line.strip().startswith("narwhal ")]
    rows = [row for row in rows if row[1] != "to"]
    assert len(rows) == 4
    assert all(float(row[1]) > 0 and row[-1] != "×" and not row[-1].isdigit() for row in rows)
