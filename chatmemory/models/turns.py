"""Turns: a user's message and the run that answers it."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Count, F, Min, OuterRef, Q, QuerySet, Subquery, Value, Window
from django.db.models.functions import Coalesce, RowNumber
from django.utils.translation import gettext_lazy as _

from chatmemory import codec
from chatmemory.models.fields import DatabaseNow, KeyField
from chatmemory.models.indexes import PartialIndex
from chatmemory.models.managers import PrimaryManager
from chatmemory.models.sessions import Session


class TurnQuerySet(QuerySet["Turn"]):
    """What can be asked of turns."""

    def overdue(self) -> TurnQuerySet:
        """Running ones whose lease ended: their process is dead, or paused."""
        return self.filter(status=Turn.Status.RUNNING, lease_until__lt=DatabaseNow())

    def seconds_to_lease_end(self) -> float | None:
        """Until the next lease ends that has not ended, on the database's clock."""
        to_come = self.filter(status=Turn.Status.RUNNING, lease_until__gte=DatabaseNow())
        ends = to_come.order_by("lease_until").annotate(now=DatabaseNow())
        times: list[tuple[Any, Any]] = list(ends.values_list("lease_until", "now")[:1])
        return next(((until - now).total_seconds() for until, now in times), None)

    def waiting(self) -> TurnQuerySet:
        """Those that wait for somebody to run them, the oldest first."""
        return self.filter(status=Turn.Status.WAITING).order_by("place", "pk")

    def claimable(self) -> TurnQuerySet:
        """Waiting ones of sessions in which nothing runs; those that were given back too."""
        is_idle = Q(session__running__isnull=True) | Q(session__running=F("client_id"))
        return self.filter(is_idle, status=Turn.Status.WAITING)

    def ahead_of(
        self, scope: str, *, turn_pk: int | None = None, session_pk: int | None = None
    ) -> int:
        """How many sessions of the scope go before this turn of a session, or before a new turn.

        In these a turn runs, or an older one could begin.
        """
        could_begin = Q(session__running__isnull=True) | Q(session__running=F("client_id"))
        if turn_pk is not None:
            could_begin &= Q(pk__lt=turn_pk)
        live = self.filter(scope=scope, status__in=(Turn.Status.WAITING, Turn.Status.RUNNING))
        ahead = live.filter(Q(status=Turn.Status.RUNNING) | could_begin)
        if session_pk is not None:
            ahead = ahead.exclude(session=session_pk)
        return ahead.values("session").distinct().count()

    def sessions(self) -> QuerySet[Turn, Any]:
        """The primary keys of their sessions, in order of the oldest turn."""
        found = self.order_by().values("session_id").annotate(oldest=Min("pk"))
        return found.order_by("oldest").values_list("session_id", flat=True)

    def within(self, limit: int) -> TurnQuerySet:
        """The oldest of each person, as many as may begin where `limit` turns may run."""
        running = Turn.objects.filter(scope=OuterRef("scope"), status=Turn.Status.RUNNING)
        counted = running.order_by().values("scope").values(count=Count("pk"))
        number = Window(RowNumber(), partition_by="scope", order_by="pk")
        is_person = Q(scope__startswith="user:") | Q(scope__startswith="visitor:")
        return self.annotate(number=number, running=Coalesce(Subquery(counted), Value(0))).filter(
            ~is_person | Q(number__lte=limit - F("running"))
        )

    def superseding(self, low: int, high: int | None = None) -> TurnQuerySet:
        """Those with a row of their own that supersede a row from `low` on, up to `high`."""
        begun = self.filter(user_seq__isnull=False, replaces_to__gte=low)
        return begun if high is None else begun.filter(replaces_from__lte=high)

    def superseded(self, low: int = 1) -> list[tuple[int, int]]:
        """The ranges of a session's numbers from `low` on, ends included, that they supersede.

        One for each turn, in order of their ends: one may lie within a later one, and each ends
        where its turn begins, so that the versions of a message can be told.
        """
        found = self.superseding(low).order_by("replaces_to")
        ranges = found.values_list("replaces_from", "replaces_to")
        return [(max(a, low), b) for a, b in ranges if a is not None and b is not None]

    def ask_to_stop(self) -> int:
        """Tell running ones that they shall stop, and keep when that was first; return how many."""
        asked = Coalesce("stop_requested_at", DatabaseNow())
        return self.filter(status=Turn.Status.RUNNING).update(stop_requested_at=asked)

    def end(self, status: str, **columns: Any) -> int:
        """Give them this status, and take from them what only live ones have; return how many."""
        return self.update(**Turn.ended(status, **columns))


class Turn(models.Model):
    """One admitted message of a user, and how its run stands."""

    class Status(models.TextChoices):
        WAITING = "waiting", _("waiting")
        RUNNING = "running", _("running")
        COMPLETE = "complete", _("complete")
        INTERRUPTED = "interrupted", _("interrupted")
        FAILED = "failed", _("failed")
        CANCELLED = "cancelled", _("cancelled")

    session = models.ForeignKey(
        Session, on_delete=models.PROTECT, related_name="turns", db_index=False
    )
    scope = KeyField(max_length=150, db_default="")  # its session's, while it waits or runs
    client_id = KeyField(max_length=64)
    status = models.CharField(max_length=12, choices=Status.choices)
    place = models.BigIntegerField(db_default=0)
    asked = models.TextField(default="")
    user_seq = models.BigIntegerField(null=True)
    replaces_from = models.BigIntegerField(null=True)
    replaces_to = models.BigIntegerField(null=True)  # while it waits, the newest that was seen
    epoch = models.BigIntegerField()
    fence = models.BigIntegerField(db_default=0)
    lease_owner = models.CharField(max_length=64, default="")
    lease_until = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    stop_requested_at = models.DateTimeField(null=True)
    step = models.IntegerField(db_default=0)
    partial = models.TextField(default="")
    model = models.CharField(max_length=100, default="")
    usage = models.TextField(default="")
    error = models.CharField(max_length=32, default="")
    created_at = models.DateTimeField(db_default=DatabaseNow())
    ended_at = models.DateTimeField(null=True)

    objects = PrimaryManager.from_queryset(TurnQuerySet)()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("turn")
        verbose_name_plural = _("turns")
        constraints = (
            models.UniqueConstraint(
                fields=["session", "client_id"], name="chatmemory_turn_client_id"
            ),
        )
        indexes = (
            # For the sweep and for the count of a person's turns: live turns are few among all that
            # ever ran.
            PartialIndex(
                fields=["status", "scope"],
                where=Q(status__in=["waiting", "running"]),
                name="chatmemory_turn_live",
            ),
            # For the vacuum, which looks for the turns of the rows that it deletes, under the lock.
            models.Index(fields=["session", "user_seq"], name="chatmemory_turn_user_seq"),
            PartialIndex(
                fields=["session", "replaces_to"],
                where=Q(replaces_to__isnull=False),
                name="chatmemory_turn_replaces",
            ),
        )

    def __str__(self) -> str:
        return f"{self.client_id} ({self.status})"

    @staticmethod
    def ended(status: str, **columns: Any) -> dict[str, Any]:
        """Return the columns of a turn that ends. Give `asked` and `partial` to keep them."""
        return {
            "status": status,
            "scope": "",
            "asked": "",
            "partial": "",
            "lease_owner": "",
            "lease_until": None,
            "ended_at": DatabaseNow(),
            **columns,
        }

    @property
    def asked_text(self) -> str:
        """The text of the user's message, while no row holds it."""
        return codec.text_of(codec.decode("user", "", self.asked).get("content"))
