"""Claim jobs: one process at a time executes a job, under a lease and a fence."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import OperationalError
from django.db.models import F
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Coalesce

from chatmemory.conf import settings
from chatmemory.database.after_commit import announce_job
from chatmemory.database.faults import Fault, fault_of
from chatmemory.database.locks import locked_transaction, update_without_waiting
from chatmemory.database.retries import retried
from chatmemory.models import DatabaseNow, Job, JobQuerySet


@dataclass(frozen=True, slots=True)
class JobClaim:
    """The right to execute a job until its lease ends. Each claim has its own fence."""

    job_pk: int
    fence: int

    def jobs(self) -> JobQuerySet:
        """Select the job, if no other process has claimed it since and it has not ended."""
        return Job.objects.active().filter(pk=self.job_pk, fence=self.fence)


def lease_end() -> CombinedExpression:
    """Return the end of a lease that begins now, on the database's clock."""
    return DatabaseNow() + timedelta(seconds=settings.LEASE)


def claim_of(job: Job) -> JobClaim:
    """Return the claim of a job that `create_job` stored for an owner."""
    return JobClaim(job.pk, job.fence)


@retried(is_repeatable=True)
def claim_job(*, owner: str, job_pk: int | None = None) -> JobClaim | None:
    """Claim a job that no process executes, or the given one; None without such a job.

    The job with the fewest sessions comes first, so that no large job delays a small one. A locked
    job is left out: a paused process can hold the lock for long. Raises MemoryUnavailable.
    """
    free = Job.objects.claimable()
    if job_pk is not None:
        free = free.filter(pk=job_pk)
    for pk, fence in free.order_by("total", "pk").values_list("pk", "fence"):
        # The fence, since another process may claim the job between the two statements.
        if _claim_first(free.order_by().filter(pk=pk, fence=fence), owner):
            return JobClaim(pk, fence + 1)
    return None


def _claim_first(job: JobQuerySet, owner: str) -> bool:
    columns: dict[str, Any] = {
        "status": Job.Status.RUNNING,
        "fence": F("fence") + 1,
        "lease_owner": owner,
        "lease_until": lease_end(),
        "started_at": Coalesce("started_at", DatabaseNow()),
    }
    try:
        return update_without_waiting(job, **columns) > 0
    except OperationalError as error:
        if fault_of(error) is not Fault.LOCK_TIMEOUT:
            raise
        return False


def release_job(claim: JobClaim) -> None:
    """End the lease, so that any process can continue the job immediately.

    Raises MemoryUnavailable.
    """
    if update_claimed(claim, lease_owner="", lease_until=None):
        announce_job(claim.job_pk)


@retried(is_repeatable=True)
def update_claimed(claim: JobClaim, **columns: object) -> bool:
    """Update a job; return False if another process has claimed it. Raises MemoryUnavailable."""
    with locked_transaction():
        return claim.jobs().update(**columns) > 0
