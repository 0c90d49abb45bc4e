"""Optional apps count rows before they are deleted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from django.db import transaction

from chatmemory.database.batches import Progress
from chatmemory.database.faults import write_connection
from chatmemory.logs import log_error
from chatmemory.models import (
    Feedback,
    FeedbackQuerySet,
    Message,
    MessageQuerySet,
    Session,
    SessionQuerySet,
    Turn,
    TurnQuerySet,
)

logger = logging.getLogger(__name__)


# Note [Counting before a deletion]
#
# Before a vacuum or an erasure deletes rows, it passes them to the registered counters, under the
# session's lock and in the same transaction. So each deleted row is counted, and a rollback also
# undoes the count. If a counter raises, its savepoint is rolled back, the error is logged, and the
# rows are deleted: a statistic must not prevent the deletion of a person's data. Only an error that
# has ended the whole transaction is raised, such as a lost connection.


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """The rows of one session that this transaction is about to delete."""

    turns: TurnQuerySet = field(default_factory=Turn.objects.none)
    messages: MessageQuerySet = field(default_factory=Message.stored.none)
    feedback: FeedbackQuerySet = field(default_factory=Feedback.objects.none)
    sessions: SessionQuerySet = field(default_factory=Session.objects.none)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionCounter:
    """How an optional app counts rows that are deleted."""

    count: Callable[[Deletion], None]
    """Counts the rows that it has not counted before. See Note [Counting before a deletion]."""
    prepare: Callable[[Progress | None], object]
    """Counts what it can before a vacuum, outside of its transactions."""


_counters: dict[str, DeletionCounter] = {}


def register_counter(code: str, counter: DeletionCounter) -> None:
    """Let an optional app count rows before they are deleted, from `ready()`.

    A repeated call changes nothing. Raises ValueError if another counter has this code.
    """
    if _counters.setdefault(code, counter) != counter:
        raise ValueError(f"Another counter has the code {code!r}.")


def prepare_counters(progress: Progress | None) -> None:
    """Let the counters count what they can, before a vacuum."""
    for code, counter in _counters.items():
        try:
            counter.prepare(progress)
        except Exception as error:  # the code of another app can raise any
            _raise_if_ended(error)
            log_error(logger, "%s cannot prepare a vacuum", code, error=error)


def count_before_deletion(deletion: Deletion) -> None:
    """Let the counters count rows. Needs the session's lock.

    See Note [Counting before a deletion].
    """
    for code, counter in _counters.items():
        try:
            with transaction.atomic(using=write_connection().alias):
                counter.count(deletion)
        except Exception as error:  # the code of another app can raise any
            _raise_if_ended(error)
            log_error(logger, "rows are deleted that %s did not count", code, error=error)


def _raise_if_ended(error: Exception) -> None:
    """Raise an error after which the transaction accepts no statement."""
    if write_connection().needs_rollback:
        raise error
