"""Redact: one message's content, gone for good; its number and place stay."""

from __future__ import annotations

from chatmemory import codec
from chatmemory.errors import BadInput, Busy, UnknownTurn
from chatmemory.models import AuditEntry, Message, Session
from chatmemory.services.actors import Actor
from chatmemory.services.audit import check_reason, record
from chatmemory.services.faults import durably
from chatmemory.services.floor import LIVE, check_held
from chatmemory.services.locks import lock, unit
from chatmemory.services.news import tell
from chatmemory.services.pool import address_lane, in_pool


def redact_message(
    *,
    session_key: str,
    seq: int,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry | None:
    """Delete what a message says, for good; return None if that was done before.

    Its number, role, time, model and the ids and names of its tool calls stay; so does its
    client_id, under which a resend is a duplicate. A trimmed message can be redacted too.
    `session_pk` is as in `trim_session`. Raises BadInput (there is no such message), NotFound,
    Held, MemoryUnavailable.
    """
    check_reason(reason)

    def work() -> AuditEntry | None:
        with unit():
            session = lock(session_key, by, scope, session_pk)
            check_held(session)
            message = Message.stored.filter(session=session, seq=seq).first()
            if message is None:
                raise BadInput("There is no such message.", code="bad_number", field="seq")
            return None if message.redacted else _redact(session, message, by, reason)

    return durably(work, is_repeatable=True)


def redact_turn(
    *,
    session_key: str,
    turn: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    session_pk: int | None = None,
) -> AuditEntry | None:
    """Delete the text of an ended turn that no message holds; return None if there is none.

    `turn` is its client_id: see `read_unstored`. `session_pk` is as in `trim_session`. Raises
    UnknownTurn, Busy (it waits or runs), BadInput, NotFound, Held, MemoryUnavailable.
    """
    check_reason(reason)

    def work() -> AuditEntry | None:
        with unit():
            session = lock(session_key, by, scope, session_pk)
            check_held(session)
            found = session.turns.filter(client_id=turn).first()
            if found is None:
                raise UnknownTurn
            if found.status in LIVE:
                raise Busy(turn=turn)
            if not found.asked and not found.partial:
                return None
            session.turns.filter(pk=found.pk).update(asked="", partial="")
            return record(session, "redact", by, reason, turns=1)

    return durably(work, is_repeatable=True)


def _redact(session: Session, message: Message, by: Actor, reason: str) -> AuditEntry:
    """Needs the lock."""
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
    if message.turn is not None:  # an interrupted reply may repeat what was said
        ended = session.turns.filter(user_seq=message.turn, ended_at__isnull=False)
        ended.update(partial="")
    Session.objects.filter(pk=session.pk).update(revision=revision, rows_revision=revision)
    tell(session.pk)
    return record(
        session, "redact", by, reason, from_seq=message.seq, to_seq=message.seq, messages=1
    )


aredact_message = in_pool(redact_message, lane=address_lane)
aredact_turn = in_pool(redact_turn, lane=address_lane)
