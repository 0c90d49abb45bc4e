"""Stop turns on request: of a user, of a later message, or because the user may no longer chat."""

from __future__ import annotations

from dataclasses import dataclass

from chatmemory.access.actors import Actor
from chatmemory.access.addresses import address_lane
from chatmemory.database.after_commit import announce_stop
from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.database.pool import in_pool
from chatmemory.database.retries import retried
from chatmemory.errors import UnknownTurn
from chatmemory.models import Session, Turn
from chatmemory.services.sessions import get_session
from chatmemory.services.turns.endings import cancel_turn
from chatmemory.services.turns.recovery import recover_overdue_turn


def stop_turn(*, session_key: str, turn: str, by: Actor, scope: str | None = None) -> str:
    """Cancel a waiting turn or request the stop of a running one; return the turn's status.

    The runner then ends a running turn and stores its partial text; an overdue one ends here. An
    ended turn stays unchanged. `turn` is the client_id. Raises NotFound, UnknownTurn,
    MemoryUnavailable.
    """
    return _stop_locked(get_session(session_key=session_key, by=by, scope=scope), turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A turn that was stopped."""

    turn: str
    """Its client_id."""
    status: str


def stop_running_turn(*, session_key: str, by: Actor, scope: str | None = None) -> Stopped | None:
    """Stop the running turn of a session as `stop_turn` does; None if no turn runs.

    Raises BadInput, NotFound, MemoryUnavailable.
    """
    session = get_session(session_key=session_key, by=by, scope=scope)
    if session.running is None:
        return None
    return Stopped(turn=session.running, status=_stop_locked(session, session.running))


@retried(is_repeatable=True)
def _stop_locked(session: Session, client_id: str) -> str:
    try:
        return _stop_stored(session, client_id)
    except Turn.DoesNotExist:  # there is none, or it was erased meanwhile
        raise UnknownTurn from None


def _stop_stored(session: Session, client_id: str) -> str:
    turns = session.turns.undeferred().filter(client_id=client_id)
    status = turns.get().status
    # The status was read without the lock: if the turn was claimed since, `_cancel` returns False.
    if status == Turn.Status.WAITING and _cancel(session.pk, client_id):
        return Turn.Status.CANCELLED
    # Note [Fence]: without the session's lock, which a long append may hold. The update changes
    # only a running turn.
    with locked_transaction():
        is_running = turns.request_stop()
    if is_running and not (turns.overdue().exists() and recover_overdue_turn(session.pk)):
        announce_stop(session.pk, turns.get().pk)
    return turns.get().status


def _cancel(session_pk: int, client_id: str) -> bool:
    with locked_transaction():
        return cancel_turn(lock_pk(session_pk), client_id)


def stop_current_turn(session: Session) -> None:
    """Request the stop of the session's running turn; cancel one that was requeued.

    Needs the session's lock.
    """
    if session.running is None or cancel_turn(session, session.running):
        return
    turns = session.turns.filter(client_id=session.running)
    if turns.request_stop():
        announce_stop(session.pk, turns.get().pk)


def cancel_waiting_turns(session_pk: int) -> None:
    """Cancel all waiting turns of a session, including a requeued one. Raises NotFound."""
    with locked_transaction():
        session = lock_pk(session_pk)
        for client_id in list(session.turns.waiting().values_list("client_id", flat=True)):
            cancel_turn(session, client_id)


astop_turn = in_pool(stop_turn, lane=address_lane)
