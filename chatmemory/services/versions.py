"""Versions of what a user said: an edit or a new try is a turn that supersedes the one before.

Its range goes from the old user's row to the end. Nothing is rewritten; what is superseded stays
and can be read, but the model is not given it.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import F, Q

from chatmemory.errors import BadInput, Conflict, HistoryCleared, NotFound
from chatmemory.models import Message, MessageQuerySet, Session, Turn
from chatmemory.services.actors import Actor
from chatmemory.services.faults import durably
from chatmemory.services.pool import in_pool
from chatmemory.services.sessions import get_session

REACH = 200
"""How many rows a turn can supersede."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of what a user said."""

    turn: str | None
    """The client_id of its turn; None where there is none."""
    seq: int
    """The number of the user's message."""
    to_seq: int
    """The last number of what was said from there on, before it was superseded."""
    is_current: bool
    """It stands, and the model is given it."""


def list_versions(
    *, session_key: str, seq: int, by: Actor, scope: str | None = None
) -> list[Version]:
    """All versions of a user's message above the floor, `seq` being any of them, the oldest first.

    One that was never superseded is its only version. Raises NotFound, for a row that begins no
    turn too.
    """

    def work() -> list[Version]:
        session = get_session(session_key=session_key, by=by, scope=scope)
        turns = list(session.turns.superseding(session.first_seq).order_by("user_seq"))
        former = {turn.user_seq: turn.replaces_from for turn in turns}
        cut_at = {turn.replaces_from: turn for turn in turns}
        first = seq
        while (older := former.get(first) or 0) >= session.first_seq:
            first = older
        seqs = [first]
        while (newer := cut_at.get(seqs[-1])) is not None:
            seqs.append(newer.user_seq or 0)
        begun = _beginnings(session).filter(seq__in=seqs)
        names = dict(begun.values_list("seq", "client_id"))
        if seq not in names:
            raise NotFound("There is no such message.")
        return [_version(session, turns, at, names.get(at)) for at in seqs]

    return durably(work, is_repeatable=True)


def _version(session: Session, turns: list[Turn], seq: int, name: str | None) -> Version:
    over = (turn.replaces_to or 0 for turn in turns if _has(turn, seq))
    to_seq = next(over, None)  # of those that supersede it the oldest ended it
    return Version(
        turn=name,
        seq=seq,
        to_seq=session.last_seq if to_seq is None else to_seq,
        is_current=to_seq is None,
    )


def _has(turn: Turn, seq: int) -> bool:
    return (turn.replaces_from or 0) <= seq <= (turn.replaces_to or 0)


def _beginnings(session: Session) -> MessageQuerySet:
    """Users' rows above the floor that begin a turn."""
    begins = Q(turn__isnull=True) | Q(turn=F("seq"))
    rows = Message.stored.filter(session=session, seq__gte=session.first_seq)
    return rows.filter(begins, role=Message.Role.USER)


def check_newest(session: Session, seq: int) -> None:
    """See that this is the newest row of a user, 0 for none. Needs the lock. Raises Conflict."""
    rows = Message.stored.filter(
        session=session,
        role=Message.Role.USER,
        # No later row than this has to be looked at to see whether it is the newest.
        seq__gte=max(session.first_seq, min(seq, session.last_seq)),
    )
    if (rows.order_by("-seq").values_list("seq", flat=True).first() or 0) != seq:
        raise Conflict("Something newer was said.")


def check_replaceable(session: Session, seq: int, newest: int) -> None:
    """See that a turn may supersede what was said from this number on. Needs the lock.

    `newest` is the newest row of a user that the sender knew.
    Raises HistoryCleared, Conflict, BadInput.
    """
    if seq < session.first_seq:
        raise HistoryCleared
    check_newest(session, newest)
    if session.last_seq - seq >= REACH:
        message = f"That is more than {REACH} messages back."
        raise BadInput(message, field="replaces", limit=REACH)
    if not _beginnings(session).filter(seq=seq).exists():
        raise BadInput("replaces must be the number of a user's message.", field="replaces")
    if seq <= session.superseded_to and session.turns.superseding(seq, seq).exists():
        raise Conflict("This message was replaced already.")


def supersede(session_pk: int, turn_pk: int, from_seq: int, to_seq: int) -> None:
    """Note on turn and session what the turn supersedes. Needs the lock."""
    Turn.objects.filter(pk=turn_pk).update(replaces_from=from_seq, replaces_to=to_seq)
    Session.objects.filter(pk=session_pk).update(superseded_to=to_seq)


alist_versions = in_pool(list_versions)
