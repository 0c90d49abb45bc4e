"""Run pytest, and each failed test two more times: `python -m tests.reruns ARGUMENTS`.

The first rerun is with the same seed, behind the tests that ran before it in its process; the
second is alone. A test that passes both is flaky: its outputs are printed below "FLAKY" and
appended to the file `FLAKY_LIST`, and the run succeeds. It fails if a test fails again, if a test
process dies, and if that file lists more than `MAX_FLAKY` tests, those of earlier runs included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

MAX_FLAKY = 3
"""More flaky tests in all runs that share `FLAKY_LIST` are a failure."""
NEIGHBORS = 30
"""How many of the tests that ran before it in the same process a test is repeated with."""
TITLE = "FLAKY: "
RECORD = "RERUNS_RECORD"
"""The variable that names the file in which the plugin records a run."""


@dataclass(slots=True)
class Record:
    """What a run leaves for its reruns."""

    paths: list[str] = field(default_factory=list)
    """What the arguments selected."""
    seed: int = 0
    order: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The tests of each process, in the order in which they began."""
    failures: dict[str, str] = field(default_factory=dict)
    """The text of each failure, by test."""
    has_dead_process: bool = False

    def before(self, test: str) -> list[str]:
        """Return the tests that ran before this one in its process."""
        ran = next(ran for ran in self.order.values() if test in ran)
        end = ran.index(test)
        return ran[max(0, end - NEIGHBORS) : end]


class Recorder:
    """A plugin that writes the `Record` of a run at its end."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.record = Record()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        process = getattr(report, "worker_id", "")
        if report.when == "setup":
            self.record.order[process].append(report.nodeid)
        if report.failed:
            earlier = self.record.failures.get(report.nodeid, "")
            self.record.failures[report.nodeid] = (
                f"{earlier}{report.longreprtext}\n{_output(report)}"
            )

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        self.record.has_dead_process |= error is not None

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.record.paths = session.config.args
        self.record.seed = session.config.getoption("randomly_seed")
        state = {name: getattr(self.record, name) for name in Record.__slots__}
        self.file.write_text(json.dumps(state))


def pytest_configure(config: pytest.Config) -> None:
    """Record the run in the process that controls the others."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(os.environ[RECORD])))


def main(arguments: Sequence[str]) -> int:
    """Run pytest with these arguments, repeat what fails, and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "record.json"
        environment = {**os.environ, RECORD: str(file)}
        code = _pytest(["-p", "tests.reruns", *arguments], env=environment).returncode
        if code != pytest.ExitCode.TESTS_FAILED or not file.exists():
            return code
        record = Record(**json.loads(file.read_text()))
    if record.has_dead_process:
        _write("A test process died: no test is repeated.")
        return code
    if len(record.failures) > MAX_FLAKY:
        _write(f"More than {MAX_FLAKY} tests failed: none is repeated.")
        return code
    options = [argument for argument in arguments if argument not in record.paths]
    reports = [_repeat(record, options, test) for test in record.failures]
    if not reports or None in reports:
        return code
    return _report_flaky([report for report in reports if report is not None])


def _repeat(record: Record, options: Sequence[str], test: str) -> str | None:
    """Run a failed test two more times; return all its outputs, or None if it fails again."""
    outputs = [f"{TITLE}{test}", "", record.failures[test]]
    neighbors = [*record.before(test), test]
    _write(f"\nRepeated behind {len(neighbors) - 1} others, and alone: {test}")
    for tests in (neighbors, [test]):
        same = ("-n0", f"--randomly-seed={record.seed}", "--randomly-dont-reorganize")
        again = _pytest([*options, *same, "-vv", *tests], capture_output=True)
        output = again.stdout + again.stderr
        if again.returncode:
            _write(output)
            return None
        outputs.append(output)
    return "\n".join(outputs)


def _report_flaky(reports: Sequence[str]) -> int:
    """Print and list the flaky tests; return the exit code."""
    text = "\n".join(reports)
    _write(f"\n{text}")
    name = os.environ.get("FLAKY_LIST", "")
    if name:
        with Path(name).open("a") as file:
            file.write(text + "\n")
        text = Path(name).read_text()
    count = sum(line.startswith(TITLE) for line in text.splitlines())
    if count > MAX_FLAKY:
        _write(f"{count} tests are flaky; at most {MAX_FLAKY} may be.")
        return int(pytest.ExitCode.TESTS_FAILED)
    return int(pytest.ExitCode.OK)


def _pytest(arguments: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, check=False, text=True, **options)  # noqa: S603  # our arguments


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _output(report: pytest.TestReport) -> str:
    return "\n".join(f"-- {title}\n{content}" for title, content in report.sections)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
