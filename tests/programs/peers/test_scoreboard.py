"""The scoreboard of `make peers`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.programs.peers.scoreboard import cells_of, table, titles

ROOT = Path(__file__).resolve().parents[3]


def test_the_scoreboard_shows_each_test():
    page = (ROOT / "docs/reasons/peers.md").read_text()
    assert {title for title in titles().values() if f"| {title} |" not in page} == set()


@pytest.mark.long
def test_the_scoreboard_counts_what_a_store_loses(tmp_path):
    results = tmp_path / "results.json"
    options = ["-c", "tests/programs/peers/pytest.ini", "--rootdir", ".", "--noconftest"]
    command = [sys.executable, "-m", "pytest", "-p", "tests.programs.peers.results", *options]
    chosen = ["tests/programs/peers/careless.py", "-k", "users_are_separate or a_session_expires"]
    env = {**os.environ, "PEERS_RESULTS": str(results), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([*command, *chosen], cwd=ROOT, env=env, check=False, capture_output=True)  # noqa: S603  # our own command line
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    rows = table(
        cells_of(json.loads(results.read_text())),
        ["one list for all", "read, changed, written back", "nothing"],
    ).splitlines()
    users = (
        "| Two users' sessions of the same name are separate | **12 of 24 of others** | pass |  |"
    )
    assert users in rows
    assert (
        "| A session expires completely, and a new one starts | not offered | not offered |  |"
        in rows
    )


def result(outcome: str, why: str = "", **counts: tuple[int, int]) -> dict[str, Any]:
    return {
        "column": "a",
        "test": "test_x",
        "outcome": outcome,
        "counts": counts,
        "why": why,
    }


@pytest.mark.parametrize(
    ("results", "shown"),
    [
        ([result("passed")], "pass"),
        ([result("passed"), result("failed", lost=(2, 4))], "**2 of 4 lost**"),
        ([result("failed", lost=(1, 4)), result("failed", lost=(3, 4))], "**3 of 4 lost**"),
        ([result("failed", "KeyError: 'a'")], "**KeyError: 'a'**"),
        ([result("passed"), result("skipped", "not offered: trim")], "pass"),
        ([result("skipped", "not offered: trim")], "not offered"),
        ([result("skipped", "no server")], "not run: no server"),
    ],
)
def test_a_cell_shows_the_worst_result_of_its_variants(results, shown):
    assert str(cells_of(results)["a", "x"]) == shown
