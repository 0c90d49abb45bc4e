"""Feedback: a person rates the reply of an ended turn. See Note [Feedback]."""

from __future__ import annotations

from django.db.models import Subquery
from django.db.models.functions import Coalesce

from chatmemory import codec
from chatmemory.access.actors import Actor, check_own_name
from chatmemory.access.addresses import Address, address_lane
from chatmemory.database.after_commit import announce_change
from chatmemory.database.locks import locked_transaction
from chatmemory.database.pool import in_pool
from chatmemory.database.retries import retried
from chatmemory.errors import BadInput, Busy, Held, UnknownTurn
from chatmemory.models import (
    MAX_FEEDBACK_CHARS,
    DatabaseNow,
    Feedback,
    Message,
    MessageQuerySet,
    Session,
    Turn,
)


@retried(is_repeatable=True)
def set_feedback(
    *,
    session_key: str,
    turn: str,
    value: int | None,
    by: Actor,
    reason: str = "",
    scope: str | None = None,
) -> None:
    """Store a person's feedback on the reply of an ended turn, or withdraw it.

    `turn` is the client_id. `value` is 1 (good), -1 (bad), or None to withdraw the feedback with
    its reason. A `reason` of up to 1,000 characters replaces the earlier one; repeating the same
    changes nothing. Archived sessions and superseded turns accept feedback too.
    For users, visitors, and server code that acts for the person: raises TypeError for others.
    Raises BadInput, NotFound, MemoryUnavailable, UnknownTurn (also without a visible reply), Busy
    (the turn waits or runs), and Held (a hold keeps feedback that was given).
    """
    _check_call(turn, value, by, reason)
    with locked_transaction():
        session = Address(session_key, by, scope).lock()
        user_seq = _ended_turn(session, turn)
        reply = replies_of(session, user_seq).values("pk", "feedback").last()
        if reply is None:
            raise UnknownTurn("This turn has no reply.")
        _store_feedback(session, turn, user_seq, value, reason)
        if reply["feedback"] != value:
            _show_on_reply(session, reply["pk"], value)


def _check_call(turn: str, value: int | None, by: Actor, reason: str) -> None:
    if by.kind in ("operator", "command"):
        raise TypeError(f"A {by.kind} cannot give feedback for a person.")
    check_own_name(by)
    codec.check_client_id(turn, field="turn")
    if value is not None and (type(value) is not int or value not in Feedback.Value.values):
        raise BadInput("value must be 1, -1 or null.", field="value")
    if reason:
        codec.check_text(reason, field="reason", max_chars=MAX_FEEDBACK_CHARS)
        if value is None:
            raise BadInput("A reason needs a value.", field="reason")


def _ended_turn(session: Session, client_id: str) -> int:
    """Return the seq of the user row of an ended, visible turn. Needs the lock."""
    turn = session.turns.filter(client_id=client_id).first()
    if turn is not None and turn.status in Turn.ACTIVE_STATUSES:
        raise Busy("This turn has not ended. Retry after it ends.", turn=client_id)
    if turn is None or turn.user_seq is None or turn.user_seq < session.first_seq:
        raise UnknownTurn
    return turn.user_seq


def replies_of(session: Session, user_seq: int) -> MessageQuerySet:
    """Return the assistant's rows of a turn, in order. Needs the lock."""
    later = Message.stored.filter(session=session, seq__gt=user_seq)
    # The rows of a turn are consecutive, so the rest of a long session is not read.
    following = later.exclude(turn=user_seq).order_by("seq").values("seq")[:1]
    own = later.filter(seq__lt=Coalesce(Subquery(following), session.last_seq + 1))
    return own.filter(role=Message.Role.ASSISTANT).order_by("seq")


def _store_feedback(
    session: Session, turn: str, user_seq: int, value: int | None, reason: str
) -> None:
    """Insert, change or delete the row of the feedback. Needs the lock."""
    given = session.feedback.filter(user_seq=user_seq)
    before = given.values_list("value", "reason").first()
    if (value, reason) == (before or (None, "")):
        return
    if before is not None and session.held_at is not None:
        raise Held("The session is on hold, so its feedback cannot be changed or withdrawn.")
    if value is None:
        given.delete()
    elif before is None:
        Feedback.objects.create(
            session=session, turn=turn, user_seq=user_seq, value=value, reason=reason
        )
    else:
        given.update(value=value, reason=reason, changed_at=DatabaseNow())


def _show_on_reply(session: Session, reply_pk: int, value: int | None) -> None:
    """Copy the value to the reply, as a changed row that sockets get. Needs the lock."""
    revision = session.revision + 1
    reply = Message.stored.filter(session=session, pk=reply_pk)
    reply.update(feedback=value, revision=revision)
    Session.objects.filter(pk=session.pk).update(revision=revision, rows_revision=revision)
    announce_change(session.pk)


aset_feedback = in_pool(set_feedback, lane=address_lane)
