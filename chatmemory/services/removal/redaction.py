"""Redact: delete the content of one message or ended turn; a message keeps its seq."""

from __future__ import annotations

from django.db.models import F

from chatmemory import codec
from chatmemory.access.actors import Actor
from chatmemory.access.addresses import address_lane, check_session_key
from chatmemory.database.after_commit import announce_change
from chatmemory.database.locks import locked_transaction
from chatmemory.database.pool import in_pool
from chatmemory.database.retries import retried
from chatmemory.errors import BadInput, Busy, NotFound, UnknownTurn
from chatmemory.models import AuditAction, AuditEntry, Message, Session, Turn
from chatmemory.services.audit.entries import check_reason, lock_unerased, record
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
        session = _lock(session_key, by, scope, session_pk)
        message = Message.stored.filter(session=session, seq=seq).first()
        if message is None:
            raise BadInput("No message has this seq.", code="bad_number", field="seq")
        return None if message.redacted else _redact(session, message, by, reason)


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
    """Delete the text of a turn that no message contains; None if there is none.

    This includes the reason of the feedback on it. A waiting turn is cancelled. `turn` is the
    turn's client_id, as in `read_unstored`. `session_pk` works as in `redact_message`.
    Raises UnknownTurn, Busy (the turn runs), BadInput, NotFound, Held, MemoryUnavailable.
    """
    check_reason(reason)
    with locked_transaction():
        session = _lock(session_key, by, scope, session_pk)
        found = session.turns.filter(client_id=turn).first()
        if found is None:
            raise UnknownTurn
        if found.status == Turn.Status.RUNNING or turn == session.running:
            raise Busy(turn=turn)
        if found.status == Turn.Status.WAITING:
            _cancel(session, found)
            return record(session, AuditAction.REDACT, by, reason, turns=1)
        has_reason = found.user_seq is not None and _delete_reason(session, found.user_seq)
        if not has_reason and not found.asked and not found.partial:
            return None
        session.turns.filter(pk=found.pk).update(asked="", partial="")
        return record(session, AuditAction.REDACT, by, reason, turns=1)


def _lock(session_key: str, by: Actor, scope: str | None, session_pk: int | None) -> Session:
    """Lock a session that is not on hold; with `session_pk`, even an expired or purged one.

    Needs a transaction. Raises NotFound, Held, BadInput.
    """
    check_session_key(session_key)
    session = lock_unerased(session_key, by, scope, session_pk)
    if session.key != session_key:
        raise NotFound
    check_held(session)
    return session


def _cancel(session: Session, turn: Turn) -> None:
    """Cancel a waiting turn, which deletes its text. Needs the lock."""
    Session.objects.filter(pk=session.pk).update(
        waiting=F("waiting") - 1, revision=F("revision") + 1
    )
    announce_change(session.pk)
    end_turn(session, turn, Turn.Status.CANCELLED)


def _redact(session: Session, message: Message, by: Actor, reason: str) -> AuditEntry:
    """Replace the row's content by a mark. Needs the lock."""
    row = codec.redacted(message.role, message.text, message.body)
    revision = session.revision + 1
    Message.stored.filter(pk=message.pk).update(
        text=row.text,
        body=row.body,
        tokens=row.tokens,
        redacted=True,
        quarantined=False,
        revision=revision,
    )
    if message.turn is not None:  # the saved partial text of its turn may contain the same words
        ended = session.turns.filter(user_seq=message.turn, ended_at__isnull=False)
        ended.update(partial="")
        _delete_reason(session, message.turn)
    Session.objects.filter(pk=session.pk).update(revision=revision, rows_revision=revision)
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


aredact_message = in_pool(redact_message, lane=address_lane)
aredact_turn = in_pool(redact_turn, lane=address_lane)
