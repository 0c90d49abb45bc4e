"""What a database error means, and what to do about it.

Told by SQLSTATE, errno or SQLite's error code, never by text.
"""

from __future__ import annotations

import logging
import random
import time
import traceback
from collections.abc import Callable
from enum import Enum, auto
from itertools import count
from types import CodeType
from typing import Any, TypeVar

from django.core.exceptions import SynchronousOnlyOperation
from django.db import (
    DatabaseError,
    InterfaceError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    router,
    transaction,
)
from django.db import connections as all_connections
from django.db.backends.base.base import BaseDatabaseWrapper

from chatmemory.errors import BadInput, ChatMemoryError, MemoryUnavailable, NotFound
from chatmemory.models import Session

logger = logging.getLogger(__name__)

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])

DEADLINE = 8.0
"""How long one call goes on trying, in seconds."""

FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.5
WAITS = 2
"""How often a call waits for a lock in vain before it gives up."""


class Fault(Enum):
    """A kind of database error."""

    CONFLICT = auto()
    """Surely rolled back: try again."""
    WAITED = auto()
    """Another held the lock too long."""
    READ_ONLY = auto()
    """The server accepts no writes, as a standby does: surely rolled back, try another server."""
    LOST = auto()
    """The connection or server is gone; a commit may or may not have happened."""
    CROWDED = auto()
    """No connection to be had."""
    FULL = auto()
    """Out of disk or memory; trying again soon is in vain."""
    DUPLICATE = auto()
    """A unique constraint."""
    ORPHAN = auto()
    """The parent row is gone."""
    BAD_DATA = auto()
    """The database can't hold the value."""
    TOO_LARGE = auto()
    OTHER = auto()


_SQLSTATES = {
    "40001": Fault.CONFLICT,
    "40P01": Fault.CONFLICT,
    "55P03": Fault.WAITED,
    "57014": Fault.WAITED,
    "25P03": Fault.LOST,
    "25006": Fault.READ_ONLY,
    "57P01": Fault.LOST,
    "57P02": Fault.LOST,
    "57P03": Fault.LOST,
    "53300": Fault.CROWDED,
    "53100": Fault.FULL,
    "53200": Fault.FULL,
    "23505": Fault.DUPLICATE,
    "23503": Fault.ORPHAN,
    "54000": Fault.TOO_LARGE,
}
_SQLSTATE_CLASSES = {"08": Fault.LOST, "58": Fault.FULL, "22": Fault.BAD_DATA}
_ERRNOS = {
    1213: Fault.CONFLICT,
    1020: Fault.CONFLICT,
    1205: Fault.WAITED,
    2002: Fault.LOST,
    2003: Fault.LOST,
    2006: Fault.LOST,
    2013: Fault.LOST,
    2055: Fault.LOST,
    1047: Fault.LOST,
    1053: Fault.LOST,
    1290: Fault.READ_ONLY,
    1792: Fault.READ_ONLY,
    1836: Fault.READ_ONLY,
    1040: Fault.CROWDED,
    1203: Fault.CROWDED,
    1114: Fault.FULL,
    1021: Fault.FULL,
    1062: Fault.DUPLICATE,
    1452: Fault.ORPHAN,
    1366: Fault.BAD_DATA,
    1406: Fault.BAD_DATA,
    1153: Fault.TOO_LARGE,
}
_SQLITE_CODES = {
    5: Fault.CONFLICT,
    6: Fault.CONFLICT,
    517: Fault.CONFLICT,
    8: Fault.FULL,
    10: Fault.FULL,
    13: Fault.FULL,
    14: Fault.LOST,
    18: Fault.TOO_LARGE,
    787: Fault.ORPHAN,
    1555: Fault.DUPLICATE,
    2067: Fault.DUPLICATE,
}


def fault_of(error: DatabaseError | InterfaceError) -> Fault:
    """What kind of error this is, by its code."""
    cause = error.__cause__
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return _SQLITE_CODES.get(code) or _SQLITE_CODES.get(code & 0xFF, Fault.OTHER)
    if hasattr(cause, "sqlstate"):
        state = getattr(cause, "sqlstate", None)
        if state is None:
            is_lost = isinstance(error, InterfaceError | OperationalError)
            return Fault.LOST if is_lost else Fault.BAD_DATA
        return _SQLSTATES.get(state) or _SQLSTATE_CLASSES.get(state[:2], Fault.OTHER)
    arguments = getattr(cause, "args", ())
    if arguments and isinstance(arguments[0], int):
        return _ERRNOS.get(arguments[0], Fault.OTHER)
    return Fault.LOST if isinstance(error, InterfaceError) else Fault.OTHER


def database() -> BaseDatabaseWrapper:
    """This thread's connection to the database in which sessions are written."""
    return all_connections[router.db_for_write(Session)]


def durably(work: Callable[[], T], *, is_repeatable: bool) -> T:
    """Call `work`, again where an error says that it can be, and return what it returns.

    `is_repeatable`: a second call does no harm even if the first was committed. Inside a caller's
    transaction `work` is called once, and an error marks the block for rollback: on MariaDB a
    deadlock has undone all of it already.

    After a failover a pool may hold connections to the former primary, which now only reads. Each
    is discarded and the next one tried.

    Raises MemoryUnavailable after 8 seconds, or immediately if a retry is useless; and
    SynchronousOnlyOperation in an event loop, with the name of the coroutine function to use.
    """
    connection = database()
    deadline = time.monotonic() + DEADLINE
    waits = 0
    for attempt in count():
        try:
            return work()
        except (ProgrammingError, NotSupportedError):
            raise  # a mistake in the code or a missing migration, no trouble of the database's
        except SynchronousOnlyOperation as error:
            raise SynchronousOnlyOperation(_twin_hint()) from error
        except (DatabaseError, InterfaceError) as error:
            fault = fault_of(error)
            waits += fault is Fault.WAITED
            _refuse_bad_data(fault, error)
            discard_connection_after(error)
            if connection.in_atomic_block:
                transaction.set_rollback(True, using=connection.alias)
                raise MemoryUnavailable(_inside_hint(connection)) from error
            longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(attempt, 10))
            pause = random.uniform(0, longest)  # noqa: S311  # no secret
            may_retry = (
                fault in (Fault.CONFLICT, Fault.CROWDED, Fault.READ_ONLY)
                or (fault is Fault.WAITED and waits < WAITS)
                or (fault is Fault.LOST and is_repeatable)
            )
            if not may_retry or time.monotonic() + pause > deadline:
                logger.warning("gave up on the database: %s", fault.name)
                raise MemoryUnavailable from error
            time.sleep(pause)
    raise AssertionError("unreachable")


def has_twin(name: str) -> Callable[[C], C]:
    """Decorate a function with the name of its async twin, for the error in an event loop."""

    def note(function: C) -> C:
        _twins[function.__code__] = name
        return function

    return note


_twins: dict[CodeType, str] = {}


def _twin_hint() -> str:
    """Name the twin of the outermost function on the stack that has one: the caller's."""
    codes = [frame.f_code for frame, _ in traceback.walk_stack(None)]
    name = next((_twins[code] for code in reversed(codes) if code in _twins), None)
    use = f"use `await {name}(…)` instead" if name else "call this in a thread"
    return f"An event loop is running: {use}."


def discard_connection_after(error: DatabaseError | InterfaceError) -> None:
    """Close this thread's connection after an error that makes it useless.

    Closes the driver's connection first: Django returns an open one to its pool, which would lend
    the connection to a server that is now a standby again and again.
    """
    connection = database()
    fault = fault_of(error)
    if fault is Fault.READ_ONLY and connection.vendor == "postgresql" and connection.connection:
        connection.connection.close()
    if fault in (Fault.LOST, Fault.READ_ONLY) and not connection.in_atomic_block:
        connection.close()


def _refuse_bad_data(fault: Fault, error: Exception) -> None:
    refusals: dict[Fault, ChatMemoryError] = {
        Fault.BAD_DATA: BadInput("The database can't hold this text.", code="bad_text"),
        Fault.TOO_LARGE: BadInput("The database can't take a row this large.", code="too_large"),
        Fault.ORPHAN: NotFound(),
    }
    if fault in refusals:
        raise refusals[fault] from error


def _inside_hint(connection: BaseDatabaseWrapper) -> str:
    hint = "The memory can't be reached; the transaction around this call must be rolled back."
    if connection.vendor == "sqlite":
        hint += ' Set "transaction_mode": "IMMEDIATE" in the OPTIONS of the database.'
    return hint
