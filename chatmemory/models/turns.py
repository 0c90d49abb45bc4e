"""Turns: a user's message and the run that answers it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import models
from django.db.models import (
    Case,
    Count,
    Exists,
    F,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
    Window,
)
from django.db.models.functions import Coalesce, RowNumber
from django.utils.translation import gettext_lazy as _

from chatmemory import codec
from chatmemory.models.feedback import Feedback
from chatmemory.models.fields import DatabaseNow, KeyField, MomentField
from chatmemory.models.indexes import PartialIndex
from chatmemory.models.managers import PrimaryManager
from chatmemory.models.messages import Message
from chatmemory.models.sessions import Session

_NOW = DatabaseNow()
"""One object, since its SQL is cached under it."""

MAX_SESSIONS = 2**31 - 1
"""Replaces the limit TURNS_PER_USER for other scopes: more sessions than any scope has."""


class TurnQuerySet(QuerySet["Turn"]):
    """Queries of turns."""

    def overdue(self) -> TurnQuerySet:
        """Select running turns whose lease expired: their process is dead or paused."""
        return self.filter(status=Turn.Status.RUNNING, lease_until__lt=DatabaseNow())

    def long_overdue(self, age: timedelta) -> TurnQuerySet:
        """Select running turns whose lease expired before that time: no process sweeps."""
        return self.filter(status=Turn.Status.RUNNING, lease_until__lt=DatabaseNow() - age)

    def unclaimed(self, age: timedelta) -> TurnQuerySet:
        """Select turns that wait that long in idle sessions: no process claims turns.

        Excludes turns of a user who has a running turn: TURNS_PER_USER may hold them back.
        """
        since = DatabaseNow() - age
        is_idle = Q(session__last_message_at__isnull=True) | Q(session__last_message_at__lt=since)
        running = Turn.objects.filter(_has_valid_run(), scope=OuterRef("scope"))
        return self.claimable().filter(is_idle, ~Exists(running), created_at__lt=since)

    def seconds_to_lease_end(self) -> float | None:
        """Return the seconds until the next valid lease expires, on the database's clock."""
        valid = self.filter(status=Turn.Status.RUNNING, lease_until__gte=DatabaseNow())
        ends = valid.order_by("lease_until").annotate(now=DatabaseNow())
        times: list[tuple[Any, Any]] = list(ends.values_list("lease_until", "now")[:1])
        return next(((until - now).total_seconds() for until, now in times), None)

    def waiting(self) -> TurnQuerySet:
        """Select waiting turns, in the order in which they start."""
        turns = self.filter(status=Turn.Status.WAITING).undeferred()
        return turns.order_by("position", "pk")

    def deferred(self) -> TurnQuerySet:
        """Select deferred batches, in the order in which they will be stored."""
        batches = self.filter(status=Turn.Status.WAITING, asked__startswith=codec.BATCH_BEGIN)
        return batches.order_by("pk")

    def undeferred(self) -> TurnQuerySet:
        """Exclude batches of messages, which are no turns: Note [Deferred messages]."""
        return self.exclude(asked__startswith=codec.BATCH_BEGIN)

    def claimable(self) -> TurnQuerySet:
        """Select waiting turns of idle sessions, and turns that were returned to the queue."""
        return self.filter(_is_claimable())

    def ahead_of(
        self, scope: Any, *, turn_pk: Any = None, session_pk: Any = None
    ) -> QuerySet[Turn, Any]:
        """Return the scope's sessions that precede this turn, or a new turn by default.

        In these a turn runs, or an older one is claimable. Damaged sessions do not precede it.
        """
        older = Q() if turn_pk is None else Q(pk__lt=turn_pk)
        live = self.filter(scope=scope, status__in=Turn.ACTIVE_STATUSES)
        ahead = live.filter(~_is_damaged(), _has_valid_run() | (_is_claimable() & older))
        if session_pk is not None:
            ahead = ahead.exclude(session=session_pk)
        sessions: QuerySet[Turn, Any] = ahead.order_by().values("session").distinct()
        return sessions

    def session_pks(self) -> QuerySet[Turn, Any]:
        """Return the primary keys of the sessions, by their oldest turn; damaged ones last."""
        in_order = self._by_session().order_by("is_damaged", "oldest")
        pks: QuerySet[Turn, Any] = in_order.values_list("session_id", flat=True)
        return pks

    def session_pks_within(self, limit: int) -> QuerySet[Turn, Any]:
        """Return the primary keys of each person's first sessions, up to `limit` running turns.

        The sessions of a person are in the order of `session_pks`.
        """
        active = Turn.objects.filter(~_is_damaged(), _has_valid_run(), scope=OuterRef("scope"))
        counted = active.order_by().values("scope")
        running = Coalesce(Subquery(counted.values(count=Count("pk"))), Value(0))
        is_person = Q(scope__startswith="user:") | Q(scope__startswith="visitor:")
        places = Case(When(is_person, then=limit - running), default=Value(MAX_SESSIONS))
        number = Window(RowNumber(), partition_by="scope", order_by=("is_damaged", "oldest"))
        numbered = self._by_session().annotate(places=places, number=number)
        first = numbered.filter(number__lte=F("places"))
        pks: QuerySet[Turn, Any] = first.order_by("number").values_list("session_id", flat=True)
        return pks

    def _by_session(self) -> QuerySet[Any, Any]:
        """Group by session, with `oldest` (turn) and `is_damaged`."""
        marked = self.order_by().annotate(is_damaged=_is_damaged())
        return marked.values("session_id", "scope", "is_damaged").annotate(oldest=Min("pk"))

    def superseding(self, low: Any, high: Any = None) -> TurnQuerySet:
        """Select turns with a user row that supersede rows between `low` and `high`, inclusive.

        The numbers may be expressions. Readers call `superseded` or `is_current` of
        chatmemory/models/superseded.py, which also know the withdrawn rows.
        """
        # A waiting turn has no user row yet, and supersedes nothing.
        started = self.filter(user_seq__isnull=False, replaces_to__gte=low)
        return started if high is None else started.filter(replaces_from__lte=high)

    def with_reason(self) -> TurnQuerySet:
        """Annotate the `reason` of the feedback on each turn; None without feedback."""
        given = Feedback.objects.filter(
            session=OuterRef("session_id"), user_seq=OuterRef("user_seq")
        )
        return self.annotate(reason=Subquery(given.values("reason")[:1]))

    def containing(self, text: str) -> TurnQuerySet:
        """Select turns with a text in `asked`, `partial` or the `reason` of their feedback.

        In upper or lower case. No index supports this.
        """
        in_asked = codec.dump_json(text)[1:-1]  # as the JSON of `asked` writes it
        has_text = Q(asked__icontains=in_asked) | Q(partial__icontains=text)
        return self.with_reason().filter(has_text | Q(reason__icontains=text))

    def request_stop(self) -> int:
        """Request running turns to stop; keep the time of the first request. Return the count."""
        first_request = Coalesce("stop_requested_at", DatabaseNow())
        return self.filter(status=Turn.Status.RUNNING).update(stop_requested_at=first_request)

    def mark_ended(self, status: str, **columns: Any) -> int:
        """Set the final status and clear the columns of live turns; return the count."""
        return self.update(**Turn.end_columns(status, **columns))


def _is_claimable() -> Q:
    is_idle = Q(session__running__isnull=True) | Q(session__running=F("client_id"))
    return is_idle & Q(status=Turn.Status.WAITING)


def _has_valid_run() -> Q:
    """Match running turns that their session names, with a valid lease.

    A damaged session or a dead process leaves other running turns.
    """
    return Q(
        status=Turn.Status.RUNNING,
        client_id=F("session__running"),
        lease_until__gte=DatabaseNow(),
    )


def _is_damaged() -> Exists:
    """Match turns of sessions whose next seq is already used: these reject rows until a repair."""
    next_row = Message.stored.filter(
        session_id=OuterRef("session_id"), seq=OuterRef("session__last_seq") + 1
    )
    return Exists(next_row)


class Turn(models.Model):
    """An admitted message of a user, and the state of its run."""

    class Status(models.TextChoices):
        WAITING = "waiting", _("waiting")
        RUNNING = "running", _("running")
        COMPLETE = "complete", _("complete")
        INTERRUPTED = "interrupted", _("interrupted")
        FAILED = "failed", _("failed")
        CANCELLED = "cancelled", _("cancelled")

    ACTIVE_STATUSES = (Status.WAITING, Status.RUNNING)

    session = models.ForeignKey(
        Session, on_delete=models.PROTECT, related_name="turns", db_index=False
    )
    scope = KeyField(max_length=150, db_default="")
    """The session's scope while the turn waits or runs, else empty: counted without a join. Empty
    for a deferred batch, to which TURNS_PER_USER does not apply."""
    client_id = KeyField(max_length=64)
    status = models.CharField(max_length=12, choices=Status.choices)
    position = models.BigIntegerField(db_default=0)
    """The order in the queue, lowest first; turns with the same position start by primary key."""
    asked = models.TextField(default="")
    """The user's message as JSON, until it has a row; or a deferred batch: `encode_batch`."""
    user_seq = models.BigIntegerField(null=True)
    """The seq of the user's row; null while the turn waits."""
    replaces_from = models.BigIntegerField(null=True)
    """See Note [Superseded ranges]."""
    replaces_to = models.BigIntegerField(null=True)
    """The end of that range; while the turn waits, the newest user row that its sender knew."""
    epoch = models.BigIntegerField()
    fence = models.BigIntegerField(db_default=0)
    """See Note [Fence]."""
    lease_owner = models.CharField(max_length=64, default="")
    lease_until = MomentField(null=True)
    started_at = MomentField(null=True)
    stop_requested_at = MomentField(null=True)
    step = models.IntegerField(db_default=0)
    """The number of the streamed text in the turn."""
    first_text_ms = models.IntegerField(null=True)
    """Milliseconds from the start of the run to the first text of the reply; null without text."""
    partial = models.TextField(default="")
    """The streamed text that was saved last."""
    model = models.CharField(max_length=100, default="")
    usage = models.TextField(default="")
    error = models.CharField(max_length=32, default="")
    created_at = MomentField(db_default=DatabaseNow())
    ended_at = MomentField(null=True)

    objects = PrimaryManager.from_queryset(TurnQuerySet)()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("turn")
        verbose_name_plural = _("turns")
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(
                fields=["session", "client_id"], name="chatmemory_turn_client_id"
            ),
        )
        indexes = (
            # For the sweep and the count of a person's turns: few turns are live.
            PartialIndex(
                fields=["status", "scope"],
                where=Q(status__in=["waiting", "running"]),
                name="chatmemory_turn_live",
            ),
            # For the lists of operators: few turns fail or are interrupted. It has all columns that
            # the filters read, since the turns themselves are anywhere in the table.
            PartialIndex(
                fields=["status", "ended_at", "error", "session"],
                where=Q(status__in=["failed", "interrupted"]),
                name="chatmemory_turn_problem",
            ),
            # For the vacuum, which finds the turns of the rows that it deletes under the lock.
            models.Index(fields=["session", "user_seq"], name="chatmemory_turn_user_seq"),
            # For `chatmemory.statistics`, which reads the turns that ended since its last run. A
            # turn gets its entry when it ends, where `chatmemory_turn_live` changes too.
            PartialIndex(
                fields=["ended_at"],
                where=Q(ended_at__isnull=False),
                name="chatmemory_turn_ended",
            ),
            PartialIndex(
                fields=["session", "replaces_to"],
                where=Q(replaces_to__isnull=False),
                name="chatmemory_turn_replaces",
            ),
        )

    def __str__(self) -> str:
        return f"{self.client_id} ({self.status})"

    @staticmethod
    def end_columns(status: str, **columns: Any) -> dict[str, Any]:
        """Return the columns of a turn that ends; pass `asked` and `partial` to keep them."""
        return {
            "status": status,
            "scope": "",
            "asked": "",
            "partial": "",
            "lease_owner": "",
            "lease_until": None,
            "ended_at": _NOW,
            **columns,
        }

    @property
    def asked_text(self) -> str:
        """The text of a user message that has no row yet."""
        if not self.asked:  # as of a running turn; the codec would report it as damaged
            return ""
        messages = codec.decode_batch(self.asked) or [codec.decode("user", "", self.asked)]
        return "\n\n".join(codec.text_of(message.get("content")) for message in messages)
