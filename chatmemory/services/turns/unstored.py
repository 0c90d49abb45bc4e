"""Text that no message contains, of turns that a removal, import or repair ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from chatmemory.database.retries import retried
from chatmemory.models import AuditAction, AuditEntry, Session, Turn
from chatmemory.services.removal.restore import effective_removals

LEAVES_TEXT = (
    AuditAction.CLEAR,
    AuditAction.PURGE,
    AuditAction.RESTORE,
    AuditAction.IMPORT,
    AuditAction.REPAIR,
)
"""The actions that can leave text of turns which no message contains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unstored:
    """An ended turn that contains text of no message."""

    turn: Turn
    """`asked` is the user's message if the turn waited, `partial` the streamed text if it ran."""
    is_hidden: bool
    """A clear or purge hides it, or may have hidden it before the import."""


@retried(is_repeatable=True)
def read_unstored(*, session: Session) -> list[Unstored]:
    """Return the ended turns of a session that contain unstored text, in order of admission.

    Vacuum deletes a turn that ran together with its user row, and one that only waited `UNDO_DAYS`
    after it was cancelled. Raises MemoryUnavailable.
    """
    # Most sessions have no such entry, so that their turns need not be read.
    entries = AuditEntry.objects.filter(session_pk=session.pk, action__in=LEAVES_TEXT)
    times = dict(entries.order_by("pk").values_list("action", "created_at"))
    if not times:
        return []
    effective = [
        entry for entry in effective_removals(session.pk) if entry.action != AuditAction.TRIM
    ]
    turns = session.turns.filter(~Q(asked="") | ~Q(partial=""), ended_at__isnull=False)
    return [
        Unstored(
            turn=turn, is_hidden=_is_hidden(turn, session, effective, times.get(AuditAction.IMPORT))
        )
        for turn in turns.order_by("pk")
    ]


def _is_hidden(
    turn: Turn, session: Session, effective: list[AuditEntry], imported_at: datetime | None
) -> bool:
    if turn.user_seq is not None:
        return turn.user_seq < session.first_seq
    if imported_at is not None and turn.ended_at is not None and turn.ended_at < imported_at:
        # A removal in the source database ended it. Whether it was undone there is unknown.
        return True
    # A removal ends the turns before it writes its audit entry.
    return any(turn.ended_at <= entry.created_at for entry in effective if turn.ended_at)
