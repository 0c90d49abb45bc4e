"""Feedback: what a person thinks of the reply of a turn."""

from __future__ import annotations

from django.db import models
from django.db.models import Count, Q, QuerySet
from django.utils.translation import gettext_lazy as _

from chatmemory.models.fields import DatabaseNow, KeyField, MomentField
from chatmemory.models.managers import PrimaryManager
from chatmemory.models.sessions import Session

MAX_FEEDBACK_CHARS = 1_000

# Note [Feedback]
#
# A session belongs to one person, so its turns have at most one feedback each, and the row names no
# person: whatever happens to the session (erasure, another owner) happens to its feedback.
# - `Message.feedback` is a copy of the value, on the last reply of the turn, with a new revision of
#   that row. So every read of messages shows it without a further statement, and sockets get it
#   like any changed row. `set_feedback` writes both under the session's lock.
# - The row outlives its turn: a vacuum of the turn only deletes the reason, so a trim or a clear
#   does not change how many replies were good. The vacuum of the session deletes it.
# - `user_seq` identifies the turn, as a seq is never reused. A `client_id` can be, after a vacuum.


class FeedbackQuerySet(QuerySet["Feedback"]):
    """Queries of feedback."""

    def counts(self) -> dict[int, int]:
        """Return how often each value was given; without those that were not."""
        rows = self.order_by().values_list("value").annotate(Count("pk"))
        return dict(rows)


class Feedback(models.Model):
    """The feedback on one turn. See Note [Feedback]."""

    class Value(models.IntegerChoices):
        GOOD = 1, _("good")
        BAD = -1, _("bad")

    session = models.ForeignKey(
        Session, on_delete=models.CASCADE, related_name="feedback", db_index=False
    )
    turn = KeyField(max_length=64)
    """The client_id of the turn."""
    user_seq = models.BigIntegerField()
    """The seq of the turn's user row."""
    value = models.SmallIntegerField(choices=Value.choices)
    reason = models.CharField(max_length=MAX_FEEDBACK_CHARS, db_default="")
    created_at = MomentField(db_default=DatabaseNow())
    changed_at = MomentField(db_default=DatabaseNow())

    objects = PrimaryManager.from_queryset(FeedbackQuerySet)()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("feedback")
        verbose_name_plural = _("feedback")
        default_permissions = ()
        indexes = (models.Index(fields=["value", "changed_at"], name="chatmemory_feedback_recent"),)
        constraints = (
            models.UniqueConstraint(
                fields=["session", "user_seq"], name="chatmemory_feedback_turn"
            ),
            models.CheckConstraint(
                condition=Q(value__in=[-1, 1]), name="chatmemory_feedback_value"
            ),
        )

    def __str__(self) -> str:
        return f"{self.turn}: {self.value:+}"
