"""Text that no message holds: what waited or was streamed when a removal ended its turn."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Q

from chatmemory.models import AuditEntry, Session, Turn
from chatmemory.services.faults import durably
from chatmemory.services.pool import in_pool
from chatmemory.services.restoring import standing_removals


@dataclass(frozen=True, slots=True, kw_only=True)
class Unstored:
    """An ended turn with text that is in no message."""

    turn: Turn
    """`asked` is the user's message if it waited, `partial` the streamed text if it ran."""
    is_hidden: bool
    """A clear or purge that was not undone hides it."""


def read_unstored(*, session: Session) -> list[Unstored]:
    """Return the ended turns of a session that hold unstored text, in order of their admission.

    Vacuum deletes a turn that ran with its user's message, and one that waited `UNDO_DAYS` after it
    was cancelled. Raises MemoryUnavailable.
    """

    def work() -> list[Unstored]:
        # Most sessions have no such act: that spares a scan of all their turns.
        acts = AuditEntry.objects.filter(session_pk=session.pk)
        if not acts.filter(action__in=("clear", "purge", "restore")).exists():
            return []
        standing = [entry for entry in standing_removals(session.pk) if entry.action != "trim"]
        turns = session.turns.filter(~Q(asked="") | ~Q(partial=""), ended_at__isnull=False)
        return [
            Unstored(turn=turn, is_hidden=_is_hidden(turn, session, standing))
            for turn in turns.order_by("pk")
        ]

    return durably(work, is_repeatable=True)


def _is_hidden(turn: Turn, session: Session, standing: list[AuditEntry]) -> bool:
    if turn.user_seq is not None:
        return turn.user_seq < session.first_seq
    # A removal ends the turns before it writes its entry.
    return any(turn.ended_at <= entry.created_at for entry in standing if turn.ended_at)


aread_unstored = in_pool(read_unstored)
