"""Withdraw: hide messages that do not count, such as those of a run that was rolled back."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import F, Q, QuerySet

from chatmemory.conf import settings
from chatmemory.database.after_commit import announce_change
from chatmemory.errors import BadInput, Conflict, HistoryCleared
from chatmemory.models import DatabaseNow, Message, Session, WithdrawnRange
from chatmemory.services.derived.removal import hide_rows
from chatmemory.services.removal.content import delete_content
from chatmemory.services.removal.floor import check_held

MAX_EMPTIED = 100
"""Rows that lose their content in one transaction: each is written again, under the lock."""

# Note [Withdrawn ranges]
#
# A floor hides old rows, an edit hides rows that it replaces. Rows that were withdrawn are neither:
# they can be the newest ones, and nothing replaces them. Their numbers are used, since a seq is
# never given again, and rows are stored without gaps. So their range is stored, and readers omit
# the rows exactly as superseded ones; see Note [Superseded ranges].
# - `Session.superseded_to` covers the ends of these ranges too: other sessions need no query.
# - A withdrawal and its restore move `rows_revision`, so that a reader fetches the ranges again.
# - A restore deletes the range. It moves no floor, and undoes no other removal.
# - `UNDO_DAYS` later a vacuum deletes the content of the rows, as a redaction does, and the range
#   can no longer be restored. The empty rows and the range stay until the floor has passed them.


def withdraw_rows(session: Session, low: int, high: int) -> WithdrawnRange:
    """Omit the rows `low` to `high` from the window and the transcript. Needs the lock.

    The caller records it in the audit. Raises Held, HistoryCleared (below the floor), BadInput (no
    such rows), Conflict (all of them are withdrawn).
    """
    check_held(session)
    if low < session.first_seq:
        raise HistoryCleared
    if not low <= high <= session.last_seq:
        message = f"The session has no messages {low} to {high}."
        raise BadInput(message, code="bad_number", field="low")
    if session.withdrawn.filter(low__lte=low, high__gte=high).exists():
        raise Conflict("These messages were already withdrawn.")
    withdrawn = session.withdrawn.create(low=low, high=high)
    hide_rows(session.pk, low, high)
    session.superseded_to = max(session.superseded_to, high)
    _announce(session)
    return withdrawn


def restore_rows(session: Session, low: int, high: int) -> None:
    """Undo the withdrawal of exactly these rows. Needs the lock.

    The caller records it in the audit. Raises Conflict; see `why_not_restorable`.
    """
    if (refusal := why_not_restorable(session, low, high)) is not None:
        raise refusal
    session.withdrawn.filter(low=low, high=high).delete()
    _announce(session)


def why_not_restorable(session: Session, low: int, high: int) -> Conflict | None:
    """Return why the withdrawal of exactly these rows cannot be undone; None if it can."""
    found = session.withdrawn.filter(low=low, high=high).first()
    if found is None:
        return Conflict("These messages are not withdrawn.")
    if found.emptied_to is not None or low < session.stored_from:
        return Conflict("These messages were deleted permanently.")
    if low < session.first_seq:
        return Conflict("A later removal hides these messages. Undo it first.")
    return None


def empty_withdrawn(session: Session, stored_from: int, limit: int) -> int:
    """Delete the content of the next rows that can no longer be restored. Needs the lock.

    At most `limit` or `MAX_EMPTIED` rows of one range, from the lowest stored row on. Returns their
    number, with rows that were redacted before; 0 if none is left.
    """
    if session.superseded_to < stored_from:
        return 0
    found = session.withdrawn.filter(_is_due()).order_by("high").first()
    if found is None:
        return 0
    start = _first_due(found, stored_from)
    end = min(found.high, start + min(limit, MAX_EMPTIED) - 1)
    rows = Message.stored.filter(session=session, seq__range=(start, end), redacted=False)
    if messages := list(rows):
        delete_content(session, messages)
        announce_change(session.pk)
    session.withdrawn.filter(pk=found.pk).update(emptied_to=end)
    return end - start + 1


def count_due(session: Session, stored_from: int) -> int:
    """Count the rows that `empty_withdrawn` would empty now."""
    if session.superseded_to < stored_from:
        return 0
    found = session.withdrawn.filter(_is_due(), high__gte=stored_from)
    return sum(one.high - _first_due(one, stored_from) + 1 for one in found)


def _first_due(found: WithdrawnRange, stored_from: int) -> int:
    return max(found.low, stored_from, (found.emptied_to or 0) + 1)


def forget_withdrawn(session: Session, below: int) -> None:
    """Delete the ranges whose rows are all below a seq, since these are deleted. Needs the lock."""
    session.withdrawn.filter(high__lt=below).delete()


def due_ranges() -> QuerySet[WithdrawnRange]:
    """Select the ranges with content that can no longer be restored."""
    return WithdrawnRange.objects.filter(_is_due())


def _is_due() -> Q:
    """Match ranges that were withdrawn `UNDO_DAYS` ago, and have rows that were not emptied."""
    is_left = Q(emptied_to__isnull=True) | Q(emptied_to__lt=F("high"))
    return is_left & Q(withdrawn_at__lte=DatabaseNow() - timedelta(days=settings.UNDO_DAYS))


def _announce(session: Session) -> None:
    """Move the revisions of the session, so that readers fetch its ranges again."""
    session.revision += 1
    session.rows_revision = session.revision
    columns = ["revision", "rows_revision", "superseded_to"]
    session.save(update_fields=columns)
    announce_change(session.pk)
