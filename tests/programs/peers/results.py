"""A pytest plugin that writes the result of each test of the contract, with its counts, as JSON.

`PEERS_RESULTS` names the file. `PEERS_COLUMN` is the column of classes that name none.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from chatmemory.testing.base import Contract
from chatmemory.testing.violations import Violation
from tests.programs.peers.base import POOL

SIZES = {"threads": 8, "processes": 8, "batches": 20, "long_history": 10_050}
"""Larger than in our own test suite, which runs often."""

_results: list[dict[str, Any]] = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        cls = getattr(item, "cls", None)
        if cls is not None and issubclass(cls, Contract):
            for name in SIZES.keys() - vars(cls).keys():
                setattr(cls, name, SIZES[name])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    function: Any = getattr(item, "function", None)
    cls = getattr(item, "cls", None)
    if cls is None or not issubclass(cls, Contract) or (report.passed and call.when != "call"):
        return report
    result = {
        "column": getattr(cls, "column", os.environ.get("PEERS_COLUMN", cls.__name__)),
        "test": function.__name__,
        "title": inspect.cleandoc(function.__doc__ or "").partition("\n")[0].rstrip("."),
        "outcome": report.outcome,
        "counts": {},
        "why": "",
    }
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, Violation):
        result["counts"] = error.counts
    elif error is not None:
        text = str(error).strip().partition("\n")[0][:200]
        result["why"] = text if report.skipped else f"{type(error).__name__}: {text}"
    _results.append(result)
    return report


def pytest_sessionfinish() -> None:
    POOL.end()
    if "PEERS_RESULTS" in os.environ:
        Path(os.environ["PEERS_RESULTS"]).write_text(json.dumps(_results))
