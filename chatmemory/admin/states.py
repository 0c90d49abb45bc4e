"""The state of a session, as one word."""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from chatmemory.models import Session


class State(TextChoices):
    """The states that the admin shows."""

    PURGED = "purged", _("purged")
    EXPIRED = "expired", _("expired")
    HELD = "held", _("on hold")
    ARCHIVED = "archived", _("archived")
    RUNNING = "running", _("replying")
    WAITING = "waiting", _("waiting")
    IDLE = "idle", _("idle")


def state_of(session: Session) -> State:
    """Return the first state that applies."""
    has_ended = session.ends_at is not None and session.ends_at <= timezone.now()
    is_kept = session.held_at or session.running or session.waiting
    holds = {
        State.PURGED: session.removed_at is not None,
        State.EXPIRED: has_ended and not is_kept,
        State.HELD: session.held_at is not None,
        State.ARCHIVED: session.archived_at is not None,
        State.RUNNING: session.running is not None,
        State.WAITING: session.waiting > 0,
        State.IDLE: True,
    }
    return next(state for state, is_so in holds.items() if is_so)
