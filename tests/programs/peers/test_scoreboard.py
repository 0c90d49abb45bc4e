"""The scoreboard of `make peers`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.programs.peers.scoreboard import cells_of, group, titles

ROOT = Path(__file__).resolve().parents[3]


def test_the_scoreboard_counts_each_test():
    """In each group: the rows of the table, the tests that all passed, and those not offered."""
    page = (ROOT / "docs/reasons/peers.md").read_text()
    groups = page.partition("## Ours\n")[2].partition("## Versions\n")[0].split("\n## ")
    for text in groups:
        counts = r"^Kept by all: (?:the other )?(\d+) of (\d+)\.$"
        [(kept, total)] = re.findall(counts, text, re.MULTILINE)
        shown = re.findall(r"^(?:\| |- )(\w.*?)(?: \|.*)?$", text, re.MULTILINE)
        assert {*shown} <= {*titles().values()}
        assert int(kept) + len(shown) == int(total) == len(titles())


@pytest.mark.long
def test_the_scoreboard_counts_what_a_store_loses(tmp_path):
    results = tmp_path / "results.json"
    options = ["-c", "tests/programs/peers/pytest.ini", "--rootdir", ".", "--noconftest"]
    command = [sys.executable, "-m", "pytest", "-p", "tests.programs.peers.results", *options]
    chosen = ["tests/programs/peers/careless.py", "-k", "users_are_separate or a_session_expires"]
    env = {**os.environ, "PEERS_RESULTS": str(results), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([*command, *chosen], cwd=ROOT, env=env, check=False, capture_output=True)  # noqa: S603  # our own command line
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    rows = group(
        cells_of(json.loads(results.read_text())),
        ["one list for all", "read, changed, written back"],
    ).splitlines()
    assert (
        "| Two users' sessions of the same name are separate | **12 of 24 of others** | pass |"
        in rows
    )
    assert "- A session expires completely, and a new one starts" in rows


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


def test_a_group_names_what_was_not_kept_by_all():
    first, second, third, *_ = titles()

    def results(column, *outcomes):
        rest = ["passed"] * (len(titles()) - len(outcomes))
        return [
            {**result(outcome, "not offered: it"), "column": column, "test": test}
            for test, outcome in zip(titles(), [*outcomes, *rest], strict=True)
        ]

    cells = cells_of([*results("a", "failed", "skipped"), *results("b", "passed", "skipped")])
    text = group(cells, ["a", "b"])
    assert f"| {titles()[first]} | **not offered: it** | pass |" in text
    assert f"Kept by all: the other {len(titles()) - 2} of {len(titles())}.\n" in text
    assert f"Not offered:\n\n- {titles()[second]}\n" in text
    assert titles()[third] not in text


def test_a_store_that_was_not_run_has_a_line():
    cells = cells_of(
        {**result("skipped", "no server"), "column": "a", "test": test} for test in titles()
    )
    assert group(cells, ["a"]) == "a was not run: no server.\n"
