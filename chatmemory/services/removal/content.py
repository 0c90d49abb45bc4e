"""Delete the content of messages, which keep their seqs."""

from __future__ import annotations

from collections.abc import Sequence

from chatmemory import codec
from chatmemory.models import Message, Session
from chatmemory.services.derived.removal import forget_words

_BATCH = 100
"""Rows of one statement."""


def delete_content(session: Session, messages: Sequence[Message]) -> None:
    """Replace the content of these messages by a mark, and delete the texts of their turns.

    Derived rows lose what was made from the rows between the first and the last of them, and from
    the texts of the turns. Needs the lock. The caller announces the change.
    """
    revision = session.revision + 1
    for message in messages:
        row = codec.redacted(message.role, message.text, message.body)
        message.text, message.body, message.tokens = row.text, row.body, row.tokens
        message.redacted, message.quarantined, message.revision = True, False, revision
    columns = ["text", "body", "tokens", "redacted", "quarantined", "revision"]
    stored = Message.stored.filter(session=session)
    stored.bulk_update(messages, columns, batch_size=_BATCH)
    low, high = min(message.seq for message in messages), max(message.seq for message in messages)
    starts = {message.turn for message in messages if message.turn is not None}
    if starts:  # the saved partial text of a turn may contain the same words
        partial = session.turns.filter(user_seq__in=starts, ended_at__isnull=False)
        if partial.exclude(partial="").update(partial=""):
            low = min(low, *starts)
        session.feedback.filter(user_seq__in=starts).exclude(reason="").update(reason="")
    Session.objects.filter(pk=session.pk).update(revision=revision, rows_revision=revision)
    session.revision = session.rows_revision = revision
    forget_words(session.pk, low, high)
