"""A plugin that lists the tests with much CPU time: `pytest -p tests.cpu`.

It lists tests of more than `SLOW_SECONDS`, which need the marker `slow`. One of more than
`MAX_SECONDS` fails at its end. What several tests share does not count: imports, and fixtures of a
module or of the session.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis.strategies import text

SLOW_SECONDS = 0.15
MAX_SECONDS = 0.75
"""Five times as much, since the caches of a busy core are cold."""

NAME = "cpu_seconds"
PRELOADED = ("chatmemory", "project")
BEGAN = pytest.StashKey[float]()
SHARED = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Listing())


def pytest_collection_finish() -> None:
    """Import and build what tests would otherwise do while their time is measured."""
    text().validate()  # reads all characters, for two seconds
    for package in map(importlib.import_module, PRELOADED):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    item.stash[BEGAN] = _cpu_seconds()
    item.stash[SHARED] = 0.0
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    began = _cpu_seconds()
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            request._pyfuncitem.stash[SHARED] += _cpu_seconds() - began


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.when != "teardown":
        return (yield)
    seconds = _cpu_seconds() - item.stash[BEGAN] - item.stash[SHARED]
    item.user_properties.append((NAME, seconds))
    report = yield
    if report.passed and seconds > MAX_SECONDS:
        report.outcome = "failed"
        report.longrepr = (
            f"The test took {seconds:.2f} s of CPU; at most {MAX_SECONDS} are allowed."
        )
    return report


class Listing:
    """Collects the times of all processes in the one that controls them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            seconds = dict(report.user_properties)[NAME]
            assert isinstance(seconds, float)
            self.seconds[report.nodeid] = seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        slow = sorted(
            (-seconds, test) for test, seconds in self.seconds.items() if seconds > SLOW_SECONDS
        )
        terminalreporter.section(f"{len(slow)} tests of more than {SLOW_SECONDS} s of CPU")
        for seconds, test in slow:
            terminalreporter.line(f"{-seconds:.2f} s {test}")
        total = sum(self.seconds.values())
        terminalreporter.line(f"{len(self.seconds)} tests took {total:.1f} s of CPU.")


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
