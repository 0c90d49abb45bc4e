"""Locks of sessions and transactions with bounded lock waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from django.db import OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BooleanField, Expression, F, QuerySet
from django.db.models.sql.compiler import SQLCompiler

from chatmemory.conf import settings
from chatmemory.database.faults import Fault, fault_of, write_connection
from chatmemory.errors import NotFound
from chatmemory.models import Session, SessionQuerySet, Visitor

# Note [One lock for one session]
#
# The row of a session is its lock. A write to a session, its messages or the state of its turns
# first updates this row or selects it FOR UPDATE, and holds it until the transaction ends. So these
# writes happen one after the other, in all processes, and what they read about the session is valid
# until their commit. Several sessions are locked in the order of their primary keys, after the
# visitor, if one is locked, so that two transactions don't wait for each other. Renewing a lease
# and saving a partial text lock only the turn's row, see Note [Fence].
# SQLite has one write lock for the whole file, and no SELECT FOR UPDATE. A transaction that begins
# with a read fails there if another one writes meanwhile, so it must begin with a write.

# Note [Commit order]
#
# Messages are numbered by the UPDATE that locks their session. A later writer gets its numbers only
# after the earlier commit, so the messages of a session become visible in the order of their seq.
# A reader that has seen seq n never finds a smaller number later, and can continue after n. A
# database sequence does not give this: its numbers can be committed in another order.


@contextmanager
def locked_transaction(*, durable: bool = False, waits: bool = True) -> Iterator[None]:
    """Open a transaction, or a savepoint in the caller's, with lock waits up to `LOCK_TIMEOUT`.

    A longer wait, or any without `waits`, raises a database error that `fault_of` maps to
    `Fault.LOCK_TIMEOUT`. With `durable` it raises RuntimeError inside a caller's transaction, as
    Django's `atomic` does.
    """
    connection = write_connection()
    atomic = transaction.atomic(using=connection.alias, durable=durable)
    with atomic, _bounded_waits(connection, waits):
        yield


def is_one_statement() -> bool:
    """Whether a single write is its own transaction: on PostgreSQL, outside of a transaction."""
    connection = write_connection()
    return connection.vendor == "postgresql" and not connection.in_atomic_block


def statement_transaction(*, waits: bool = True) -> AbstractContextManager[None]:
    """Open a `locked_transaction` unless the one write in it is its own transaction.

    That write must contain `LockLimit` then.
    """
    return nullcontext() if is_one_statement() else locked_transaction(waits=waits)


class LockLimit(Expression):
    """A condition, always true, that limits the lock waits of its statement on PostgreSQL.

    It reads no column, so PostgreSQL evaluates it once, before it reads and locks a row.
    """

    conditional = True

    def __init__(self, *, waits: bool = True) -> None:
        super().__init__(output_field=BooleanField())
        self._waits = waits

    def as_sql(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper
    ) -> tuple[str, tuple[str | int, ...]]:
        return f"({lock_limit_sql(self._waits)}) IS NOT NULL", ()


def lock_limit_sql(waits: bool = True) -> str:
    """Return a query for PostgreSQL that limits the lock waits of the transaction."""
    milliseconds = int(settings.LOCK_TIMEOUT * 1000) if waits else 1  # 0 would mean no limit
    return f"SELECT set_config('lock_timeout', '{milliseconds}ms', true)"


def lock_at(scope: str, key: str) -> Session:
    """Lock the session with this address. Needs a transaction.

    Raises NotFound if the session is missing, removed or expired.
    """
    return lock_one(Session.objects.at(scope, key))


def lock_pk(session_pk: int, *, nowait: bool = False) -> Session:
    """Lock a session, even a removed or expired one. Needs a transaction. Raises NotFound.

    With `nowait` a held lock raises an error as in `locked_transaction`.
    """
    return lock_one(Session.objects.filter(pk=session_pk), nowait=nowait)


def lock_visitor(digest: str) -> Visitor:
    """Lock a visitor, even one that has ended. Needs a transaction. Raises NotFound.

    Lock it before any session: Note [One lock for one session].
    """
    visitors = Visitor.objects.filter(digest=digest)
    connection = write_connection()
    if connection.vendor == "sqlite":
        visitors.update(digest=F("digest"))
    else:
        visitors = visitors.select_for_update(no_key=connection.vendor == "postgresql")
    try:
        return visitors.get()
    except Visitor.DoesNotExist:
        raise NotFound from None


def lock_all(sessions: SessionQuerySet) -> list[int]:
    """Lock several sessions in the order of their primary keys; return these keys.

    Needs a transaction. `sessions` may only have conditions on columns of the session itself.
    """
    if not write_connection().features.has_select_for_update:
        sessions.update(fence=F("fence"))
    else:
        sessions = sessions.select_for_update(no_key=write_connection().vendor == "postgresql")
    return list(sessions.order_by("pk").values_list("pk", flat=True))


def update_without_waiting(
    rows: QuerySet[Any], *, skip_locked: bool = False, **columns: Any
) -> int:
    """Update rows without waiting for locks; return the number of updated rows.

    With `skip_locked` it skips locked rows; otherwise they raise an error as in
    `locked_transaction`.
    """
    if not write_connection().features.has_select_for_update:  # SQLite: begin with the write
        return rows.update(**columns)
    # Two statements, because MariaDB can't update a table that the subquery reads.
    with locked_transaction():
        unlocked = rows.select_for_update(skip_locked=skip_locked, nowait=not skip_locked)
        pks = list(unlocked.values_list("pk", flat=True))
        return rows.filter(pk__in=pks).update(**columns)  # the conditions name the session


def delete_without_waiting(rows: QuerySet[Any], *, at_most: int) -> None:
    """Delete up to `at_most` rows without waiting for locks; skip locked rows."""
    features = write_connection().features
    if features.has_select_for_update_skip_locked:
        rows = rows.select_for_update(skip_locked=True)
    elif features.has_select_for_update:  # MariaDB 10.5: one locked row then prevents the deletion
        rows = rows.select_for_update(nowait=True)
    try:
        with locked_transaction():
            pks = list(rows.values_list("pk", flat=True)[:at_most])
            if pks:
                rows.model._default_manager.filter(pk__in=pks).delete()
    except OperationalError as error:
        if fault_of(error) is not Fault.LOCK_TIMEOUT:
            raise


def lock_one(sessions: SessionQuerySet, *, nowait: bool = False) -> Session:
    """Lock the only session of a queryset. Needs a transaction. Raises NotFound."""
    connection = write_connection()
    if connection.vendor == "sqlite":
        # Django ignores select_for_update on SQLite. See Note [One lock for one session].
        sessions.update(fence=F("fence"))
    else:
        # The lock of an UPDATE, FOR NO KEY UPDATE: checks of foreign keys do not wait for it.
        no_key = connection.vendor == "postgresql"
        sessions = sessions.select_for_update(no_key=no_key, nowait=nowait)
    try:
        return sessions.get()
    except Session.DoesNotExist:
        raise NotFound from None


def _bounded_waits(connection: BaseDatabaseWrapper, waits: bool) -> AbstractContextManager[None]:
    if connection.vendor == "mysql":
        # For each statement: a SET would remain on the connection, which the host uses too.
        wait = max(1, round(settings.LOCK_TIMEOUT)) if waits else 0
        limits = f"innodb_lock_wait_timeout={wait}, lock_wait_timeout={wait}"
        return connection.execute_wrapper(_add_prefix(f"SET STATEMENT {limits} FOR "))
    # A savepoint keeps the limit of its transaction, which can be a caller's.
    if connection.vendor == "postgresql" and len(connection.savepoint_ids) == 0:
        with connection.cursor() as cursor:
            cursor.execute(lock_limit_sql(waits))
    return nullcontext()


def _add_prefix(prefix: str) -> Callable[..., Any]:
    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        # Statements for savepoints accept no prefix, and one from an outer block is enough.
        is_limited = sql.startswith(("SELECT", "INSERT", "UPDATE", "DELETE"))
        return execute(prefix + sql if is_limited else sql, params, many, context)

    return wrapper
