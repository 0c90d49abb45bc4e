"""What LangGraph requires of a checkpoint saver, by its own suite, on each database."""

from __future__ import annotations

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate

from chatmemory.langgraph.saver import DjangoSaver
from chatmemory.services import SERVER

pytestmark = [pytest.mark.django_db, pytest.mark.database, pytest.mark.slow]

CHECKS = 81
"""Of langgraph-checkpoint-conformance 0.0.2."""


@checkpointer_test(name="DjangoSaver")
async def saver():
    # Some checks store checkpoints beside one another, as only a fork may.
    yield DjangoSaver(scope=SERVER, overlap="allow")


async def test_the_saver_passes_all_checks():
    report = await validate(saver)
    results = report.results.values()
    assert [failure for result in results for failure in result.failures or ()] == []
    assert all(result.detected for result in results)
    assert sum(result.tests_passed for result in results) == CHECKS
