"""Feedback and replies that contradict each other. See Note [Feedback]."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db.models import Exists, F, OuterRef

from chatmemory.models import (
    Feedback,
    FeedbackQuerySet,
    Message,
    MessageQuerySet,
    Session,
    Turn,
)

BATCH_TURNS = 500
"""Turns whose replies `repair_replies` corrects in three statements."""


def stray_feedback(session_pks: Collection[int]) -> FeedbackQuerySet:
    """Return the feedback on turns that are unknown or have no reply."""
    turn = Turn.objects.filter(
        session_id=OuterRef("session_id"),
        user_seq=OuterRef("user_seq"),
        client_id=OuterRef("turn"),
    )
    return _on_stored_turns(session_pks).exclude(Exists(turn), Exists(_last_replies()))


def unshown_feedback(session_pks: Collection[int]) -> FeedbackQuerySet:
    """Return the feedback that no reply of its turn shows."""
    shown = _last_replies().filter(feedback=OuterRef("value"))
    return _on_stored_turns(session_pks).filter(Exists(_last_replies())).exclude(Exists(shown))


def unfounded_replies(session_pks: Collection[int]) -> MessageQuerySet:
    """Return the messages that show feedback that is not stored."""
    given = Feedback.objects.filter(
        session_id=OuterRef("session_id"), user_seq=OuterRef("turn"), value=OuterRef("feedback")
    )
    shown = Message.stored.filter(session_id__in=session_pks, feedback__isnull=False)
    return shown.exclude(Exists(given)).in_order()


def repair_replies(session: Session, revision: int) -> None:
    """Let the replies show what is stored; changed rows get this revision. Needs the lock."""
    unfounded_replies([session.pk]).order_by().update(feedback=None, revision=revision)
    unshown = dict(unshown_feedback([session.pk]).values_list("user_seq", "value"))
    user_seqs = [*unshown]
    for start in range(0, len(user_seqs), BATCH_TURNS):
        replies = Message.stored.filter(
            session=session,
            turn__in=user_seqs[start : start + BATCH_TURNS],
            seq__gt=F("turn"),
            role=Message.Role.ASSISTANT,
        )
        # In order of seq, so that the last reply of each turn remains in the dict.
        last: dict[Any, int] = dict(replies.in_order().values_list("turn", "pk"))
        for value in Feedback.Value.values:
            pks = [pk for user_seq, pk in last.items() if unshown[user_seq] == value]
            rows = Message.stored.filter(session=session, pk__in=pks)
            rows.update(feedback=value, revision=revision)


def _on_stored_turns(session_pks: Collection[int]) -> FeedbackQuerySet:
    """Return the feedback on turns that a vacuum has not deleted."""
    given = Feedback.objects.filter(session_id__in=session_pks)
    return given.filter(user_seq__gte=F("session__stored_from")).order_by("session_id", "user_seq")


def _last_replies() -> MessageQuerySet:
    return Message.stored.filter(
        session_id=OuterRef("session_id"),
        seq__gt=OuterRef("user_seq"),
        turn=OuterRef("user_seq"),
        role=Message.Role.ASSISTANT,
    )
