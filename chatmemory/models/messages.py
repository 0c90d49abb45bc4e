"""Messages: rows that are inserted complete."""

from __future__ import annotations

from django.db import models
from django.db.models import F, OuterRef, Q, QuerySet, Subquery
from django.utils.translation import gettext_lazy as _

from chatmemory import codec
from chatmemory.models.feedback import Feedback
from chatmemory.models.fields import DatabaseNow, KeyField, MomentField
from chatmemory.models.indexes import UniqueIfSet
from chatmemory.models.managers import PrimaryManager
from chatmemory.models.sessions import Session
from chatmemory.models.values import STORED_COLUMNS, StoredMessage

MAX_AUTHOR_CHARS = 100


class MessageQuerySet(QuerySet["Message"]):
    """Queries of messages."""

    def in_order(self) -> MessageQuerySet:
        """Order by session and seq."""
        return self.order_by("session_id", "seq")

    def turn_starts(self) -> MessageQuerySet:
        """Select the user rows that start a turn: a run can store user rows too, in its turn."""
        starts_turn = Q(turn__isnull=True) | Q(turn=F("seq"))
        return self.filter(starts_turn, role=Message.Role.USER)

    def containing(self, text: str) -> MessageQuerySet:
        """Select messages that contain a text, in upper or lower case. No index supports this."""
        in_body = codec.dump_json(text)[1:-1]  # as the JSON of `body` writes it
        return self.filter(Q(text__icontains=text) | Q(body__icontains=in_body))

    def changed_since(self, revision: int, seq: int, *, limit: int) -> list[StoredMessage]:
        """Return the next `limit` changed rows after (revision, seq), in that order.

        For a queryset of one session. No index supports this: call it only if the session's
        `rows_revision` is higher than `revision`.
        """
        user_row = Message.stored.filter(session_id=OuterRef("session_id"), seq=OuterRef("turn"))
        found = (
            self.filter(Q(revision__gt=revision) | Q(revision=revision, seq__gt=seq))
            .annotate(turn_client_id=Subquery(user_row.values("client_id")))
            .order_by("revision", "seq")
            .values_list(*STORED_COLUMNS, "turn_client_id")[:limit]
        )
        return [StoredMessage(*row) for row in found]


class AboveFloor(PrimaryManager["Message"]):
    """Excludes messages below the floor, which a trim or clear hides."""

    def get_queryset(self) -> QuerySet[Message]:
        return super().get_queryset().filter(seq__gte=F("session__first_seq"))


class Message(models.Model):
    """One message of a session. Its seq never changes and is never reused."""

    class Role(models.TextChoices):
        SYSTEM = "system", _("system")
        USER = "user", _("user")
        ASSISTANT = "assistant", _("assistant")
        TOOL = "tool", _("tool")

    class Status(models.TextChoices):
        COMPLETE = "complete", _("complete")
        INTERRUPTED = "interrupted", _("interrupted")
        FAILED = "failed", _("failed")

    session = models.ForeignKey(
        Session, on_delete=models.PROTECT, related_name="messages", db_index=False
    )
    seq = models.BigIntegerField(_("number"))
    role = models.CharField(_("role"), max_length=12, choices=Role.choices)
    text = models.TextField(_("text"))
    body = models.TextField(null=True)  # noqa: DJ001  # null: only role and text
    client_id = KeyField(max_length=64, null=True)
    """On the first row of a batch; unique in the session."""
    batch = models.IntegerField(null=True)
    """The number of rows of the batch, where `client_id` is set."""
    turn = models.BigIntegerField(null=True)
    """The seq of its turn's user row."""
    step = models.IntegerField(null=True)
    status = models.CharField(_("status"), max_length=12, choices=Status.choices)
    error = models.CharField(_("error"), max_length=32)
    model = models.CharField(_("model"), max_length=100)
    author = models.CharField(_("author"), max_length=MAX_AUTHOR_CHARS, null=True)  # noqa: DJ001  # null: see the role
    """Who wrote the row if it was neither the session's own person nor the bot: `operator:3`."""
    tokens = models.IntegerField(_("tokens"))
    revision = models.BigIntegerField(db_default=0)
    redacted = models.BooleanField(_("redacted"), db_default=False)
    quarantined = models.BooleanField(_("quarantined"), db_default=False)
    feedback = models.SmallIntegerField(null=True, choices=Feedback.Value.choices)
    """On the last reply of a turn: the value of its feedback; see Note [Feedback]."""
    created_at = MomentField(_("created at"), db_default=DatabaseNow())

    objects = AboveFloor.from_queryset(MessageQuerySet)()
    stored = PrimaryManager.from_queryset(MessageQuerySet)()

    class Meta:
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        default_permissions = ()
        # Django uses it for related objects and deletion, which must include hidden rows.
        base_manager_name = "stored"
        constraints = (
            models.UniqueConstraint(fields=["session", "seq"], name="chatmemory_message_seq"),
            UniqueIfSet(fields=["session", "client_id"], name="chatmemory_message_client_id"),
        )

    def __str__(self) -> str:
        return f"{self.seq} {self.role}"

    def plain(self) -> dict[str, object]:
        """Decode the plain message, marked `quarantined` if undecodable."""
        return codec.decode(self.role, self.text, self.body)
