"""What is said after a commit, by signals and in the log. Who hears it the services don't know.

What the app's own receivers hear is said at once, by the thread that committed. The rest is for the
host's, which may be slow: what a thread of the pool committed is said on a thread apart.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
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
from chatmemory.errors import BadInput
from chatmemory.logs import log_error
from chatmemory.models import Turn
from chatmemory.services.faults import database
from chatmemory.services.pool import is_pool_thread
from chatmemory.threads import DaemonExecutor

logger = logging.getLogger(__name__)

turns_log = logging.getLogger("chatmemory.turns")
"""One line for each turn, at its end; never what was said."""

MOST_UNTOLD = 1_000
"""How much may wait for slow receivers; what is more is said by the thread that committed."""

_teller = DaemonExecutor(1, name="chatmemory-signals")
_room = threading.Semaphore(MOST_UNTOLD)
_untold: set[Future[None]] = set()

REMOVING = frozenset({"trim", "clear", "purge", "redact", "erase"})
"""The acts after which something can't be read any more."""


def tell(session_pk: int) -> None:
    """Say that the session has news."""
    _after_commit(signals.session_changed, session_pk=session_pk)


def tell_appended(
    session_pk: int, *, first_seq: int, last_seq: int, roles: Sequence[str], turn: int | None
) -> None:
    """Say that rows were stored."""
    _apart_after_commit(
        signals.messages_appended,
        session_pk=session_pk,
        first_seq=first_seq,
        last_seq=last_seq,
        roles=tuple(roles),
        turn=turn,
    )


def tell_waiting(session_pk: int, client_id: str) -> None:
    """Say that a turn waits for somebody to run it."""
    _after_commit(signals.turn_waiting, session_pk=session_pk, client_id=client_id)


def tell_started(session_pk: int, client_id: str) -> None:
    """Say that the run of a turn begins."""
    _apart_after_commit(signals.turn_started, session_pk=session_pk, client_id=client_id)


def tell_stop(session_pk: int, turn_pk: int) -> None:
    """Say that a running turn shall stop."""
    _after_commit(signals.stop_requested, session_pk=session_pk, turn_pk=turn_pk)


def tell_finished(session_pk: int, client_id: str, status: str, error: str) -> None:
    """Say that a turn ended, whoever ended it, and log it."""
    say = partial(_say_finished, session_pk, client_id, status, error)
    _call_after_commit(partial(_call_apart, say))


def tell_act(session_pk: int | None, action: str, actor: str, messages: int) -> None:
    """Say what was written down in the audit; of no single session without a `session_pk`."""
    _apart_after_commit(
        signals.act_recorded, session_pk=session_pk, action=action, actor=actor, messages=messages
    )
    if session_pk is not None and action in REMOVING:
        _apart_after_commit(
            signals.history_removed, session_pk=session_pk, action=action, messages=messages
        )


def _say_finished(session_pk: int, client_id: str, status: str, error: str) -> None:
    if not (turns_log.isEnabledFor(logging.INFO) or signals.turn_finished.has_listeners()):
        return  # spare the statement
    turn = _read(session_pk, client_id)
    usage = _usage(turn.usage) if turn else {}
    about = {
        "session_pk": session_pk,
        "client_id": client_id,
        "status": str(status),
        "error": error,
        "model": turn.model if turn else "",
        "input_tokens": _tokens(usage, "input_tokens"),
        "output_tokens": _tokens(usage, "output_tokens"),
        "waited_seconds": _between(turn.created_at, turn.started_at) if turn else None,
        "seconds": _between(turn.started_at, turn.ended_at) if turn else None,
    }
    turns_log.info(
        "turn=%(client_id)s session=%(session_pk)s status=%(status)s error=%(error)s "
        "model=%(model)r input_tokens=%(input_tokens)s output_tokens=%(output_tokens)s "
        "waited_seconds=%(waited_seconds)s seconds=%(seconds)s",
        about,
    )
    signals.turn_finished.send_robust(None, **about)


def _read(session_pk: int, client_id: str) -> Turn | None:
    """The turn; None where it is gone, or the database by now."""
    try:
        return Turn.objects.filter(session=session_pk, client_id=client_id).first()
    except (DatabaseError, InterfaceError):
        return None


def _usage(text: str) -> Mapping[str, object]:
    try:
        usage = codec.parse_json(text, is_ours=True) if text else None
    except BadInput:
        usage = None
    return usage if isinstance(usage, Mapping) else {}


def _tokens(usage: Mapping[str, object], name: str) -> int | None:
    number = usage.get(name)
    return number if isinstance(number, int) else None


def _between(begin: datetime | None, end: datetime | None) -> float | None:
    return (end - begin).total_seconds() if begin is not None and end is not None else None


def _after_commit(signal: Signal, **about: Any) -> None:
    _call_after_commit(partial(signal.send_robust, None, **about))


def _apart_after_commit(signal: Signal, **about: Any) -> None:
    if signal.has_listeners():
        _call_after_commit(partial(_call_apart, partial(signal.send_robust, None, **about)))


def has_told_all() -> bool:
    """Whether no receiver of the host's is still to be told, or at it, on the thread apart."""
    return not _untold


def _call_apart(say: Callable[[], object]) -> None:
    """Call it in order, in a thread that nobody waits for; here, if this one is nobody's."""
    if not is_pool_thread() or not _room.acquire(blocking=False):
        say()
        return
    try:
        told = _teller.submit(_call, say)
    except RuntimeError:  # the system gives no thread
        _room.release()
        say()
        return
    _untold.add(told)
    told.add_done_callback(_untold.discard)


def _call(say: Callable[[], object]) -> None:
    try:
        say()
    except BaseException as error:  # a receiver's SystemExit too, which nothing else reports
        log_error(logger, "a receiver failed", error=error)
    finally:
        _room.release()
        _leave_no_transaction()
        close_old_connections()


def _leave_no_transaction() -> None:
    """Roll back what a receiver began and did not end: all that is told later would be in it."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            logger.error("a receiver left a transaction open; it is rolled back")
            del connections[connection.alias]  # closed in a block, it could not be opened again
            connection.close()


def _call_after_commit(call: Callable[[], object]) -> None:
    call_after_commit(call, using=database().alias)


def call_after_commit(call: Callable[[], object], *, using: str | None = None) -> None:
    """Call it after the commit; its error is logged without the text and reaches no caller.

    Django's own log of a failed hook has the text, and fails for a partial, which has no name.
    """

    def hook() -> None:
        try:
            call()
        except Exception as error:
            log_error(logger, "a hook failed after the commit", error=error)

    transaction.on_commit(hook, using=using)
