"""Notes of operators about a session, which users and models never see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.utils.translation import gettext as _

from chatmemory.access.actors import Actor
from chatmemory.access.addresses import Address, check_length
from chatmemory.codec import check_value
from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import retried
from chatmemory.errors import BadInput
from chatmemory.models import (
    MAX_NOTE_CHARS,
    MAX_NOTES,
    AuditAction,
    AuditEntry,
    Session,
    SessionNote,
)
from chatmemory.services.audit.entries import MAX_ACTOR_CHARS, check_reason, lock_unerased, record


@retried(is_repeatable=True)
def add_note(
    *,
    session_key: str,
    text: str,
    by: Actor,
    reason: str = "",
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry | None:
    """Add a note of 1 to 2,000 characters to a session, which can have 100 notes.

    Returns None if the newest note has the same text and actor. The audit entry does not contain
    the text. For host code and operators: raises TypeError for users and visitors. `session_pk`
    selects that session even if it is expired or purged. Raises BadInput, NotFound,
    MemoryUnavailable.
    """
    _check_actor(by)
    check_note(text)
    check_reason(reason)
    with locked_transaction():
        session = lock_unerased(Address(session_key, by, scope, session_pk))
        if not is_new_note(session, text, by):
            return None
        SessionNote.objects.create(
            session=session, text=text, actor_label=by.label[:200], **_author(by)
        )
        return record(session, AuditAction.NOTE, by, reason, chars=len(text))


@retried(is_repeatable=True)
def delete_note(
    *,
    session_key: str,
    note_pk: int,
    by: Actor,
    reason: str = "",
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry | None:
    """Delete a note of a session permanently; return None if the session does not have it.

    For host code and operators, as `add_note`. Raises BadInput, NotFound, MemoryUnavailable.
    """
    _check_actor(by)
    check_reason(reason)
    with locked_transaction():
        session = lock_unerased(Address(session_key, by, scope, session_pk))
        note = session.notes.filter(pk=note_pk).first()
        if note is None:
            return None
        note.delete()
        return record(session, AuditAction.DELETE_NOTE, by, reason, chars=len(note.text))


def check_note(text: str) -> None:
    """Raise BadInput if this text cannot be a note, and TypeError if it is not a text."""
    check_length("text", text, 1, MAX_NOTE_CHARS)
    check_value(text, "text")


def is_new_note(session: Session, text: str, by: Actor) -> bool:
    """Return whether `add_note` would add this note; False if the newest one is the same.

    Raises BadInput if the session has too many.
    """
    author = _author(by)
    newest = session.notes.order_by("-pk").first()
    if newest and (newest.text, newest.actor_kind, newest.actor_id) == (text, *author.values()):
        return False
    if session.notes.count() >= MAX_NOTES:
        message = _("A conversation can have %(max)s notes. Delete one first.") % {"max": MAX_NOTES}
        raise BadInput(message, code="too_many", field="text", limit=MAX_NOTES)
    return True


def import_notes(session: Session, notes: Iterable[Mapping[str, Any]]) -> None:
    """Add notes of another database, with their authors and times. Needs the session's lock."""
    SessionNote.objects.bulk_create([SessionNote(session=session, **note) for note in notes])


def _author(by: Actor) -> dict[str, str]:
    return {"actor_kind": by.kind, "actor_id": by.id[:MAX_ACTOR_CHARS]}


def _check_actor(by: Actor) -> None:
    if by.kind in ("user", "visitor"):
        raise TypeError(f"A {by.kind} cannot write notes; pass an operator or server actor.")
