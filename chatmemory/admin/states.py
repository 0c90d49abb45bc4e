"""The state of a session, as the admin shows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from django.db.models import OuterRef, Subquery, TextChoices
from django.utils.translation import gettext_lazy as _

from chatmemory.models import Session, Turn


class State(TextChoices):
    """The states of a session; `states_of` defines their precedence."""

    PURGED = "purged", _("purged")
    EXPIRED = "expired", _("expired")
    HELD = "held", _("on hold")
    ARCHIVED = "archived", _("archived")
    RUNNING = "running", _("replying")
    WAITING = "waiting", _("waiting")
    FAILED = "failed", _("failed")
    INTERRUPTED = "interrupted", _("interrupted")
    IDLE = "idle", _("idle")


def state_of(session: Session, last: Turn | None = None) -> State:
    """Return the first state of `states_of`."""
    return states_of(session, last)[0]


def states_of(session: Session, last: Turn | None = None) -> list[State]:
    """Return the lasting states that apply, and the first one of its replies.

    `last` is the session's last turn that ended.
    """
    has_ended = session.ends_at is not None and session.ends_at <= datetime.now(UTC)
    is_kept = session.held_at or session.running or session.waiting
    last_status = last.status if last else ""
    lasting = {
        State.PURGED: session.removed_at is not None,
        State.EXPIRED: has_ended and not is_kept,
        State.HELD: session.held_at is not None,
        State.ARCHIVED: session.archived_at is not None,
    }
    of_replies = {
        State.RUNNING: session.running is not None,
        State.WAITING: session.waiting > 0,
        State.FAILED: last_status == State.FAILED,
        State.INTERRUPTED: last_status == State.INTERRUPTED,
        State.IDLE: True,
    }
    present = [state for state, applies in lasting.items() if applies]
    return [*present, next(state for state, applies in of_replies.items() if applies)]


def last_turns(pks: Collection[int]) -> Mapping[int, tuple[Turn | None, Turn | None]]:
    """Return by session the last turn, if it has ended, and the running or first waiting one."""
    own = Turn.objects.filter(session_id=OuterRef("pk"))
    last = own.filter(user_seq__isnull=False).order_by("-user_seq").values("pk")[:1]
    sessions = Session.objects.filter(pk__in=pks).order_by().annotate(last=Subquery(last))
    columns = ("session_id", "status", "model", "started_at", "created_at", "ended_at", "user_seq")
    columns_of = Turn.objects.order_by().only(*columns)
    # A UNION: for one condition with OR, PostgreSQL reads all turns.
    read = columns_of.filter(pk__in=sessions.values("last")).union(
        columns_of.filter(session__in=pks, status__in=Turn.ACTIVE_STATUSES)
    )
    found: dict[int, tuple[Turn | None, Turn | None]] = {}
    for turn in sorted(read, key=lambda turn: (turn.status, -turn.pk)):
        ended, live = found.get(turn.session_id, (None, None))
        # By status, a running turn comes before a waiting one.
        if turn.status in Turn.ACTIVE_STATUSES:
            live = turn if live is None or live.status == turn.status else live
        else:
            ended = turn
        found[turn.session_id] = (ended, live)
    return found
