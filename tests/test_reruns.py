"""The policy for tests that fail once, on planted tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

STABLE = "def test_stable():\n    assert True\n"
FLAKY = """
from pathlib import Path

def test_flaky_{number}():
    ran = Path(__file__).with_name("ran_{number}")
    is_first = not ran.exists()
    ran.touch()
    print("the output of number {number}")
    assert not is_first
"""
BROKEN = "def test_broken():\n    assert 1 + 1 == 3\n"
DEADLY = """
import os
from pathlib import Path

def test_deadly():
    ran = Path(__file__).with_name("ran")
    if not ran.exists():
        ran.touch()
        os._exit(1)
"""
DEPENDENT = """
def test_a_leaves_a_mark(monkeypatch):
    import sys
    sys.left_behind = True

def test_b_fails_behind_it():
    import sys
    assert not hasattr(sys, "left_behind")
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parent.parent
    plugins = ("-p", "xdist", "-p", "pytest_randomly", "-p", "no:cacheprovider")
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(root),
        "FLAKY_LIST": str(folder / "flaky"),
    }
    command = [sys.executable, "-m", "tests.reruns", *plugins, *options, str(folder)]
    return subprocess.run(  # noqa: S603  # planted tests
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True
    )


def plant(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)


def test_a_test_that_passes_both_repetitions_is_listed_with_its_outputs(tmp_path: Path) -> None:
    plant(tmp_path, stable=STABLE, flaky=FLAKY.format(number=1))
    result = run(tmp_path, "-n2")
    assert result.returncode == 0, result.stdout
    listed = (tmp_path / "flaky").read_text()
    assert "FLAKY: test_flaky.py::test_flaky_1" in listed
    assert "-- Captured stdout call\nthe output of number 1" in listed
    assert listed.count("1 passed") + listed.count("2 passed") == 2
    assert listed in result.stdout


def test_a_test_that_fails_again_is_a_failure(tmp_path: Path) -> None:
    plant(tmp_path, stable=STABLE, broken=BROKEN, flaky=FLAKY.format(number=1))
    result = run(tmp_path)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert not (tmp_path / "flaky").exists()


@pytest.mark.long
def test_a_test_that_fails_behind_another_one_is_a_failure(tmp_path: Path) -> None:
    plant(tmp_path, dependent=DEPENDENT)
    result = run(tmp_path, "--randomly-dont-reorganize")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "Repeated behind 1 others" in result.stdout


@pytest.mark.long
def test_four_flaky_tests_are_a_failure(tmp_path: Path) -> None:
    for number in range(4):
        plant(tmp_path, **{f"flaky_{number}": FLAKY.format(number=number)})
    result = run(tmp_path)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "More than 3 tests failed" in result.stdout


@pytest.mark.long
def test_flaky_tests_of_earlier_runs_count(tmp_path: Path) -> None:
    plant(tmp_path, flaky=FLAKY.format(number=1))
    (tmp_path / "flaky").write_text("FLAKY: a\nFLAKY: b\nFLAKY: c\n")
    result = run(tmp_path)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "4 tests are flaky; at most 3 may be." in result.stdout


@pytest.mark.long
def test_the_death_of_a_test_process_is_a_failure(tmp_path: Path) -> None:
    plant(tmp_path, stable=STABLE, deadly=DEADLY)
    result = run(tmp_path, "-n2")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "A test process died" in result.stdout


@pytest.mark.long
def test_a_file_that_cannot_be_imported_is_a_failure(tmp_path: Path) -> None:
    plant(tmp_path, stable=STABLE, wrong="import nothing_of_this_name\n")
    assert run(tmp_path).returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED)


@pytest.mark.long
def test_a_run_without_failures_has_no_list(tmp_path: Path) -> None:
    plant(tmp_path, stable=STABLE)
    assert run(tmp_path).returncode == 0
    assert not (tmp_path / "flaky").exists()
