"""Messages: rows that are inserted finished."""

from __future__ import annotations

from django.db import models
from django.db.models import F, OuterRef, Q, QuerySet, Subquery
from django.utils.translation import gettext_lazy as _

from chatmemory import codec
from chatmemory.models.fields import DatabaseNow, KeyField
from chatmemory.models.managers import PrimaryManager
from chatmemory.models.sessions import Session
from chatmemory.models.values import STORED_COLUMNS, StoredMessage, stored_of


class MessageQuerySet(QuerySet["Message"]):
    """What can be asked of messages."""

    def in_order(self) -> MessageQuerySet:
        """The order in which they were said."""
        return self.order_by("session_id", "seq")

    def changed_since(self, revision: int, seq: int, *, limit: int) -> list[StoredMessage]:
        """The next rows that changed after this revision, or in it above this number.

        In order of revision and seq, of the one session selected. Nothing has an index for it:
        ask where the session's `rows_revision` says that there are some.
        """
        user_row = Message.stored.filter(session_id=OuterRef("session_id"), seq=OuterRef("turn"))
        found = (
            self.filter(Q(revision__gt=revision) | Q(revision=revision, seq__gt=seq))
            .annotate(turn_client_id=Subquery(user_row.values("client_id")))
            .order_by("revision", "seq")
            .values(*STORED_COLUMNS, "turn_client_id")[:limit]
        )
        return [stored_of(row) for row in found]


class AboveFloor(PrimaryManager["Message"]):
    """Messages that were not trimmed or cleared."""

    def get_queryset(self) -> QuerySet[Message]:
        return super().get_queryset().filter(seq__gte=F("session__first_seq"))


class Message(models.Model):
    """One message of a session. Its number is never changed and never given twice."""

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
    body = models.TextField(null=True)  # noqa: DJ001  # null is "just role and text"
    client_id = KeyField(max_length=64, null=True)  # unique where it is given
    batch = models.IntegerField(null=True)
    turn = models.BigIntegerField(null=True)
    step = models.IntegerField(null=True)
    status = models.CharField(_("status"), max_length=12, choices=Status.choices)
    error = models.CharField(_("error"), max_length=32)
    model = models.CharField(_("model"), max_length=100)
    tokens = models.IntegerField(_("tokens"))
    revision = models.BigIntegerField(db_default=0)
    redacted = models.BooleanField(_("redacted"), db_default=False)
    quarantined = models.BooleanField(_("quarantined"), db_default=False)
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow())

    objects = AboveFloor.from_queryset(MessageQuerySet)()
    stored = PrimaryManager.from_queryset(MessageQuerySet)()

    class Meta:
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        base_manager_name = "stored"
        constraints = (
            models.UniqueConstraint(fields=["session", "seq"], name="chatmemory_message_seq"),
            models.UniqueConstraint(
                fields=["session", "client_id"], name="chatmemory_message_client_id"
            ),
        )

    def __str__(self) -> str:
        return f"{self.seq} {self.role}"

    def plain(self) -> dict[str, object]:
        """The message as it was handed in; a placeholder if it can't be decoded."""
        return codec.decode(self.role, self.text, self.body)
