"""The state of a session, as the admin shows it."""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from chatmemory.models import Session


class State(TextChoices):
    """The states of a session; `state_of` defines their precedence."""

    PURGED = "purged", _("purged")
    EXPIRED = "expired", _("expired")
    HELD = "held", _("on hold")
    ARCHIVED = "archived", _("archived")
    RUNNING = "running", _("replying")
    WAITING = "waiting", _("waiting")
    FAILED = "failed", _("failed")
    INTERRUPTED = "interrupted", _("interrupted")
    IDLE = "idle", _("idle")


def state_of(session: Session, last_status: str = "") -> State:
    """Return the first state that applies; `last_status` is that of its last turn."""
    has_ended = session.ends_at is not None and session.ends_at <= timezone.now()
    is_kept = session.held_at or session.running or session.waiting
    conditions = {
        State.PURGED: session.removed_at is not None,
        State.EXPIRED: has_ended and not is_kept,
        State.HELD: session.held_at is not None,
        State.ARCHIVED: session.archived_at is not None,
        State.RUNNING: session.running is not None,
        State.WAITING: session.waiting > 0,
        State.FAILED: last_status == State.FAILED,
        State.INTERRUPTED: last_status == State.INTERRUPTED,
        State.IDLE: True,
    }
    return next(state for state, applies in conditions.items() if applies)
