"""The lock: a session's row, held until the transaction ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django.db import transaction
from django.db.models import F

from chatmemory.conf import settings
from chatmemory.errors import NotFound
from chatmemory.models import Session, SessionQuerySet
from chatmemory.services.actors import Actor, scope_for
from chatmemory.services.addresses import check_session_key
from chatmemory.services.faults import database


def unit() -> transaction.Atomic:
    """A transaction, or a savepoint in the caller's."""
    return transaction.atomic(using=database().alias)


def lock(session_key: str, by: Actor, scope: str | None, session_pk: int | None = None) -> Session:
    """Take the lock of a living session; with a `session_pk` only if it is this one.

    Needs a transaction. Raises NotFound, BadInput.
    """
    check_session_key(session_key)
    sessions = Session.objects.at(scope_for(by, scope), session_key)
    return _lock(sessions if session_pk is None else sessions.filter(pk=session_pk))


def lock_at(scope: str, key: str) -> Session:
    """Take the lock of the living session of this address. Needs a transaction. Raises NotFound."""
    return _lock(Session.objects.at(scope, key))


def lock_stored(session_pk: int, by: Actor, scope: str | None) -> Session:
    """Take the lock of a session that is or was in this scope: living, expired or purged.

    Needs a transaction. Raises NotFound.
    """
    return _lock(Session.objects.of_scopes(scope_for(by, scope)).filter(pk=session_pk))


def lock_pk(session_pk: int) -> Session:
    """Take the lock of a session, removed or not. Needs a transaction. Raises NotFound."""
    return _lock(Session.objects.filter(pk=session_pk))


def _lock(sessions: SessionQuerySet) -> Session:
    connection = database()
    if connection.vendor == "sqlite":
        # There, select_for_update is ignored, and a transaction that began with a read can't write.
        sessions.update(fence=F("fence"))
    else:
        sessions = sessions.select_for_update(no_key=connection.vendor == "postgresql")
    try:
        with bounded_wait():
            return sessions.get()
    except Session.DoesNotExist:
        raise NotFound from None


def bounded_wait() -> AbstractContextManager[None]:
    """Waits for a lock end after `LOCK_TIMEOUT`. Needs a `unit`; nothing outlasts it."""
    connection = database()
    if connection.vendor == "mysql":
        wait = max(1, round(settings.LOCK_TIMEOUT))
        return connection.execute_wrapper(
            _prefix(f"SET STATEMENT innodb_lock_wait_timeout={wait} FOR ")
        )
    if connection.vendor == "postgresql" and len(connection.savepoint_ids) == 0:
        with connection.cursor() as cursor:
            timeout = f"{int(settings.LOCK_TIMEOUT * 1000)}ms"
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [timeout])
    return nullcontext()


def _prefix(words: str) -> Callable[..., Any]:
    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        return execute(words + sql, params, many, context)

    return wrapper
