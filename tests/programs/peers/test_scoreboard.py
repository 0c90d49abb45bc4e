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

from tests.programs.peers.scoreboard import ROW_TESTS, cells_of, group, not_offered, rows, titles

ROOT = Path(__file__).resolve().parents[3]


def test_the_scoreboard_counts_each_test():
    """In each group: the rows of the table, the tests that all passed, and those not offered."""
    page = (ROOT / "docs/reasons/peers.md").read_text()
    groups, _, missing = page.partition("## Ours\n")[2].partition("## Not offered\n")
    counts = r"^Kept by all: (?:the other )?(\d+) of (\d+)\.(?: Not offered: (\d+)\.)?$"
    for text in groups.split("\n## "):
        [(kept, total, rest)] = re.findall(counts, text, re.MULTILINE)
        shown = re.findall(r"^\| (\w.*?) \|", text, re.MULTILINE)
        assert {*shown} <= {*titles().values()}
        assert int(kept) + len(shown) + int(rest or 0) == int(total) == len(titles())
    listed = re.findall(r"^- (\w.*?): ", missing.partition("## Versions\n")[0], re.MULTILINE)
    assert {*listed} <= {*titles().values()}


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
        "| Two users' sessions of the same name are separate | **12/24 of others** | pass |" in rows
    )
    assert rows[-1].endswith("Not offered: 1.")


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
        ([result("passed"), result("failed", lost=(2, 4))], "**2/4 lost**"),
        ([result("failed", lost=(1, 4)), result("failed", lost=(3, 4))], "**3/4 lost**"),
        ([result("failed", "KeyError: 'a'")], "**KeyError: 'a'**"),
        ([result("passed"), result("skipped", "not offered: trim")], "pass"),
        ([result("skipped", "not offered: trim")], "not offered"),
        ([result("skipped", "no server")], "not run: no server"),
    ],
)
def test_a_cell_shows_the_worst_result_of_its_variants(results, shown):
    assert str(cells_of(results)["a", "x"]) == shown


def test_a_broken_promise_that_depends_on_chance_is_marked():
    broken = [
        {**result("failed", lost=(1, 4)), "test": f"test_{test}"}
        for test in ("processes_lose_nothing", "overlapping_turns_lose_nothing")
    ]
    assert [str(cell) for cell in cells_of(broken).values()] == ["**1/4 lost** ≈", "**1/4 lost**"]


def test_a_saver_has_a_row_with_the_number_of_kept_promises():
    first, *_ = ROW_TESTS.values()
    outcomes = {**dict.fromkeys(titles(), "passed"), first: "failed", [*titles()][-1]: "skipped"}
    cells = cells_of(
        {**result(outcome, "not offered: it", lost=(2, 8)), "test": test}
        for test, outcome in outcomes.items()
    )
    row = rows(cells, ["a"]).splitlines()[-1]
    passed = " | pass" * (len(ROW_TESTS) - 1)
    assert row == f"| a | **2/8 lost**{passed} | {len(titles()) - 2} of {len(titles()) - 1} |"


def test_a_group_names_what_was_not_kept_by_all():
    first, _, third, *_ = titles()

    def results(column, *outcomes):
        rest = ["passed"] * (len(titles()) - len(outcomes))
        return [
            {**result(outcome, "not offered: it"), "column": column, "test": test}
            for test, outcome in zip(titles(), [*outcomes, *rest], strict=True)
        ]

    cells = cells_of([*results("a", "failed", "skipped"), *results("b", "passed", "skipped")])
    text = group(cells, ["a", "b"])
    assert f"| {titles()[first]} | **not offered: it** | pass |" in text
    counts = f"Kept by all: the other {len(titles()) - 2} of {len(titles())}. Not offered: 1.\n"
    assert text.endswith(counts)
    assert titles()[third] not in text


def test_what_no_store_of_a_group_offers_is_listed_with_the_group():
    first, second, third, *_ = titles()
    cells = cells_of(
        {**result("skipped", "not offered: it"), "column": column, "test": test}
        for column, test in [("a", first), ("b", first), ("b", second)]
    )
    cells |= cells_of({**result("passed"), "column": "a", "test": test} for test in (second, third))
    listed = not_offered(cells, {"A": ["a"], "B": ["b"], "Both": ["a", "b"]})
    assert listed == f"- {titles()[first]}: all\n- {titles()[second]}: B\n"


def test_a_store_that_was_not_run_has_a_line():
    cells = cells_of(
        {**result("skipped", "no server"), "column": "a", "test": test} for test in titles()
    )
    assert group(cells, ["a"]) == "a was not run: no server.\n"
