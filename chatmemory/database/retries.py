"""Retry database work after transient errors."""

from __future__ import annotations

import inspect
import logging
import random
import time
import traceback
from collections.abc import Callable
from functools import partial, wraps
from itertools import count
from types import CodeType
from typing import Any, ParamSpec, TypeVar

from django.core.exceptions import SynchronousOnlyOperation
from django.db import (
    DatabaseError,
    InterfaceError,
    NotSupportedError,
    ProgrammingError,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper

from chatmemory.database.faults import Fault, discard_connection_after, fault_of, write_connection
from chatmemory.errors import BadInput, ChatMemoryError, MemoryUnavailable, NotFound

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])

DEADLINE_SECONDS = 8.0
"""The time in seconds after which a call is not retried."""

FIRST_PAUSE_SECONDS = 0.01
MAX_PAUSE_SECONDS = 0.5
MAX_LOCK_TIMEOUTS = 2
"""The number of lock timeouts after which a call fails."""


def retried(*, is_repeatable: bool) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function that runs one transaction, so that `durably` calls it."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return durably(partial(function, *args, **kwargs), is_repeatable=is_repeatable)

        return call

    return decorate


def durably(work: Callable[[], T], *, is_repeatable: bool) -> T:
    """Call `work`, retry it after transient database errors, and return its result.

    `is_repeatable` means that a second call is harmless even if the first one was committed; then
    `work` is retried after a lost connection too. Inside a caller's transaction `work` is called
    once, and an error marks the transaction for rollback.

    Raises MemoryUnavailable after 8 seconds, or immediately if a retry is useless. In an event loop
    it raises SynchronousOnlyOperation, with the name of the coroutine function to use.
    """
    connection = write_connection()
    deadline = time.monotonic() + DEADLINE_SECONDS
    lock_timeouts = 0
    for attempt in count():
        try:
            return work()
        except SynchronousOnlyOperation as error:
            raise SynchronousOnlyOperation(_twin_hint(work)) from error
        except (DatabaseError, InterfaceError) as error:
            fault = fault_of(error)
            if fault is not Fault.NO_TABLES and isinstance(
                error, ProgrammingError | NotSupportedError
            ):
                raise  # a bug or a missing migration, not a transient error
            lock_timeouts += fault is Fault.LOCK_TIMEOUT
            _raise_permanent_error(fault, error)
            # After a failover a pool can hold connections to the former primary, which now only
            # reads. Each retry discards one.
            discard_connection_after(error)
            if connection.in_atomic_block:
                # No retry: on MariaDB a deadlock has rolled back the caller's statements too.
                transaction.set_rollback(True, using=connection.alias)
                raise MemoryUnavailable(_rollback_hint(connection)) from error
            max_pause = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(attempt, 10))
            pause = random.uniform(0, max_pause)  # noqa: S311  # no secret
            may_retry = (
                fault in (Fault.CONFLICT, Fault.TOO_MANY_CONNECTIONS, Fault.READ_ONLY)
                or (fault is Fault.LOCK_TIMEOUT and lock_timeouts < MAX_LOCK_TIMEOUTS)
                or (fault is Fault.CONNECTION_LOST and is_repeatable)
            )
            if not may_retry or time.monotonic() + pause > deadline:
                logger.warning("database error, no further retry: %s", fault.name)
                raise MemoryUnavailable from error
            time.sleep(pause)
    raise AssertionError("unreachable")


def has_twin(name: str) -> Callable[[C], C]:
    """Decorate a function to register the name of its async twin for the hint of `durably`."""

    def register(function: C) -> C:
        _twins[inspect.unwrap(function).__code__] = name
        return function

    return register


_twins: dict[CodeType, str] = {}


def _twin_hint(work: Callable[[], object]) -> str:
    """Return a hint with the twin of the outermost function that has one, as the host called it."""
    function = work.func if isinstance(work, partial) else work
    codes = [getattr(function, "__code__", None)]
    codes += [frame.f_code for frame, _ in traceback.walk_stack(None)]
    name = next((_twins[code] for code in reversed(codes) if code in _twins), None)
    use = f"use `await {name}(…)` instead" if name else "call this in a thread"
    return f"An event loop is running: {use}."


def _raise_permanent_error(fault: Fault, error: Exception) -> None:
    refusals: dict[Fault, ChatMemoryError] = {
        Fault.BAD_DATA: BadInput("The database can't store this text.", code="bad_text"),
        Fault.TOO_LARGE: BadInput(
            "The row exceeds the maximum size of the database.", code="too_large"
        ),
        Fault.MISSING_PARENT: NotFound(),
    }
    if fault in refusals:
        raise refusals[fault] from error


def _rollback_hint(connection: BaseDatabaseWrapper) -> str:
    hint = "The memory is unavailable. Roll back the transaction around this call."
    if connection.vendor == "sqlite":
        hint += ' Set "transaction_mode": "IMMEDIATE" in the OPTIONS of the database to avoid this.'
    return hint
