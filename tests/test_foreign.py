"""LangChain's own tests of a chat history, run on our class."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOREIGN = ROOT / "tests" / "foreign"
CACHE = ROOT / "var" / "foreign"
FILES = [
    "tests/unit_tests/runnables/test_history.py",
    "tests/unit_tests/chat_history/test_chat_history.py",
]
OWN = "blocking.py::test_a_blocking_call_in_an_async_method_is_detected"

Outcomes = dict[str, dict[str, Any]]


def kept(name: str, fill: Callable[[Path], None]) -> Path:
    """Return a folder under `var`; `fill` fills it once, completely or not at all."""
    folder = CACHE / name
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as new:
            fill(Path(new, name))
            Path(new, name).rename(folder)
    return folder


def pip(*arguments: str | Path, **environment: str) -> None:
    """Run pip; skip the test if the package index is unavailable."""
    done = subprocess.run(  # noqa: S603  # our own command line
        [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "-q",
            "--retries=0",
            *arguments,
        ],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        error = done.stderr.strip().splitlines()[-1:]
        pytest.skip(f"pip cannot download LangChain's tests: {''.join(error)}")


def tools() -> Path:
    """The additional packages that LangChain's tests need."""
    wanted = FOREIGN / "requirements.txt"
    digest = hashlib.sha256(wanted.read_bytes() + sys.version.encode()).hexdigest()[:12]
    return kept(
        f"tools-{digest}",
        lambda folder: pip("install", "--no-deps", "--target", folder, "-r", wanted),
    )


def their_tests() -> Path:
    """The folder of LangChain's package `tests`, from the source archive."""
    release = version("langchain-core")
    name = f"langchain_core-{release}"

    def fill(folder: Path) -> None:
        alone = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
        wanted = f"langchain-core=={release}"
        pip("download", *alone, "-d", folder, wanted, PYTHONPATH=str(tools()))
        with tarfile.open(folder / f"{name}.tar.gz") as source:
            inside = [m for m in source.getmembers() if m.name.startswith(f"{name}/tests/")]
            source.extractall(folder, inside, filter="data")

    return kept(name, fill) / name


@pytest.fixture
def outcomes(live_database_env, tmp_path) -> Outcomes:
    theirs, result = their_tests(), tmp_path / "outcomes.json"
    command: list[str | Path] = [sys.executable, "-P", "-m", "pytest", "-c", os.devnull]
    command += ["--rootdir", theirs, "--confcutdir", FOREIGN, "-o", "asyncio_mode=auto"]
    for plugin in ("swap", "no:cacheprovider", "pytest_asyncio.plugin", "pytest_mock.plugin"):
        command += ["-p", plugin]
    done = subprocess.run(  # noqa: S603  # our own command line
        [*command, *FILES, FOREIGN / "blocking.py"],
        cwd=theirs,
        env={
            **live_database_env,
            "REDIS_URL": "",
            "PYTHONPATH": os.pathsep.join(map(str, (FOREIGN, ROOT, tools()))),
            "OUTCOMES": str(result),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.exists(), done.stdout + done.stderr
    found: Outcomes = json.loads(result.read_text())
    return found


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_langchains_own_tests_have_the_documented_results(outcomes):
    listed = (FOREIGN / "README.md").read_text()
    assert outcomes.pop(OWN)["outcome"] == "passed"
    ours = [found["outcome"] for found in outcomes.values() if found["uses_ours"]]
    failed = {
        test: found["error"] for test, found in outcomes.items() if found["outcome"] != "passed"
    }
    assert failed == dict(re.findall(r"^\| `(\S+)` \| `(\w+)` \|", listed, re.MULTILINE))
    assert (
        f"{len(outcomes)} tests: {len(outcomes) - len(failed)} passed, {len(failed)} failed. "
        f"{len(ours)} use a history of ours; {ours.count('passed')} of these passed."
    ) in listed
