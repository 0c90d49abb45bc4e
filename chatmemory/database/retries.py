"""Retry database work after transient errors."""

from __future__ import annotations

import inspect
import logging
import random
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
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

from chatmemory.database.faults import (
    TRANSIENT,
    Fault,
    discard_connection_after,
    fault_of,
    write_connection,
)
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
            raise SynchronousOnlyOperation(_async_advice(work)) from error
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
                raise MemoryUnavailable(_rollback_advice(connection)) from error
            max_pause = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(attempt, 10))
            pause = random.uniform(0, max_pause)  # noqa: S311  # no secret
            may_retry = (
                fault in TRANSIENT
                and (fault is not Fault.LOCK_TIMEOUT or lock_timeouts < MAX_LOCK_TIMEOUTS)
                and (fault is not Fault.CONNECTION_LOST or is_repeatable)
            )
            if not may_retry or time.monotonic() + pause > deadline:
                logger.warning("database error, no further retry: %s", fault.name)
                raise MemoryUnavailable from error
            time.sleep(pause)
    raise AssertionError("unreachable")


def has_async_version(name: str) -> Callable[[C], C]:
    """Decorate a function to register its async version beside it for the advice of `durably`."""

    def register(function: C) -> C:
        original = inspect.unwrap(function)
        _async_versions[original.__code__] = _AsyncVersion(original, name)
        return function

    return register


@dataclass(frozen=True, slots=True)
class _AsyncVersion:
    """The name of the async version of a function, in the same class or module."""

    function: Callable[..., Any]
    name: str

    def exists(self) -> bool:
        """Return whether a caller finds it; a function can be wrapped without getting a name."""
        found: object = sys.modules.get(self.function.__module__)
        for part in self.function.__qualname__.split(".")[:-1]:
            found = getattr(found, part, None)
        return hasattr(found, self.name)


_async_versions: dict[CodeType, _AsyncVersion] = {}


def _async_advice(work: Callable[[], object]) -> str:
    """Return advice with the async version of the outermost function that has one."""
    function = work.func if isinstance(work, partial) else work
    codes = [getattr(function, "__code__", None)]
    # Not None: how many frames are skipped then depends on the version of Python.
    codes += [frame.f_code for frame, _ in traceback.walk_stack(inspect.currentframe())]
    registered = (_async_versions[code] for code in reversed(codes) if code in _async_versions)
    found = next((version for version in registered if version.exists()), None)
    use = f"use `await {found.name}(…)` instead" if found else "call this in a thread"
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


def _rollback_advice(connection: BaseDatabaseWrapper) -> str:
    advice = "The memory is unavailable. Roll back the transaction around this call."
    if connection.vendor == "sqlite":
        advice += ' Set "transaction_mode": "IMMEDIATE" in the OPTIONS of the database.'
    return advice
