"""Records of maintenance: when each task last ran, and with which result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.db.models import TextChoices

from chatmemory.database.faults import ignored_duplicate, write_connection
from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import retried
from chatmemory.errors import ChatMemoryError, MemoryUnavailable
from chatmemory.models import DatabaseNow, Maintenance
from chatmemory.services.maintenance.tasks import check_registered

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """The result of a task; set it before the end of the block."""

    is_ok: bool = True
    counts: dict[str, int | str] = field(default_factory=dict)


@contextmanager
def recorded(task: TextChoices) -> Iterator[Outcome]:
    """Record the start and the end of a task. An error ends it with its code.

    The services record themselves, since a host may call them without the commands. A record that
    cannot be stored does not stop the task. Raises LookupError for a task that is not registered.
    """
    check_registered(task)
    outcome = Outcome()
    _record_run(task, started_at=DatabaseNow(), ended_at=None, is_ok=None, counts={})
    try:
        yield outcome
    except BaseException as error:
        code = error.code if isinstance(error, ChatMemoryError) else type(error).__name__
        _record_run(task, ended_at=DatabaseNow(), is_ok=False, counts={"error": code})
        raise
    ended = {"ended_at": DatabaseNow(), "is_ok": outcome.is_ok, "counts": outcome.counts}
    _record_run(task, **ended, **({"succeeded_at": DatabaseNow()} if outcome.is_ok else {}))


F = TypeVar("F")


def recorded_findings(
    task: TextChoices, findings: Iterable[F], is_fixed: Callable[[F], bool] = lambda _: False
) -> Iterator[F]:
    """Yield the findings of a task, and record their number after the last one."""
    with recorded(task) as outcome:
        outcome.counts = {"findings": 0}
        for finding in findings:
            outcome.counts["findings"] = int(outcome.counts["findings"]) + 1
            outcome.is_ok &= is_fixed(finding)
            yield finding


def _record_run(task: TextChoices, **columns: Any) -> None:
    if write_connection().needs_rollback:  # in a caller's transaction, after the task's error
        return
    try:
        _store_record(task, columns)
    except MemoryUnavailable:
        logger.warning("the record of %s cannot be stored", task.value)


@retried(is_repeatable=True)
def _store_record(task: TextChoices, columns: dict[str, Any]) -> None:
    rows = Maintenance.objects.filter(name=task)
    if rows.update(**columns):
        return
    with ignored_duplicate(), locked_transaction():
        Maintenance.objects.create(name=task, **columns)
        return
    rows.update(**columns)
