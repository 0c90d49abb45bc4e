"""The limit of the CPU time of a fast test, on planted tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BUSY = """
import time
import pytest

@pytest.fixture(scope="module")
def shared():
    use(1)

def use(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def test_fast(shared): pass
def test_slow(): use(0.3)
"""
TOO_SLOW = "def test_too_slow(): use(0.8)\n"


def run(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parent.parent
    (folder / "test_busy.py").write_text(text)
    config = ("-c", str(root / "pyproject.toml"), "--rootdir", str(folder))
    options = ("-p", "tests.cpu", "-p", "no:cacheprovider", *config)
    return subprocess.run(  # noqa: S603  # planted tests
        [sys.executable, "-m", "pytest", *options, str(folder / "test_busy.py")],
        check=False,
        cwd=root,
        capture_output=True,
        text=True,
    )


@pytest.mark.long
def test_a_test_of_much_cpu_time_is_listed_and_one_of_too_much_fails_the_run(
    tmp_path: Path,
) -> None:
    listed = run(tmp_path, BUSY)
    assert listed.returncode == 0, listed.stdout
    assert "1 tests of more than 0.15 s of CPU" in listed.stdout
    assert "test_busy.py::test_slow" in listed.stdout
    failed = run(tmp_path, BUSY + TOO_SLOW)
    assert failed.returncode == pytest.ExitCode.TESTS_FAILED
    assert re.search(r"The test took [\d.]+ s of CPU; at most 0\.75 are allowed\.", failed.stdout)
    assert "ERROR at teardown of test_too_slow" in failed.stdout
