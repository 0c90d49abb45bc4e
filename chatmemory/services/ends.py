"""Ends of turns by others than their run: stopped, overdue, or not named by their session.

Whoever ends a turn only ends it: `claim_next` begins the next one.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from django.db.models import Case, F, When

from chatmemory import codec
from chatmemory.codec import Row
from chatmemory.errors import MemoryUnavailable, NotFound, UnknownTurn
from chatmemory.logs import log_error
from chatmemory.models import Message, Session, Turn
from chatmemory.services.actors import Actor
from chatmemory.services.faults import durably
from chatmemory.services.locks import lock_pk, unit
from chatmemory.services.news import tell, tell_finished, tell_stop, tell_waiting
from chatmemory.services.pool import Lane, address_lane, in_pool
from chatmemory.services.rows import store
from chatmemory.services.sessions import get_session

logger = logging.getLogger(__name__)

T = TypeVar("T")

OVERDUE = 100
"""Overdue turns read at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What became of overdue turns."""

    interrupted: int
    """Turns that had begun."""
    given_back: int
    """Turns that had not: they wait again."""
    cancelled: int
    """Turns that had not, and were told to stop."""
    failed: int
    """Sessions whose turn could not be ended; the log says why."""
    is_all: bool = True
    """No overdue turn was left out because of the limit."""


def end_overdue(session_pk: int) -> bool:
    """End the running turn of a session if its lease has ended; False if there was no such turn.

    One that had begun ends as interrupted, with the text that was kept. One that had not is given
    back: it waits again, first in the queue; or is cancelled, if it was told to stop. Nothing is
    ever run twice by itself.
    """
    return _end_overdue(session_pk) is not None


def _end_overdue(session_pk: int, *, nowait: bool = False) -> str | None:
    """The status that the turn has after it, or None."""

    def work() -> str | None:
        with unit():
            session = lock_pk(session_pk, nowait=nowait)
            # A run's start and lease are written without the session's lock.
            turns = session.turns.overdue().filter(client_id=session.running)
            turn = turns.select_for_update(nowait=nowait).first()
            if turn is None:
                return None
            return _end(session, turn)

    return durably(work, is_repeatable=True)


def end_all_overdue(*, limit: int | None = None, skip: int = 0) -> Recovered:
    """End the overdue turns of all sessions, at most `limit` of them.

    The newest come first, damaged ones last; `skip` is the number to leave out, such as those that
    failed before. Never waits for a lock: a turn of a locked session fails, for now.
    Raises MemoryUnavailable if the overdue turns cannot be read.
    """
    found: Counter[str | None] = Counter()
    left = sys.maxsize if limit is None else limit
    while page := _overdue(skip, min(left, OVERDUE)):
        statuses = Counter(_try_to_end(*columns) for columns in page)
        found += statuses
        skip += statuses["failed"]  # they are the first of those that are left
        left -= len(page)
    return Recovered(
        interrupted=found[Turn.Status.INTERRUPTED],
        given_back=found[Turn.Status.WAITING],
        cancelled=found[Turn.Status.CANCELLED],
        failed=found["failed"],
        is_all=left > 0,
    )


def _try_to_end(session_pk: int, is_named: bool) -> str | None:  # a row's columns
    """The status of the turn after it; "failed" if it has not ended, None if another ended it."""
    if not is_named:
        logger.warning(
            "the overdue turn of session %s can't be ended, as the session does not name "
            "it: chatmemory_check --fix does",
            session_pk,
        )
        return "failed"
    try:
        return _end_overdue(session_pk, nowait=True)
    except (MemoryUnavailable, NotFound) as error:  # its lock is held, or it has just gone
        logger.warning("the overdue turn of session %s is left for now: %s", session_pk, error.code)
    except Exception as error:  # one damaged session must not keep all others from their end
        log_error(logger, "the overdue turn of session %s can't be ended", session_pk, error=error)
    return "failed"


def _overdue(skip: int, limit: int) -> list[tuple[int, bool]]:
    """The sessions of overdue turns, and whether the session names the turn."""
    is_named = Case(When(client_id=F("session__running"), then=True), default=False)
    turns = Turn.objects.overdue().annotate(is_named=is_named).order_by("-is_named", "-pk")
    return _read(turns.values_list("session_id", "is_named")[skip : skip + limit])


def _read(rows: Iterable[T]) -> list[T]:
    return durably(lambda: list(rows), is_repeatable=True)


def give_back_claims(*, owner: str) -> int:
    """Let others run what this process claimed and has not begun; return how many turns.

    Those that can't be given back now are when their lease ends.
    """
    claims = Turn.objects.filter(
        lease_owner=owner, status=Turn.Status.RUNNING, started_at__isnull=True
    )

    def work(session_pk: int) -> bool:
        with unit():
            session = lock_pk(session_pk)
            # A run's start is written without the session's lock.
            turns = claims.filter(session=session, client_id=session.running)
            turn = turns.select_for_update().first()
            if turn is not None:
                _end(session, turn)
            return turn is not None

    given_back = 0
    for session_pk in _read(claims.values_list("session_id", flat=True)):
        try:
            given_back += durably(partial(work, session_pk), is_repeatable=True)
        except (MemoryUnavailable, NotFound) as error:  # its lock is held, or it has just gone
            logger.warning("the claim of session %s is not given back: %s", session_pk, error.code)
    return given_back


def end_stray(session: Session, turn: Turn) -> None:
    """End a running turn that its session doesn't name; its run can't write. Needs the lock.

    While its rows are the last ones of an idle session it ends as an overdue one does. Later it
    gets no row, which would stand between others' rows; what was kept of its text stays with it.
    """
    begin = turn.user_seq or 0
    rows = Message.stored.filter(session=session, seq__gte=begin)
    has_rows = rows.filter(seq=begin).exists() and not rows.exclude(turn=begin).exists()
    is_last = session.running is None and has_rows
    if is_last and session.epoch == turn.epoch:
        session.running = turn.client_id
        Session.objects.filter(pk=session.pk).update(running=turn.client_id)
        _end(session, turn)
        return
    kept = turn.partial if session.epoch == turn.epoch else ""
    _end_turn(session, turn, Turn.Status.INTERRUPTED, kept)


def _end(session: Session, turn: Turn) -> str:
    """End a turn that nobody runs, or give it back; return its status now. Needs the lock."""
    if turn.started_at is not None:
        interrupt(session, turn)
        return Turn.Status.INTERRUPTED
    if turn.stop_requested_at is not None:
        _end_idle(session, turn, Turn.Status.CANCELLED)
        return Turn.Status.CANCELLED
    give_back(session, turn)
    return Turn.Status.WAITING


def give_back(session: Session, turn: Turn) -> None:
    """Needs the lock."""
    Turn.objects.filter(pk=turn.pk).update(
        status=Turn.Status.WAITING, fence=F("fence") + 1, lease_owner="", lease_until=None
    )
    Session.objects.filter(pk=session.pk).update(fence=F("fence") + 1, revision=F("revision") + 1)
    tell(session.pk)
    tell_waiting(session.pk, turn.client_id)


def interrupt(session: Session, turn: Turn) -> None:
    """End the running turn with the text that was kept. Needs the lock."""
    if turn.user_seq is None:  # damaged: nobody can tell where its rows belong
        _end_idle(session, turn, Turn.Status.INTERRUPTED, partial=turn.partial)
        return
    stored = Message.stored.filter(session=session, turn=turn.user_seq, step=turn.step)
    text = "" if stored.exists() else turn.partial  # as the row of its step it was said already
    last = codec.encode(
        {"role": "assistant", "content": text},
        lenient=True,
        status=Message.Status.INTERRUPTED,
        step=turn.step,
    )
    store(
        [*results_for_open_calls(session.pk, turn.user_seq), last],
        at={"id": session.pk},
        only_if={"running": turn.client_id},
        turn=turn.user_seq,
        put={"running": None},
        add={"revision": 1, "fence": 1},
    )
    tell(session.pk)
    _end_turn(session, turn, Turn.Status.INTERRUPTED)
    _tell_next(session)


def _end_idle(session: Session, turn: Turn, status: str, partial: str = "") -> None:
    """End the turn that `running` names without a row. Needs the lock."""
    Session.objects.filter(pk=session.pk).update(
        running=None, fence=F("fence") + 1, revision=F("revision") + 1
    )
    tell(session.pk)
    _end_turn(session, turn, status, partial)
    _tell_next(session)


def _end_turn(session: Session, turn: Turn, status: str, partial: str = "") -> None:
    Turn.objects.filter(pk=turn.pk).end(status, partial=partial, fence=F("fence") + 1)
    tell_finished(session.pk, turn.client_id, status, "")


def _tell_next(session: Session) -> None:
    """Say that the next in the queue can begin, if there is one. Needs the lock."""
    if session.waiting:
        for client_id in session.turns.waiting().values_list("client_id", flat=True)[:1]:
            tell_waiting(session.pk, client_id)


def stop_turn(*, session_key: str, turn: str, by: Actor, scope: str | None = None) -> str:
    """Stop a turn and return its status: a waiting one is cancelled, a running one told to end.

    One that ended stays as it is. A running one whose process is dead ends here.
    Raises NotFound, UnknownTurn.
    """
    session = get_session(session_key=session_key, by=by, scope=scope)

    def work() -> str:
        found = session.turns.filter(client_id=turn)
        try:
            status = found.get().status
        except Turn.DoesNotExist:
            raise UnknownTurn from None
        if status == Turn.Status.WAITING and _cancel(session.pk, turn):
            return Turn.Status.CANCELLED
        with unit():
            is_asked = found.ask_to_stop()
        if is_asked and not (found.overdue().exists() and end_overdue(session.pk)):
            tell_stop(session.pk, found.get().pk)
        return found.get().status

    return durably(work, is_repeatable=True)


def _cancel(session_pk: int, client_id: str) -> bool:
    with unit():
        return cancel(lock_pk(session_pk), client_id)


def cancel(session: Session, client_id: str) -> bool:
    """Cancel a waiting turn; False if it doesn't wait any more. Needs the lock."""
    turn = session.turns.filter(client_id=client_id, status=Turn.Status.WAITING).first()
    if turn is None:
        return False
    if session.running == client_id:
        _end_idle(session, turn, Turn.Status.CANCELLED)
        return True
    Session.objects.filter(pk=session.pk).update(
        waiting=F("waiting") - 1, revision=F("revision") + 1
    )
    tell(session.pk)
    _end_turn(session, turn, Turn.Status.CANCELLED)
    return True


def cancel_all(session_pk: int) -> None:
    """Cancel all waiting turns of a session, also one that was given back."""
    with unit():
        session = lock_pk(session_pk)
        for client_id in list(session.turns.waiting().values_list("client_id", flat=True)):
            cancel(session, client_id)


def stop_running(session: Session) -> None:
    """Tell the running turn to end; one that was given back is cancelled. Needs the lock."""
    if session.running is None or cancel(session, session.running):
        return
    running = session.turns.filter(client_id=session.running)
    if running.ask_to_stop():
        tell_stop(session.pk, running.get().pk)


def results_for_open_calls(session_pk: int, user_seq: int) -> list[Row]:
    """A result for each tool call of a turn that has none; in the order of the calls."""
    rows = Message.stored.filter(session=session_pk, seq__gt=user_seq, body__isnull=False)
    called: dict[str, None] = {}
    for role, text, body in rows.in_order().values_list("role", "text", "body"):
        plain = codec.decode(role, text, body)
        called.update(dict.fromkeys(codec.call_ids(plain)))
        called.pop(codec.answered_call(plain) or "", None)
    return [
        codec.encode(codec.unknown_outcome(call_id), status=Message.Status.INTERRUPTED)
        for call_id in called
    ]


def _pk_lane(session_pk: int, **_: object) -> Lane:
    return (session_pk,)


aend_overdue = in_pool(end_overdue, lane=_pk_lane)
aend_all_overdue = in_pool(end_all_overdue)
agive_back_claims = in_pool(give_back_claims)
astop_turn = in_pool(stop_turn, lane=address_lane)
