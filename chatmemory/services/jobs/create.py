"""Create jobs: from sessions that a queryset selects, or to undo another job."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import BigIntegerField, F, OuterRef, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Cast

from chatmemory.access.actors import Actor
from chatmemory.conf import settings
from chatmemory.database.after_commit import announce_job
from chatmemory.database.faults import write_connection
from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import retried
from chatmemory.errors import Conflict, NotFound
from chatmemory.models import (
    DatabaseNow,
    Job,
    JobAction,
    JobItem,
    JobQuerySet,
    Session,
    database_now,
)
from chatmemory.services.audit.entries import MAX_ACTOR_CHARS, MAX_REASON_CHARS, check_reason
from chatmemory.services.jobs.actions import ACTIONS
from chatmemory.services.jobs.claims import lease_end

COLUMNS = ("session_pk", "scope", "key", "epoch", "entry_pk")
"""The columns of an item that are selected from its session."""

TAGGED = (JobAction.TAG, JobAction.UNTAG)
"""The actions whose undo needs the arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Who orders a job, and why."""

    by: Actor
    reason: str
    permissions: Collection[str] = ()
    """The codenames to check again while the job runs, besides the operator's account."""
    owner: str = ""
    """The process that executes the job first; empty for any."""


@retried(is_repeatable=False)
def create_job(
    *, action: str, sessions: QuerySet[Session], order: Order, params: Mapping[str, Any]
) -> Job:
    """Store a job for all sessions that a queryset selects now, whatever their number.

    One statement copies their identities, so the job is for these sessions and no later sessions.
    With an owner, the job is already claimed: pass it to `claim_of`. Raises BadInput, NotFound (no
    session is selected), MemoryUnavailable.
    """
    check_reason(order.reason)
    ACTIONS[action].check(params)
    with locked_transaction():
        job = _new_job(action, order, params)
        return _fill(job, sessions)


@retried(is_repeatable=False)
def undo_job(*, job: Job, sessions: QuerySet[Session], order: Order) -> Job:
    """Store a job that undoes another one, for its sessions among `sessions`.

    Only what that job has changed is undone. Raises Conflict if it cannot be undone, NotFound,
    BadInput, MemoryUnavailable.
    """
    check_reason(order.reason)
    with locked_transaction():
        # The lock of the undone job, so that two operators do not undo it at the same time.
        Job.objects.filter(pk=job.pk).update(fence=F("fence"))
        job = Job.objects.get(pk=job.pk)
        if not is_undoable(job):
            raise Conflict("This job cannot be undone.")
        undone = JobItem.objects.filter(job__in=_undos(job)).values("session_pk")
        action = ACTIONS[job.action].undo
        params = job.params if action in TAGGED else {}
        done = job.items.filter(outcome=JobItem.DONE, entry_pk__isnull=False)
        done = done.exclude(session_pk__in=undone)
        entry = done.filter(session_pk=OuterRef("pk")).values("entry_pk")
        undo = _new_job(action, order, params, undo_of=job)
        return _fill(undo, sessions.filter(pk__in=done.values("session_pk")), Subquery(entry))


def is_undoable(job: Job) -> bool:
    """Return whether a job has changed a session for which no other job undoes it.

    An undo can be for a part of the sessions, if its operator may act only on these.
    """
    if job.is_active or not job.done or job.ended_at is None or not ACTIONS[job.action].undo:
        return False
    if job.action in TAGGED and not job.params:  # an erasure emptied the name of the tag
        return False
    if job.ended_at + timedelta(days=settings.UNDO_DAYS) < database_now(write_connection()):
        return False
    undone: int = _undos(job).aggregate(number=Sum("total", default=0))["number"]
    return undone < job.done


def _undos(job: Job) -> JobQuerySet:
    """Select the jobs that undo this one, except those that ended early."""
    ended_early = (Job.Status.CANCELLED, Job.Status.FAILED)
    return Job.objects.filter(undo_of=job).exclude(status__in=ended_early)


def _new_job(
    action: str, order: Order, params: Mapping[str, Any], undo_of: Job | None = None
) -> Job:
    by = order.by
    job = Job(
        action=action,
        params=dict(params),
        status=Job.Status.QUEUED,
        actor_kind=by.kind,
        actor_id=by.id[:MAX_ACTOR_CHARS],
        actor_label=by.label[:200],
        permissions=" ".join(order.permissions),
        reason=order.reason[:MAX_REASON_CHARS],
        undo_of=undo_of,
    )
    if order.owner:
        job.status, job.lease_owner, job.lease_until = Job.Status.RUNNING, order.owner, lease_end()
        job.started_at = DatabaseNow()
    job.save(force_insert=True)
    return job


def _fill(job: Job, sessions: QuerySet[Session], entry: Any = None) -> Job:
    """Add an item for each session. Raises NotFound without sessions. Needs a transaction."""
    connection = write_connection()
    # By primary key: the host's queryset may join, repeat rows and add columns.
    found = Session.objects.filter(pk__in=sessions.order_by().values("pk"))
    rows = found.annotate(entry=entry or Cast(Value(None), BigIntegerField()))
    selected = rows.values_list("pk", "scope", "key", "epoch", "entry")
    sql, params = selected.query.get_compiler(connection=connection).as_sql()
    quote = connection.ops.quote_name
    columns = ", ".join(map(quote, ("job_id", *COLUMNS)))
    insert = f"INSERT INTO {quote(JobItem._meta.db_table)} ({columns}) "
    with connection.cursor() as cursor:
        select = f"SELECT {job.pk:d}, found.* FROM ({sql}) found"  # noqa: S608  # Django's SQL
        cursor.execute(insert + select, params)
        job.total = cursor.rowcount
    if not job.total:
        raise NotFound("No session is selected.")
    Job.objects.filter(pk=job.pk).update(total=job.total)
    job.refresh_from_db()
    if not job.lease_owner:
        announce_job(job.pk)
    return job
