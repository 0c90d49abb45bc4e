"""End or requeue a turn from outside its run. All functions that write need the session's lock.

A turn ends in one of these ways:

- Its run finishes by itself: `finish_turn` in `progress`.
- It is stopped on request: `stop_turn` in `stops`.
- It is recovered after its lease ended: `recover_overdue_turn` in `recovery`.
- It is cancelled while it waits: `cancel_turn` here, or with all others of its session
  `cancel_waiting` in `removal/floor`.
- It fails at its claim, since its message can no longer be stored: `claim_next` in `claims`.
- A clear or purge ends it with all others: `move_epoch` in `removal/floor`.
- An import or the restore of a database interrupts it: `interrupt_turn` here.
- A repair ends it, since its session does not name it: `end_orphaned_turn` here.

No function that ends a turn starts the next one: `claim_next` does.
"""

from __future__ import annotations

from django.db.models import F, Max

from chatmemory import codec
from chatmemory.codec import Row
from chatmemory.database.after_commit import announce_change, announce_finished, announce_waiting
from chatmemory.database.inserts import store_rows
from chatmemory.models import Message, Session, Turn
from chatmemory.services.turns.deferral import store_deferred


def end_or_requeue(session: Session, turn: Turn) -> str:
    """End or requeue a running turn whose process has died or is about to exit.

    Returns the new status: a started turn is interrupted, an unstarted one is cancelled if a stop
    was requested, else requeued. No turn is rerun automatically, since a model or tool may have
    been called.
    """
    if turn.started_at is not None:
        interrupt_turn(session, turn)
        return Turn.Status.INTERRUPTED
    if turn.stop_requested_at is not None:
        _end_without_row(session, turn, Turn.Status.CANCELLED)
        return Turn.Status.CANCELLED
    requeue_turn(session, turn)
    return Turn.Status.WAITING


def requeue_turn(session: Session, turn: Turn) -> None:
    """Make a claimed turn wait again.

    It stays in `session.running`, so that nothing is stored between its user row and its reply.
    """
    session.turns.filter(pk=turn.pk).update(
        status=Turn.Status.WAITING, fence=F("fence") + 1, lease_owner="", lease_until=None
    )
    # Note [Fence]: the late write of the former owner must match no row.
    Session.objects.filter(pk=session.pk).update(fence=F("fence") + 1, revision=F("revision") + 1)
    announce_waiting(session.pk, turn.client_id)


def interrupt_turn(session: Session, turn: Turn) -> None:
    """End a running turn with its saved partial text as the last row."""
    if turn.user_seq is None:  # damaged: the place of its rows is unknown
        _end_without_row(session, turn, Turn.Status.INTERRUPTED, partial=turn.partial)
        return
    # The saved partial text may belong to a step whose row was stored since.
    rows = Message.stored.filter(session=session, turn=turn.user_seq)
    last_step = rows.aggregate(last=Max("step"))["last"]
    is_step_stored = last_step is not None and turn.step <= last_step
    last = codec.encode(
        {"role": "assistant", "content": "" if is_step_stored else turn.partial},
        lenient=True,
        status=Message.Status.INTERRUPTED,
        step=last_step + 1 if is_step_stored else turn.step,
    )
    store_rows(
        [*results_for_open_calls(session.pk, turn.user_seq), last],
        address={"id": session.pk},
        conditions={"running": turn.client_id},
        turn=turn.user_seq,
        updates={"running": None},
        increments={"revision": 1, "fence": 1},
    )
    announce_change(session.pk)
    _mark_ended(session, turn, Turn.Status.INTERRUPTED)
    _continue(session)


def end_orphaned_turn(session: Session, turn: Turn) -> None:
    """End a running turn that its session does not name; its run can no longer write.

    It ends like an overdue turn if its rows are the last ones of an idle session. Otherwise a row
    of it would follow other turns' rows, so it gets none, and keeps its partial text.
    """
    begin = turn.user_seq or 0
    rows = Message.stored.filter(session=session, seq__gte=begin)
    has_rows = rows.filter(seq=begin).exists() and not rows.exclude(turn=begin).exists()
    is_last = session.running is None and has_rows
    if is_last and session.epoch == turn.epoch:
        session.running = turn.client_id
        Session.objects.filter(pk=session.pk).update(running=turn.client_id)
        end_or_requeue(session, turn)
        return
    partial = turn.partial if session.epoch == turn.epoch else ""
    _mark_ended(session, turn, Turn.Status.INTERRUPTED, partial)


def cancel_turn(session: Session, client_id: str) -> bool:
    """Cancel a waiting turn; return False if it no longer waits."""
    turn = session.turns.filter(client_id=client_id, status=Turn.Status.WAITING).first()
    if turn is None:
        return False
    if session.running == client_id:  # it was requeued
        _end_without_row(session, turn, Turn.Status.CANCELLED)
        return True
    Session.objects.filter(pk=session.pk).update(
        waiting=F("waiting") - 1, revision=F("revision") + 1
    )
    announce_change(session.pk)
    _mark_ended(session, turn, Turn.Status.CANCELLED)
    return True


def _end_without_row(session: Session, turn: Turn, status: str, partial: str = "") -> None:
    """End the turn that `session.running` names, and store no row."""
    Session.objects.filter(pk=session.pk).update(
        running=None, fence=F("fence") + 1, revision=F("revision") + 1
    )
    announce_change(session.pk)
    _mark_ended(session, turn, status, partial)
    _continue(session)


def _mark_ended(session: Session, turn: Turn, status: str, partial: str = "") -> None:
    session.turns.filter(pk=turn.pk).mark_ended(status, partial=partial, fence=F("fence") + 1)
    announce_finished(session.pk, turn.client_id, status, "")


def _continue(session: Session) -> None:
    """Store what was deferred, and announce the next turn of the queue, if there is one."""
    store_deferred(session)
    if session.waiting:
        for client_id in session.turns.waiting().values_list("client_id", flat=True)[:1]:
            announce_waiting(session.pk, client_id)


def results_for_open_calls(session_pk: int, user_seq: int) -> list[Row]:
    """Return a result for each tool call of a turn that has none, in the order of the calls.

    Models reject a history with an unanswered call, so a turn that ends early must not leave one.
    """
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
