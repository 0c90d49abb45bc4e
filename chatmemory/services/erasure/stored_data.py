"""What is stored of a person, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, F, Max, Min, Q, Sum

from chatmemory.database.retries import retried
from chatmemory.models import Feedback, SessionQuerySet, Turn
from chatmemory.services.derived.removal import count_derived, count_person_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredData:
    """The numbers of some sessions, of which any state counts: archived, expired, purged."""

    sessions: int
    archived: int
    held: int
    purged: int
    """Number of purged sessions, which can be restored until a vacuum deletes them."""
    messages: int
    """Number of messages that a reader sees."""
    hidden_messages: int
    """Number of stored messages that a trim, a clear or a purge has hidden."""
    turns: int
    feedback: int
    derived: int
    """Number of rows of other apps that were made from the messages or follow the sessions, and of
    those about the person."""
    tokens: int
    first_created_at: datetime | None
    last_message_at: datetime | None


@retried(is_repeatable=True)
def count_stored_data(*, sessions: SessionQuerySet, scope: str | None = None) -> StoredData:
    """Count what is stored of these sessions, and with a scope of this person.

    Raises MemoryUnavailable.
    """
    found = sessions.order_by()
    visible = F("last_seq") - F("first_seq") + 1
    hidden = F("first_seq") - F("stored_from")
    numbers = found.aggregate(
        sessions=Count("pk"),
        archived=Count("pk", filter=Q(archived_at__isnull=False)),
        held=Count("pk", filter=Q(held_at__isnull=False)),
        purged=Count("pk", filter=Q(removed_at__isnull=False)),
        messages=Sum(visible, default=0),
        hidden_messages=Sum(hidden, default=0),
        tokens=Sum("tokens", default=0),
        first_created_at=Min("created_at"),
        last_message_at=Max("last_message_at"),
    )
    return StoredData(
        **numbers,
        turns=Turn.objects.filter(session__in=found.values("pk")).count(),
        feedback=Feedback.objects.filter(session__in=found.values("pk")).count(),
        derived=count_derived(found) + (count_person_rows(scope) if scope else 0),
    )
