"""Announce writes after their commit, by signals and in the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from typing import Any

from django.db import (
    DatabaseError,
    InterfaceError,
    close_old_connections,
    connections,
    transaction,
)
from django.dispatch import Signal

from chatmemory import codec, signals
from chatmemory.database.faults import write_connection
from chatmemory.database.pool import in_pool, is_pool_thread
from chatmemory.database.threads import DaemonExecutor
from chatmemory.logs import log_error
from chatmemory.models import AuditAction, Change, Turn

# Note [Delivery after commit]
#
# Services only announce; they don't know the receivers. `transaction.on_commit` sends a signal, so
# no receiver is notified of a write that is rolled back, and none runs inside a transaction.
# - Signals to the app's own receivers (changes, turn_ready, stop_requested, job_waiting,
#   visitor_ended), and turn_waiting and session_changed, are sent immediately by the thread that
#   committed. Our receivers only pass a notification to a loop or a thread.
# - Signals to the host's receivers, which may be slow, are sent by the delivery thread if a thread
#   of the pool committed, in the order of the commits. Sockets and runs wait for a pool thread, so
#   it must not wait for the host's code. Other threads belong to their caller and send themselves.
# A signal is lost if its process ends first. The sweep finds what matters (live/sweep.py).
# Measured in docs/reasons/decisions/0007-host-receivers-have-a-thread.md.

logger = logging.getLogger(__name__)

turns_log = logging.getLogger("chatmemory.turns")
"""One line for each turn, at its end, without its text."""

MAX_UNDELIVERED = 1_000
"""Signals that may wait for slow receivers. The thread that committed sends any others itself."""

changes = signals.Signal()
"""`session_changed` for the app's own receivers. Sent with `change`, which may have content: a
`Change`, or None if it must be read, see Note [Rows from memory]; and `is_local`, whether another
announcement follows for other processes."""

turn_ready = signals.Signal()
"""A waiting turn can start. For the app's own receivers, which also treat it as a change."""

job_waiting = signals.Signal()
"""A job waits for a process to execute it. For the app's own receivers."""

visitor_ended = signals.Signal()
"""A visitor ended or was adopted. Sent with `scope`. For the app's own receivers."""

_delivery_thread = DaemonExecutor(1, name="chatmemory-signals")
_free_slots = threading.Semaphore(MAX_UNDELIVERED)
_undelivered: set[Future[None]] = set()

REMOVING = frozenset(
    {
        AuditAction.TRIM,
        AuditAction.CLEAR,
        AuditAction.PURGE,
        AuditAction.REDACT,
        AuditAction.ERASE,
    }
)
"""Actions that make messages unreadable."""


def announce_change(
    session_pk: int, change: Change | None = None, *, is_local: bool = False
) -> None:
    """Send `changes` and `session_changed` after the commit."""
    _send_after_commit(changes, session_pk=session_pk, change=change, is_local=is_local)
    _send_after_commit(signals.session_changed, session_pk=session_pk)


def announce_appended(
    session_pk: int, *, first_seq: int, last_seq: int, roles: Sequence[str], turn: int | None
) -> None:
    """Send `messages_appended` after the commit."""
    _deliver_after_commit(
        signals.messages_appended,
        session_pk=session_pk,
        first_seq=first_seq,
        last_seq=last_seq,
        roles=tuple(roles),
        turn=turn,
    )


def announce_waiting(session_pk: int, client_id: str, *, is_ready: bool = True) -> None:
    """Send `turn_waiting` and `session_changed` after the commit.

    With `is_ready` a runner claims the turn. Otherwise another turn of the session runs, and the
    process that ends that one claims the next.
    """
    if is_ready:
        _send_after_commit(turn_ready, session_pk=session_pk)
        _send_after_commit(signals.session_changed, session_pk=session_pk)
    else:
        announce_change(session_pk)
    _send_after_commit(signals.turn_waiting, session_pk=session_pk, client_id=client_id)


def announce_started(session_pk: int, client_id: str) -> None:
    """Send `turn_started` after the commit."""
    _deliver_after_commit(signals.turn_started, session_pk=session_pk, client_id=client_id)


def announce_stop(session_pk: int, turn_pk: int) -> None:
    """Send `stop_requested` after the commit, so that the runner stops the turn."""
    _send_after_commit(signals.stop_requested, session_pk=session_pk, turn_pk=turn_pk)


def announce_job(job_pk: int) -> None:
    """Send `job_waiting` after the commit, so that a process claims the job."""
    _send_after_commit(job_waiting, job_pk=job_pk)


def announce_visitor_ended(scope: str) -> None:
    """Send `visitor_ended` after the commit, so that the visitor's sockets are closed."""
    _send_after_commit(visitor_ended, scope=scope)


def announce_finished(session_pk: int, client_id: str, status: str, error: str) -> None:
    """Send `turn_finished` and log the turn after the commit."""
    call_host_after_commit(partial(_send_finished, session_pk, client_id, status, error))


def announce_failure(session_pk: int, client_id: str, error: BaseException) -> None:
    """Send `responder_failed` now."""
    if signals.responder_failed.has_listeners():
        fields = {"session_pk": session_pk, "client_id": client_id, "error": error}
        _call_on_delivery_thread(partial(signals.responder_failed.send_robust, None, **fields))


def announce_action(session_pk: int | None, action: str, actor: str, messages: int) -> None:
    """Send `action_recorded` after the commit, and `history_removed` if a session lost messages.

    `session_pk` is None for an action on several sessions.
    """
    _deliver_after_commit(
        signals.action_recorded,
        session_pk=session_pk,
        action=action,
        actor=actor,
        messages=messages,
    )
    if session_pk is not None and action in REMOVING:
        _deliver_after_commit(
            signals.history_removed, session_pk=session_pk, action=action, messages=messages
        )


def _send_finished(session_pk: int, client_id: str, status: str, error: str) -> None:
    if not (turns_log.isEnabledFor(logging.INFO) or signals.turn_finished.has_listeners()):
        return  # saves the query
    # A query, since the database computed the turn's times (Note [Database clock]).
    turn = _read_turn(session_pk, client_id)
    usage = codec.parse_usage(turn.usage) if turn else {}
    fields = {
        "session_pk": session_pk,
        "client_id": client_id,
        "status": str(status),
        "error": error,
        "model": turn.model if turn else "",
        "input_tokens": codec.token_count(usage, "input_tokens"),
        "output_tokens": codec.token_count(usage, "output_tokens"),
        "waited_seconds": _seconds_between(turn.created_at, turn.started_at) if turn else None,
        "seconds": _seconds_between(turn.started_at, turn.ended_at) if turn else None,
    }
    turns_log.info(
        "turn=%(client_id)s session=%(session_pk)s status=%(status)s error=%(error)s "
        "model=%(model)r input_tokens=%(input_tokens)s output_tokens=%(output_tokens)s "
        "waited_seconds=%(waited_seconds)s seconds=%(seconds)s",
        fields,
    )
    signals.turn_finished.send_robust(None, **fields)


def _read_turn(session_pk: int, client_id: str) -> Turn | None:
    """Return the turn, or None if it was deleted or the database is unavailable."""
    try:
        return Turn.objects.filter(session=session_pk, client_id=client_id).first()
    except (DatabaseError, InterfaceError):
        return None


def _seconds_between(begin: datetime | None, end: datetime | None) -> float | None:
    return (end - begin).total_seconds() if begin is not None and end is not None else None


def _send_after_commit(signal: Signal, **fields: Any) -> None:
    """Send a signal on the thread that commits; see Note [Delivery after commit]."""
    if signal.has_listeners():
        _call_after_commit(partial(signal.send_robust, None, **fields))


def _deliver_after_commit(signal: Signal, **fields: Any) -> None:
    """Send a signal to the host's receivers; see Note [Delivery after commit]."""
    if signal.has_listeners():
        call_host_after_commit(partial(signal.send_robust, None, **fields))


def call_host_after_commit(call: Callable[[], object]) -> None:
    """Call code of the host, which may be slow, after the commit: Note [Delivery after commit]."""
    _call_after_commit(partial(_call_on_delivery_thread, call))


def is_everything_delivered() -> bool:
    """Whether the delivery thread has sent all signals and their receivers have returned."""
    return not _undelivered


def _call_on_delivery_thread(send: Callable[[], object]) -> None:
    """Call `send` on the delivery thread if this is a thread of the pool, otherwise on this one."""
    if not is_pool_thread() or not _free_slots.acquire(blocking=False):
        send()
        return
    try:
        delivery = _delivery_thread.submit(_deliver, send)
    except RuntimeError:  # the system refuses another thread
        _free_slots.release()
        send()
        return
    _undelivered.add(delivery)
    delivery.add_done_callback(_undelivered.discard)


def _deliver(send: Callable[[], object]) -> None:
    close_old_connections()  # they may be too old since the last signal
    try:
        send()
    except BaseException as error:  # includes a receiver's SystemExit, which nothing else reports
        log_error(logger, "a receiver failed", error=error)
    finally:
        _free_slots.release()
        # All receivers of the host share this thread and its connections.
        _roll_back_open_transactions()
        close_old_connections()


def _roll_back_open_transactions() -> None:
    """Roll back a receiver's open transaction, which would contain the work of later receivers."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            logger.error("a receiver left a transaction open; it is rolled back")
            # Django does not reopen a connection that was closed inside an atomic block.
            del connections[connection.alias]
            connection.close()


def _call_after_commit(call: Callable[[], object]) -> None:
    call_after_commit(call, using=write_connection().alias)


def call_after_commit(call: Callable[[], object], *, using: str | None = None) -> None:
    """Call a function after the commit; log its error without the error's text."""

    def hook() -> None:
        try:
            call()
        except Exception as error:
            log_error(logger, "a hook failed after the commit", error=error)

    # Not with `robust=True`: Django then logs the error's text too, and its log call fails for a
    # `partial`, which has no name.
    transaction.on_commit(hook, using=using)


aannounce_failure = in_pool(announce_failure)
