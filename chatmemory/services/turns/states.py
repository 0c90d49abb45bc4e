"""Read the turns of a session: the live ones, or one of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import OuterRef, Subquery

from chatmemory import codec
from chatmemory.access.actors import Actor
from chatmemory.database.pool import in_pool
from chatmemory.database.retries import retried
from chatmemory.errors import UnknownTurn
from chatmemory.models import Message, Session, Turn
from chatmemory.services.sessions import get_session


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTurn:
    """A running or waiting turn."""

    turn: str
    """Its client_id."""
    status: str
    text: str
    """The text of the user's message."""
    since: datetime
    """When its run started, or when it was admitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnState:
    """A turn, whether it has ended or not."""

    turn: str
    """Its client_id."""
    status: str
    seqs: tuple[int, int] | None
    """The first and the last seq of its stored rows; None without a row or if they are hidden."""
    error: str
    model: str
    usage: object
    """As the model reports it; None if unknown."""


def list_turns(*, session_key: str, by: Actor, scope: str | None = None) -> list[LiveTurn]:
    """Return the running turn, then the waiting turns in the order in which they start.

    Raises BadInput, NotFound, MemoryUnavailable.
    """
    return live_turns(get_session(session_key=session_key, by=by, scope=scope))


@retried(is_repeatable=True)
def live_turns(session: Session) -> list[LiveTurn]:
    row = Message.stored.filter(session=OuterRef("session_id"), seq=OuterRef("user_seq"))
    found = (
        session.turns.undeferred()
        .filter(status__in=Turn.ACTIVE_STATUSES)
        .order_by("position", "pk")
    )
    turns: list[Any] = list(found.annotate(row_text=Subquery(row.values("text"))))
    # A requeued turn waits, but it is the session's running one and starts first.
    turns.sort(key=lambda turn: turn.status != "running" and turn.client_id != session.running)
    return [
        LiveTurn(
            turn=turn.client_id,
            status=turn.status,
            text=turn.asked_text if turn.user_seq is None else turn.row_text or "",
            since=turn.started_at or turn.created_at,
        )
        for turn in turns
    ]


def get_turn(*, session_key: str, turn: str, by: Actor, scope: str | None = None) -> TurnState:
    """Return the state of a turn; `turn` is the client_id.

    Raises BadInput, NotFound, UnknownTurn, MemoryUnavailable.
    """
    codec.check_client_id(turn, field="turn")
    return _turn_state(get_session(session_key=session_key, by=by, scope=scope), turn)


@retried(is_repeatable=True)
def _turn_state(session: Session, client_id: str) -> TurnState:
    # The rows of a turn are consecutive, so the next row of another turn follows its last one.
    others = Message.stored.filter(session=OuterRef("session_id"), seq__gt=OuterRef("user_seq"))
    following = others.exclude(turn=OuterRef("user_seq")).order_by("seq").values("seq")[:1]
    turns = (
        session.turns.undeferred()
        .filter(client_id=client_id)
        .annotate(following=Subquery(following))
    )
    turn: Any = turns.first()
    if turn is None:
        raise UnknownTurn
    seqs = None
    if turn.user_seq is not None and turn.user_seq >= session.first_seq:
        last_seq = session.last_seq if turn.following is None else turn.following - 1
        seqs = (turn.user_seq, max(turn.user_seq, last_seq))
    return TurnState(
        turn=turn.client_id,
        status=turn.status,
        seqs=seqs,
        error=turn.error,
        model=turn.model,
        usage=codec.parse_json(turn.usage.encode()) if turn.usage else None,
    )


alist_turns = in_pool(list_turns)
aget_turn = in_pool(get_turn)
