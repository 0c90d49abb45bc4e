"""Jobs: an operator's action on many sessions, and the sessions that it is for."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _

from chatmemory.models.fields import DatabaseNow, KeyField, MomentField
from chatmemory.models.indexes import PartialIndex
from chatmemory.models.managers import PrimaryManager


class JobQuerySet(QuerySet["Job"]):
    """Queries of jobs."""

    def active(self) -> JobQuerySet:
        """Select jobs that have not ended."""
        return self.filter(status__in=Job.ACTIVE_STATUSES)

    def claimable(self) -> JobQuerySet:
        """Select active jobs that no process executes, the oldest first."""
        is_free = Q(lease_until__isnull=True) | Q(lease_until__lt=DatabaseNow())
        return self.active().filter(is_free).order_by("pk")


class JobAction(models.TextChoices):
    """What a job does. The column has no `choices`: a new action is no migration."""

    TRIM = "trim", _("Trim")
    CLEAR = "clear", _("Clear")
    PURGE = "purge", _("Purge")
    RESTORE = "restore", _("Restore")
    HOLD = "hold", _("Put on hold")
    RELEASE = "release", _("Release")
    ARCHIVE = "archive", _("Archive")
    UNARCHIVE = "unarchive", _("Unarchive")
    TAG = "tag", _("Add a tag")
    UNTAG = "untag", _("Remove a tag")
    STOP = "stop", _("Stop reply")
    END = "end", _("End stuck reply")


class Job(models.Model):
    """An action on sessions. Its columns contain no content of a session.

    See Note [Jobs] in services/jobs/run.py.
    """

    class Status(models.TextChoices):
        QUEUED = "queued", _("queued")
        RUNNING = "running", _("running")
        COMPLETE = "complete", _("complete")
        CANCELLED = "cancelled", _("cancelled")
        FAILED = "failed", _("failed")

    ACTIVE_STATUSES = (Status.QUEUED, Status.RUNNING)

    EMPTY_TEXTS: ClassVar[dict[str, Any]] = {"reason": "", "params": {}}
    """The columns that an operator wrote, after the erasure of one of the job's sessions."""

    undo_of = models.ForeignKey(
        "self", null=True, on_delete=models.SET_NULL, related_name="undone_by"
    )
    """The job that this one undoes."""
    total = models.BigIntegerField(_("conversations"), db_default=0)
    done = models.BigIntegerField(_("done"), db_default=0)
    """Sessions that the action has changed."""
    position = models.BigIntegerField(db_default=0)
    """The counts include the items up to this primary key of a session."""
    fence = models.BigIntegerField(db_default=0)
    """Changes at each claim."""
    lease_until = MomentField(null=True)
    cancel_requested_at = MomentField(null=True)
    created_at = MomentField(_("created at"), db_default=DatabaseNow())
    started_at = MomentField(_("started at"), null=True)
    ended_at = MomentField(_("ended at"), null=True)
    action = models.CharField(_("action"), max_length=32)
    """A member of `JobAction`."""
    status = models.CharField(_("status"), max_length=12, choices=Status.choices)
    error = models.CharField(_("error"), max_length=32, db_default="")
    """Why a failed job ended."""
    lease_owner = models.CharField(max_length=64, db_default="")
    actor_kind = models.CharField(max_length=16)
    actor_id = models.CharField(max_length=150)
    actor_label = models.CharField(_("operator"), max_length=200)
    cancelled_by = models.CharField(_("cancelled by"), max_length=200, db_default="")
    """The label of the operator who cancelled the job first."""
    permissions = models.CharField(max_length=200)
    """The codenames that the operator needs, separated by spaces."""
    reason = models.CharField(_("reason"), max_length=500)
    params = models.JSONField(default=dict)
    """The arguments of the action, as JSON."""
    skipped = models.JSONField(_("skipped"), default=dict)
    """The number of sessions that were not changed, by code."""
    counts = models.JSONField(default=dict)
    """What the action has removed or restored: {"messages": n}."""

    objects = PrimaryManager.from_queryset(JobQuerySet)()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        default_permissions = ()
        indexes = (
            # For the sweep, which looks for active jobs every few seconds.
            PartialIndex(
                fields=["status"],
                where=Q(status__in=["queued", "running"]),
                name="chatmemory_job_active",
            ),
        )

    def __str__(self) -> str:
        return f"{self._meta.verbose_name} {self.pk}"

    @property
    def is_active(self) -> bool:
        return self.status in self.ACTIVE_STATUSES

    @property
    def skipped_count(self) -> int:
        return sum(self.skipped.values())

    @property
    def counted(self) -> int:
        """The number of sessions that the counts include."""
        return self.done + self.skipped_count

    @property
    def left(self) -> int:
        """The number of the others."""
        return self.total - self.counted


class JobItem(models.Model):
    """A session of a job: its identity at the confirmation, until the item has an outcome."""

    DONE = "done"

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="items", db_index=False)
    session_pk = models.BigIntegerField()
    """Not a foreign key: an item outlives its session."""
    epoch = models.BigIntegerField()
    entry_pk = models.BigIntegerField(null=True)
    """The audit entry of the action; before it, in a job that undoes another, the one to undo."""
    messages = models.BigIntegerField(db_default=0)
    """The number of messages that the action removed or restored."""
    scope = KeyField(max_length=150, db_default="")
    key = KeyField(max_length=200, db_default="")
    """Blank, as the scope, as soon as the item has an outcome: they can be personal data."""
    outcome = models.CharField(max_length=32, db_default="")
    """Empty while the item waits, `done`, or the code of the reason why nothing was changed."""

    objects = PrimaryManager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("job item")
        verbose_name_plural = _("job items")
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(fields=["job", "session_pk"], name="chatmemory_jobitem_once"),
        )

    def __str__(self) -> str:
        return f"conversation {self.session_pk} of job {self.job_id}"

    @classmethod
    def end_columns(cls, outcome: str, **columns: Any) -> dict[str, Any]:
        """Return the columns of an item with an outcome."""
        return {"outcome": outcome, "scope": "", "key": "", **columns}
