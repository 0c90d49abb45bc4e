"""Execute jobs: in slices of a second, each under a claim; end and cancel them."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from django.contrib.auth import get_user_model
from django.db.models import Count, QuerySet, Sum

from chatmemory.access.actors import Actor
from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import durably, retried
from chatmemory.errors import ChatMemoryError, Forbidden
from chatmemory.logs import log_error
from chatmemory.models import (
    AuditAction,
    AuditEntry,
    DatabaseNow,
    Job,
    JobItem,
    Session,
    on_primary,
)
from chatmemory.services.audit.entries import record_refusal
from chatmemory.services.jobs.actions import UNCHANGED, Skipped, Target, permission_of
from chatmemory.services.jobs.claims import (
    JobClaim,
    claim_job,
    lease_end,
    release_job,
    update_claimed,
)
from chatmemory.services.jobs.perform import perform

# Note [Jobs]
#
# A job acts on its items in the order of their session's primary key. For each item, one
# transaction locks the session, compares its address and epoch with those at the confirmation,
# calls the service of one session, and stores the outcome. So the action, its audit entry and the
# outcome are committed together or not at all: a process that dies at any time leaves no item that
# was acted on without an outcome, and the next process continues without acting again.
# - The order of locks is session, then item: an erasure ends items under the session's lock too.
# - Only an item without an outcome gets one. So a process that lost its lease, paused and
#   continues, rolls back an action on an item that another process has completed.
# - The counts of the job are sums over its ended items. They are written with `position`, up to
#   which items are counted, in one statement under the fence. So no item is counted again.
# - A process never waits for a lock without a limit: one that is paused inside a transaction would
#   stop the jobs of all processes. What it has locked is left until the next lease.
# - The executor releases the job after each slice. Then the job with the fewest sessions is next.
# Measured in docs/reasons/decisions/0021-jobs.md.

logger = logging.getLogger(__name__)

SLICE_SECONDS = 1.0
"""How long a process executes a job before it checks for others, and for a cancellation."""
CHUNK = 10
"""Items between two checks of the operator's permissions, and two writes of the job's counts."""
UNEXPECTED = "internal"
"""The outcome of an item whose action failed with an error of another kind; the log states it."""


@dataclass(frozen=True, slots=True)
class _Executed:
    """A claimed job, with the columns that no other process changes meanwhile."""

    claim: JobClaim
    job: Job

    @property
    def by(self) -> Actor:
        return Actor(self.job.actor_kind, self.job.actor_id, self.job.actor_label)

    def items(self) -> QuerySet[JobItem]:
        """Return the items that the counts do not include."""
        return JobItem.objects.filter(job=self.job.pk, session_pk__gt=self.job.position)


def run_slice(claim: JobClaim, *, seconds: float | None = None) -> bool:
    """Execute a claimed job for about this time, or a slice; return whether it has ended.

    A job that has not ended is released, so that any process can continue it. The operator's
    permissions are checked before each `CHUNK` of items: without them, the job fails and its
    remaining items are dropped.
    Raises MemoryUnavailable: the job continues when the lease has expired.
    """
    deadline = time.monotonic() + (SLICE_SECONDS if seconds is None else seconds)
    run = _find_job(claim)
    if run is None:
        return True
    is_over = False
    while chunk := _next_items(run):
        if run.job.cancel_requested_at is not None:
            return _end_job(run, Job.Status.CANCELLED)
        if is_over:
            release_job(claim)
            return False
        if not _is_permitted(run):
            return _end_job(run, Job.Status.FAILED, Forbidden.code)
        if not _save_counts(run, _perform_until(run, chunk, deadline)):
            return True  # another process has claimed the job
        is_over = time.monotonic() >= deadline
    return _end_job(run, Job.Status.COMPLETE)


def run_next(*, owner: str) -> bool:
    """Claim a job and execute a slice of it; return False if no job waits.

    Raises MemoryUnavailable.
    """
    claim = claim_job(owner=owner)
    if claim is None:
        return False
    run_slice(claim)
    return True


@retried(is_repeatable=True)
def cancel_job(*, job_pk: int, by: Actor) -> bool:
    """Request that a job stops before its next item; return False if it has ended.

    What it has done stays done. The job records who cancelled it first.
    Raises MemoryUnavailable.
    """
    job = Job.objects.active().filter(pk=job_pk)
    first = {"cancel_requested_at": DatabaseNow(), "cancelled_by": by.label[:200]}
    with locked_transaction():
        job.filter(cancel_requested_at__isnull=True).update(**first)
    if not job.exists():
        return False
    # No process may execute it now: then it ends here.
    if (claim := claim_job(owner="", job_pk=job_pk)) and (run := _find_job(claim)):
        _end_job(run, Job.Status.CANCELLED)
    return True


@retried(is_repeatable=True)
def _find_job(claim: JobClaim) -> _Executed | None:
    job = claim.jobs().first()
    return None if job is None else _Executed(claim, job)


@retried(is_repeatable=True)
def _next_items(run: _Executed) -> Sequence[JobItem]:
    return list(run.items().order_by("session_pk")[:CHUNK])


@retried(is_repeatable=True)
def _is_permitted(run: _Executed) -> bool:
    """Return whether the operator still has the permissions with which the job was ordered."""
    missing = _missing_permission(run.job)
    if missing is not None:
        record_refusal(by=run.by, permission=missing)
    return missing is None


def _missing_permission(job: Job) -> str | None:
    if job.actor_kind != "operator":
        return None
    # Read again: a user object keeps its permissions.
    user = on_primary(get_user_model()).filter(pk=job.actor_id).first()
    if user is None or not user.is_active or not getattr(user, "is_staff", False):
        return permission_of(job.action)
    names = (n for n in job.permissions.split() if not user.has_perm(f"chatmemory.{n}"))
    return next(names, None)


def _perform_until(run: _Executed, items: Sequence[JobItem], deadline: float) -> int:
    """Act on items until the deadline, at least on the first; return the position reached."""
    position = run.job.position
    for item in items:
        if not item.outcome:
            _perform_or_mark(run, item)
        position = item.session_pk
        if time.monotonic() >= deadline:
            break
    return position


def _perform_or_mark(run: _Executed, item: JobItem) -> None:
    """Act on an item; mark it with the reason if that is impossible."""
    try:
        _perform_item(run, item)
    except ChatMemoryError as error:  # such as MemoryUnavailable, if the session stays locked
        _store_outcome(item, error.code)
    except Skipped as skipped:
        _store_outcome(item, skipped.code)
    except Exception as error:  # one damaged session must not stop the job
        message = "job %s cannot change session %s"
        log_error(logger, message, run.job.pk, item.session_pk, error=error)
        _store_outcome(item, UNEXPECTED)


@retried(is_repeatable=True)
def _perform_item(run: _Executed, item: JobItem) -> None:
    """Act on an item and mark it. Raises ChatMemoryError, Skipped."""
    target = Target(
        session=Session(pk=item.session_pk, scope=item.scope, key=item.key, epoch=item.epoch),
        by=run.by,
        reason=run.job.reason,
        params=run.job.params,
        entry_pk=item.entry_pk,
    )
    with suppress(_Completed):
        perform(run.job.action, target, partial(_mark_done, item))


class _Completed(Exception):
    """Another process has completed the item, so this transaction must be rolled back."""


def _mark_done(item: JobItem, entry: AuditEntry | None) -> None:
    """Mark an item in the transaction of its action. Raises _Completed."""
    if entry is None:
        columns = JobItem.end_columns(UNCHANGED)
    else:
        messages = entry.counts.get("messages", 0)
        columns = JobItem.end_columns(JobItem.DONE, entry_pk=entry.pk, messages=messages)
    if not JobItem.objects.filter(pk=item.pk, outcome="").update(**columns):
        raise _Completed


@retried(is_repeatable=True)
def _store_outcome(item: JobItem, outcome: str) -> None:
    with locked_transaction():
        JobItem.objects.filter(pk=item.pk, outcome="").update(**JobItem.end_columns(outcome))


def _save_counts(run: _Executed, position: int) -> bool:
    """Count the items up to a position and renew the lease; False if the claim is lost."""
    counts = _counted(run, position)
    if not update_claimed(run.claim, position=position, lease_until=lease_end(), **counts):
        return False
    durably(run.job.refresh_from_db, is_repeatable=True)
    return True


@retried(is_repeatable=True)
def _end_job(run: _Executed, status: str, error: str = "") -> bool:
    """End the job, drop its remaining items, and count the others; return True."""
    with locked_transaction():
        if not run.claim.jobs().update(lease_until=lease_end()):
            return True  # another process has claimed the job
        # Before the count: a process that lost its lease may complete an item until then.
        run.items().filter(outcome="").delete()
        texts = Job.EMPTY_TEXTS if _has_erased(run.job) else {}
        run.claim.jobs().update(
            **_counted(run),
            **texts,
            status=status,
            error=error,
            lease_owner="",
            lease_until=None,
            ended_at=DatabaseNow(),
        )
    return True


def _has_erased(job: Job) -> bool:
    """Return whether a session of the job was erased since the job was ordered."""
    # Not of all items: a job can have as many as there are sessions.
    erased = AuditEntry.objects.filter(action=AuditAction.ERASE, created_at__gte=job.created_at)
    return job.items.filter(session_pk__in=erased.values("session_pk")).exists()


@retried(is_repeatable=True)
def _counted(run: _Executed, up_to: int | None = None) -> dict[str, object]:
    """Return the counts of the job including its next items, up to a position."""
    job = run.job
    done, skipped, messages = job.done, Counter(job.skipped), job.counts.get("messages", 0)
    items = run.items() if up_to is None else run.items().filter(session_pk__lte=up_to)
    outcomes = items.exclude(outcome="").order_by().values("outcome")
    for row in outcomes.annotate(number=Count("pk"), moved=Sum("messages")):
        if row["outcome"] == JobItem.DONE:
            done += row["number"]
            messages += row["moved"]
        else:
            skipped[row["outcome"]] += row["number"]
    return {"done": done, "skipped": dict(skipped), "counts": {"messages": messages}}
