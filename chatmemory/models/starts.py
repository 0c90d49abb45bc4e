"""The beginning of a session, which names it where it has no title."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import OuterRef, Subquery
from django.db.models.functions import Left

from chatmemory.models.messages import Message
from chatmemory.models.sessions import Session
from chatmemory.models.superseded import is_current

MAX_START_CHARS = 200


def start_of(session: Any, first_seq: Any) -> Subquery:
    """Return the beginning of the oldest user message from a seq on that is not superseded.

    Up to MAX_START_CHARS; NULL without a user message. The parameters are expressions.
    """
    is_shown = is_current(OuterRef("session"), OuterRef("seq"), OuterRef("seq"))
    rows = Message.stored.filter(
        is_shown, session=session, seq__gte=first_seq, role=Message.Role.USER
    )
    return Subquery(rows.in_order().values(start=Left("text", MAX_START_CHARS))[:1])


def starts_of(session_pks: Iterable[int]) -> dict[int, str]:
    """Return the beginning of each session that has a user message, in at most one statement."""
    pks = list(session_pks)
    if not pks:
        return {}
    sessions = Session.objects.filter(pk__in=pks)
    found = sessions.annotate(start=start_of(OuterRef("pk"), OuterRef("first_seq")))
    return dict(found.filter(start__isnull=False).values_list("pk", "start"))
