"""Titles that the function of the setting TITLE returns: when one is due, and how it is stored."""

from __future__ import annotations

from dataclasses import dataclass

from chatmemory import codec
from chatmemory.database.after_commit import announce_change
from chatmemory.database.locks import lock_one, locked_transaction
from chatmemory.database.pool import Lane, in_pool
from chatmemory.database.reads import read_session_with_owner
from chatmemory.database.retries import retried
from chatmemory.errors import NotFound
from chatmemory.models import Message, Session
from chatmemory.services.session_fields import MAX_TITLE_CHARS
from chatmemory.services.turns.claims import Claim
from chatmemory.window import read_window

TITLE_TURNS = 3
"""Only the end of one of the first turns of a session can give it a title, so that a function that
fails or returns nothing is not called for each turn."""

MAX_READ_CHARS = 10 * MAX_TITLE_CHARS
"""How much of a returned title is read: spaces and invisible characters are then removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Untitled:
    """A session that may get a title, and its messages."""

    session: Session
    messages: list[dict[str, object]]
    """The window, as plain messages."""


@retried(is_repeatable=True)
def read_untitled(*, claim: Claim) -> Untitled | None:
    """Read the session of a turn that has ended; None if the turn may not give it a title.

    Raises MemoryUnavailable.
    """
    session = read_session_with_owner(claim.session_pk)
    if session is None or session.epoch != claim.epoch or not _may_get_title(session):
        return None
    starts = Message.objects.filter(session=session).turn_starts().order_by("seq")
    if claim.user_seq not in starts.values_list("seq", flat=True)[:TITLE_TURNS]:
        return None
    messages = read_window(session).messages
    # Without a text of both there is nothing to name: an empty reply is not in the window.
    if not {"user", "assistant"} <= {message["role"] for message in messages}:
        return None
    return Untitled(session=session, messages=messages)


@retried(is_repeatable=True)
def store_title(*, session: Session, title: str) -> bool:
    """Store a title for the session as it was read; return whether it is stored.

    Does nothing if the session got a title, a hold or a new epoch since then, or if messages that
    the title may name were redacted, trimmed or superseded. Raises MemoryUnavailable.
    """
    line = one_line(title)
    if not line:
        return False
    with locked_transaction():
        try:
            now = lock_one(Session.objects.active().filter(pk=session.pk, epoch=session.epoch))
        except NotFound:
            return False
        if _shown(now) != _shown(session) or not _may_get_title(now):
            return False
        now.title = line
        now.revision += 1
        now.save(update_fields=["title", "revision"])
        announce_change(now.pk)
        return True


def _shown(session: Session) -> tuple[int, int, int]:
    """Return the columns that a trim, an edit or a withdrawal changes."""
    return session.first_seq, session.superseded_to, session.rows_revision


def _may_get_title(session: Session) -> bool:
    if session.title or session.held_at is not None:
        return False
    # A title may contain what was redacted after it was read.
    return not Message.objects.filter(session=session, redacted=True).exists()


def one_line(title: str) -> str:
    """Return a title as one line of visible characters; empty if it has none."""
    line = codec.label(" ".join(title[:MAX_READ_CHARS].split()), MAX_TITLE_CHARS).strip()
    return "" if codec.is_blank(line) else line


def _lane_of_session(*, session: Session, **_: object) -> Lane:
    return (session.scope, session.key)


aread_untitled = in_pool(read_untitled)
astore_title = in_pool(store_title, lane=_lane_of_session)
