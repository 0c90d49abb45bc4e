"""The lock: a session's row, held until the transaction ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from django.db import OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, QuerySet

from chatmemory.conf import settings
from chatmemory.errors import NotFound
from chatmemory.models import Session, SessionQuerySet
from chatmemory.services.actors import Actor, scope_for
from chatmemory.services.addresses import check_session_key
from chatmemory.services.audit import is_erased
from chatmemory.services.faults import Fault, database, fault_of


@contextmanager
def unit(*, durable: bool = False) -> Iterator[None]:
    """A transaction, or a savepoint in the caller's, whose lock waits end after `LOCK_TIMEOUT`.

    A longer wait raises the database error that `fault_of` maps to `Fault.WAITED`. With `durable` a
    caller's transaction is refused, as by Django's `atomic`.
    """
    connection = database()
    with transaction.atomic(using=connection.alias, durable=durable), _bounded_waits(connection):
        yield


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


def lock_any(session_key: str, by: Actor, scope: str | None, session_pk: int | None) -> Session:
    """Take the lock of a living session; with a `session_pk` that one's, even expired or purged.

    But not of one that is being erased: a hold would keep its messages.
    Needs a transaction. Raises NotFound, BadInput.
    """
    if session_pk is None:
        return lock(session_key, by, scope)
    session = lock_stored(session_pk, by, scope)
    if session.removed_at is not None and is_erased(session_pk):
        raise NotFound
    return session


def lock_pk(session_pk: int, *, nowait: bool = False) -> Session:
    """Take the lock of a session, removed or not. Needs a transaction. Raises NotFound.

    With `nowait` a held lock raises an error as in `unit`.
    """
    return _lock(Session.objects.filter(pk=session_pk), nowait=nowait)


def lock_all(sessions: SessionQuerySet) -> list[int]:
    """Take the locks of several sessions in order of their primary keys; return these.

    Needs a transaction. The conditions may be on columns of the session alone.
    """
    if not database().features.has_select_for_update:
        sessions.update(fence=F("fence"))
    else:
        sessions = sessions.select_for_update(no_key=database().vendor == "postgresql")
    return list(sessions.order_by("pk").values_list("pk", flat=True))


def update_without_waiting(
    rows: QuerySet[Any], *, skip_locked: bool = False, **columns: Any
) -> int:
    """Update rows and return how many, without a wait for a row that another has locked.

    Such a row is left out with `skip_locked`, and otherwise raises an error as in `unit`.
    """
    if not database().features.has_select_for_update:  # SQLite, which must begin with the write
        return rows.update(**columns)
    # Not one statement: MariaDB does not update a table from which its subquery selects.
    with unit():
        free = rows.select_for_update(skip_locked=skip_locked, nowait=not skip_locked)
        pks = list(free.values_list("pk", flat=True))
        updated: int = rows.model._default_manager.filter(pk__in=pks).update(**columns)
        return updated


def delete_without_waiting(rows: QuerySet[Any], *, at_most: int) -> None:
    """Delete up to so many rows, and leave out those that another has locked."""
    features = database().features
    if features.has_select_for_update_skip_locked:
        rows = rows.select_for_update(skip_locked=True)
    elif features.has_select_for_update:  # MariaDB 10.5: one locked row prevents the deletion
        rows = rows.select_for_update(nowait=True)
    try:
        with unit():
            pks = list(rows.values_list("pk", flat=True)[:at_most])
            if pks:
                rows.model._default_manager.filter(pk__in=pks).delete()
    except OperationalError as error:
        if fault_of(error) is not Fault.WAITED:
            raise


def _lock(sessions: SessionQuerySet, *, nowait: bool = False) -> Session:
    connection = database()
    if connection.vendor == "sqlite":
        # There, select_for_update is ignored, and a transaction that began with a read can't write.
        sessions.update(fence=F("fence"))
    else:
        is_key_kept = connection.vendor == "postgresql"
        sessions = sessions.select_for_update(no_key=is_key_kept, nowait=nowait)
    try:
        return sessions.get()
    except Session.DoesNotExist:
        raise NotFound from None


def _bounded_waits(connection: BaseDatabaseWrapper) -> AbstractContextManager[None]:
    if connection.vendor == "mysql":
        wait = max(1, round(settings.LOCK_TIMEOUT))
        limits = f"innodb_lock_wait_timeout={wait}, lock_wait_timeout={wait}"
        return connection.execute_wrapper(_prefix(f"SET STATEMENT {limits} FOR "))
    # A savepoint keeps the limit of its transaction, which may be the caller's.
    if connection.vendor == "postgresql" and len(connection.savepoint_ids) == 0:
        with connection.cursor() as cursor:
            timeout = f"{int(settings.LOCK_TIMEOUT * 1000)}ms"
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [timeout])
    return nullcontext()


def _prefix(words: str) -> Callable[..., Any]:
    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        # Not a savepoint's statements, nor what an outer unit has prefixed.
        is_limited = sql.startswith(("SELECT", "INSERT", "UPDATE", "DELETE"))
        return execute(words + sql if is_limited else sql, params, many, context)

    return wrapper
