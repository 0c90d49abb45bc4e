"""Redact: delete the content of one message or ended turn; a message keeps its seq."""

from __future__ import annotations

from django.db.models import F

from chatmemory.access.actors import Actor
from chatmemory.access.addresses import Address, check_session_key
from chatmemory.database.after_commit import announce_change
from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import retried
from chatmemory.errors import BadInput, Busy, NotFound, UnknownTurn
from chatmemory.models import AuditAction, AuditEntry, Message, Session, Turn
from chatmemory.services.audit.entries import check_reason, lock_unerased, record
from chatmemory.services.derived.removal import forget_text
from chatmemory.services.removal.content import delete_content
from chatmemory.services.removal.floor import check_held, end_turn


@retried(is_repeatable=True)
def redact_message(
    *,
    session_key: str,
    seq: int,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry | None:
    """Delete the content of a message permanently; None if it was redacted before.

    Its seq, role, time, model, client_id, and the ids and names of its tool calls stay. A resend
    under its client_id is a duplicate. The feedback on its turn loses its reason. A trimmed message
    can be redacted too. With `session_pk`, an expired or purged session is found too, and another
    one under the same key is NotFound.
    Raises BadInput (no such message), NotFound, Held, MemoryUnavailable.
    """
    check_reason(reason)
    with locked_transaction():
        session = _lock(Address(session_key, by, scope, session_pk))
        message = Message.stored.filter(session=session, seq=seq).first()
        if message is None:
            raise BadInput("No message has this seq.", code="bad_number", field="seq")
        return None if message.redacted else _redact_row(session, message, by, reason)


@retried(is_repeatable=True)
def redact_turn(
    *,
    session_key: str,
    turn: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry | None:
    """Delete the text of a turn that no message contains; return None without such a text.

    This includes the reason of the feedback on it. A waiting turn is cancelled. `turn` is the
    turn's client_id, as in `read_unstored`. `session_pk` works as in `redact_message`.
    Raises UnknownTurn, Busy (the turn runs), BadInput, NotFound, Held, MemoryUnavailable.
    """
    check_reason(reason)
    with locked_transaction():
        session = _lock(Address(session_key, by, scope, session_pk))
        found = session.turns.filter(client_id=turn).first()
        if found is None:
            raise UnknownTurn
        if found.status == Turn.Status.RUNNING or turn == session.running:
            raise Busy(turn=turn)
        if found.status == Turn.Status.WAITING:
            _cancel_turn(session, found)
            forget_text(session.pk, None)
            return record(session, AuditAction.REDACT, by, reason, turns=1)
        has_reason = found.user_seq is not None and _delete_reason(session, found.user_seq)
        if not has_reason and not found.asked and not found.partial:
            return None
        if found.asked or found.partial:  # no row is made from the reason of feedback
            session.turns.filter(pk=found.pk).update(asked="", partial="")
            forget_text(session.pk, found.user_seq)
        return record(session, AuditAction.REDACT, by, reason, turns=1)


def _lock(address: Address) -> Session:
    """Lock a session that is not on hold; with `session_pk`, even an expired or purged one.

    Needs a transaction. Raises NotFound, Held, BadInput.
    """
    check_session_key(address.session_key)
    session = lock_unerased(address)
    if session.key != address.session_key:
        raise NotFound
    check_held(session)
    return session


def _cancel_turn(session: Session, turn: Turn) -> None:
    """Cancel a waiting turn, which deletes its text. Needs the lock."""
    Session.objects.filter(pk=session.pk).update(
        waiting=F("waiting") - 1, revision=F("revision") + 1
    )
    announce_change(session.pk)
    end_turn(session, turn, Turn.Status.CANCELLED)


def _redact_row(session: Session, message: Message, by: Actor, reason: str) -> AuditEntry:
    """Replace the row's content by a mark. Needs the lock."""
    delete_content(session, [message])
    announce_change(session.pk)
    return record(
        session,
        AuditAction.REDACT,
        by,
        reason,
        from_seq=message.seq,
        to_seq=message.seq,
        messages=1,
    )


def _delete_reason(session: Session, user_seq: int) -> bool:
    """Delete the reason of the feedback on a turn; return whether it had one. Needs the lock."""
    given = session.feedback.filter(user_seq=user_seq).exclude(reason="")
    return given.update(reason="") > 0
