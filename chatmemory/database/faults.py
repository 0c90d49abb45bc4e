"""Classify database errors by SQLSTATE, errno or SQLite's error code, never by their text."""

from __future__ import annotations

from contextlib import AbstractContextManager
from enum import Enum, auto
from types import TracebackType

from django.db import (
    DatabaseError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    router,
)
from django.db import connections as all_connections
from django.db.backends.base.base import BaseDatabaseWrapper

from chatmemory.models import Session


class Fault(Enum):
    """A kind of database error."""

    CONFLICT = auto()
    """The transaction was rolled back because of a concurrent one and can be retried."""
    LOCK_TIMEOUT = auto()
    """Another transaction held the lock too long."""
    READ_ONLY = auto()
    """The server is a standby. Nothing was committed; another server may accept the write."""
    CONNECTION_LOST = auto()
    """The connection or the server was lost; it is unknown whether a commit succeeded."""
    TOO_MANY_CONNECTIONS = auto()
    """The server accepts no more connections."""
    OUT_OF_SPACE = auto()
    """The server cannot write: no disk space or memory, or a read-only file. A retry is useless."""
    DUPLICATE = auto()
    """A unique constraint refused the row."""
    MISSING_PARENT = auto()
    """A foreign key refused the row: its parent does not exist."""
    BAD_DATA = auto()
    """The database can't store the value."""
    TOO_LARGE = auto()
    """The row or statement exceeds a limit of the database."""
    NO_TABLES = auto()
    """A table or the database is missing, as while a restore drops and creates it."""
    OTHER = auto()


# https://www.postgresql.org/docs/current/errcodes-appendix.html
_SQLSTATES = {
    "40001": Fault.CONFLICT,  # serialization_failure
    "40P01": Fault.CONFLICT,  # deadlock_detected
    "55P03": Fault.LOCK_TIMEOUT,  # lock_not_available
    # A server with a statement_timeout cancels a wait for a lock with this code.
    "57014": Fault.LOCK_TIMEOUT,  # query_canceled
    "25P03": Fault.CONNECTION_LOST,  # idle_in_transaction_session_timeout
    "25P04": Fault.CONNECTION_LOST,  # transaction_timeout
    "25006": Fault.READ_ONLY,  # read_only_sql_transaction
    "57P01": Fault.CONNECTION_LOST,  # admin_shutdown
    "57P02": Fault.CONNECTION_LOST,  # crash_shutdown
    "57P03": Fault.CONNECTION_LOST,  # cannot_connect_now
    "57P04": Fault.CONNECTION_LOST,  # database_dropped
    "57P05": Fault.CONNECTION_LOST,  # idle_session_timeout
    "53300": Fault.TOO_MANY_CONNECTIONS,  # too_many_connections
    "53100": Fault.OUT_OF_SPACE,  # disk_full
    "53200": Fault.OUT_OF_SPACE,  # out_of_memory
    "23505": Fault.DUPLICATE,  # unique_violation
    "23503": Fault.MISSING_PARENT,  # foreign_key_violation
    "42P01": Fault.NO_TABLES,  # undefined_table
    "3D000": Fault.NO_TABLES,  # invalid_catalog_name
    "54000": Fault.TOO_LARGE,  # program_limit_exceeded
}
# Other codes of a class: connection exception, system error, data exception.
_SQLSTATE_CLASSES = {"08": Fault.CONNECTION_LOST, "58": Fault.OUT_OF_SPACE, "22": Fault.BAD_DATA}
# https://mariadb.com/kb/en/mariadb-error-code-reference/
_ERRNOS = {
    1213: Fault.CONFLICT,  # ER_LOCK_DEADLOCK
    1020: Fault.CONFLICT,  # ER_CHECKREAD, of a snapshot that is too old
    1205: Fault.LOCK_TIMEOUT,  # ER_LOCK_WAIT_TIMEOUT
    # These cancel a statement, also one that waits for a lock; the connection stays.
    1317: Fault.LOCK_TIMEOUT,  # ER_QUERY_INTERRUPTED, by KILL QUERY
    1969: Fault.LOCK_TIMEOUT,  # ER_STATEMENT_TIMEOUT, by max_statement_time
    3024: Fault.LOCK_TIMEOUT,  # ER_QUERY_TIMEOUT, of MySQL
    2002: Fault.CONNECTION_LOST,  # CR_CONNECTION_ERROR
    2003: Fault.CONNECTION_LOST,  # CR_CONN_HOST_ERROR
    2005: Fault.CONNECTION_LOST,  # CR_UNKNOWN_HOST, while the name server does not answer
    2006: Fault.CONNECTION_LOST,  # CR_SERVER_GONE_ERROR
    2012: Fault.CONNECTION_LOST,  # CR_SERVER_HANDSHAKE_ERR
    2013: Fault.CONNECTION_LOST,  # CR_SERVER_LOST
    2026: Fault.CONNECTION_LOST,  # CR_SSL_CONNECTION_ERROR
    2027: Fault.CONNECTION_LOST,  # CR_MALFORMED_PACKET
    2055: Fault.CONNECTION_LOST,  # CR_SERVER_LOST_EXTENDED
    1043: Fault.CONNECTION_LOST,  # ER_HANDSHAKE_ERROR
    1079: Fault.CONNECTION_LOST,  # ER_SHUTDOWN_COMPLETE
    1152: Fault.CONNECTION_LOST,  # ER_ABORTING_CONNECTION
    1158: Fault.CONNECTION_LOST,  # ER_NET_READ_ERROR
    1159: Fault.CONNECTION_LOST,  # ER_NET_READ_INTERRUPTED
    1160: Fault.CONNECTION_LOST,  # ER_NET_ERROR_ON_WRITE
    1161: Fault.CONNECTION_LOST,  # ER_NET_WRITE_INTERRUPTED
    1184: Fault.CONNECTION_LOST,  # ER_NEW_ABORTING_CONNECTION
    1927: Fault.CONNECTION_LOST,  # ER_CONNECTION_KILLED
    4031: Fault.CONNECTION_LOST,  # ER_CLIENT_INTERACTION_TIMEOUT of MySQL, by wait_timeout
    1047: Fault.CONNECTION_LOST,  # ER_UNKNOWN_COM_ERROR, of a Galera node that is not ready
    1053: Fault.CONNECTION_LOST,  # ER_SERVER_SHUTDOWN
    1290: Fault.READ_ONLY,  # ER_OPTION_PREVENTS_STATEMENT, such as read_only
    1792: Fault.READ_ONLY,  # ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
    1836: Fault.READ_ONLY,  # ER_READ_ONLY_MODE
    1040: Fault.TOO_MANY_CONNECTIONS,  # ER_CON_COUNT_ERROR
    1203: Fault.TOO_MANY_CONNECTIONS,  # ER_TOO_MANY_USER_CONNECTIONS
    1114: Fault.OUT_OF_SPACE,  # ER_RECORD_FILE_FULL
    1021: Fault.OUT_OF_SPACE,  # ER_DISK_FULL
    1062: Fault.DUPLICATE,  # ER_DUP_ENTRY
    1452: Fault.MISSING_PARENT,  # ER_NO_REFERENCED_ROW_2
    1366: Fault.BAD_DATA,  # ER_TRUNCATED_WRONG_VALUE_FOR_FIELD
    1406: Fault.BAD_DATA,  # ER_DATA_TOO_LONG
    1146: Fault.NO_TABLES,  # ER_NO_SUCH_TABLE
    1049: Fault.NO_TABLES,  # ER_BAD_DB_ERROR
    1046: Fault.NO_TABLES,  # ER_NO_DB_ERROR, if it was dropped and created
    1153: Fault.TOO_LARGE,  # ER_NET_PACKET_TOO_LARGE
}
# https://www.sqlite.org/rescode.html
#
# A wait for a lock and a conflict have the same code; a missing table has none of its own. A
# read-only file is not a standby, since each connection opens the same file.
_SQLITE_CODES = {
    5: Fault.CONFLICT,  # SQLITE_BUSY
    6: Fault.CONFLICT,  # SQLITE_LOCKED
    8: Fault.OUT_OF_SPACE,  # SQLITE_READONLY
    10: Fault.OUT_OF_SPACE,  # SQLITE_IOERR
    13: Fault.OUT_OF_SPACE,  # SQLITE_FULL
    14: Fault.CONNECTION_LOST,  # SQLITE_CANTOPEN
    18: Fault.TOO_LARGE,  # SQLITE_TOOBIG
    787: Fault.MISSING_PARENT,  # SQLITE_CONSTRAINT_FOREIGNKEY
    1555: Fault.DUPLICATE,  # SQLITE_CONSTRAINT_PRIMARYKEY
    2067: Fault.DUPLICATE,  # SQLITE_CONSTRAINT_UNIQUE
}


def fault_of(error: DatabaseError | InterfaceError) -> Fault:
    """Return the kind of an error."""
    cause = error.__cause__
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        # The last byte of an extended code is its primary code.
        return _SQLITE_CODES.get(code) or _SQLITE_CODES.get(code & 0xFF, Fault.OTHER)
    if hasattr(cause, "sqlstate"):
        state = getattr(cause, "sqlstate", None)
        if state is None:  # psycopg raised it: no connection, or a value that it cannot send
            is_lost = isinstance(error, InterfaceError | OperationalError)
            return Fault.CONNECTION_LOST if is_lost else Fault.BAD_DATA
        return _SQLSTATES.get(state) or _SQLSTATE_CLASSES.get(state[:2], Fault.OTHER)
    arguments = getattr(cause, "args", ())
    if arguments and isinstance(arguments[0], int):
        return _ERRNOS.get(arguments[0], Fault.OTHER)
    return Fault.CONNECTION_LOST if isinstance(error, InterfaceError) else Fault.OTHER


TRANSIENT = frozenset(
    {
        Fault.CONFLICT,
        Fault.LOCK_TIMEOUT,
        Fault.READ_ONLY,
        Fault.CONNECTION_LOST,
        Fault.TOO_MANY_CONNECTIONS,
    }
)
"""The errors after which the same transaction can succeed later."""


def is_transient(error: BaseException | None) -> bool:
    """Whether an error of the database is one of `TRANSIENT`."""
    return isinstance(error, DatabaseError | InterfaceError) and fault_of(error) in TRANSIENT


def is_unavailable(error: BaseException) -> bool:
    """Whether an error means that the database cannot be reached, or has no tables."""
    kinds = (Fault.CONNECTION_LOST, Fault.TOO_MANY_CONNECTIONS, Fault.NO_TABLES)
    return isinstance(error, DatabaseError | InterfaceError) and fault_of(error) in kinds


def write_connection() -> BaseDatabaseWrapper:
    """Return this thread's connection to the database to which Django routes writes of sessions."""
    return all_connections[router.db_for_write(Session)]


class ignored_duplicate(AbstractContextManager[None, bool]):  # noqa: N801  # as contextlib.suppress
    """Suppress the error of a unique constraint.

    Put it around the transaction: after an error PostgreSQL accepts no statement inside. If the
    block returns, the statements after it run only for a duplicate.
    """

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return isinstance(error, IntegrityError) and fault_of(error) is Fault.DUPLICATE


def discard_connection_after(error: DatabaseError | InterfaceError) -> None:
    """Close this thread's connections that the error has made unusable."""
    connection = write_connection()
    fault = fault_of(error)
    # Django returns an open connection to its pool, which would reuse it for the standby server.
    if fault is Fault.READ_ONLY and connection.vendor == "postgresql" and connection.connection:
        connection.connection.close()
    if fault in (Fault.CONNECTION_LOST, Fault.READ_ONLY) and not connection.in_atomic_block:
        connection.close()
    if fault is Fault.CONNECTION_LOST:
        # It may be to the database of the users or the Django sessions, which can be another one.
        for other in all_connections.all(initialized_only=True):
            other.close_if_unusable_or_obsolete()
