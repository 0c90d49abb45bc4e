"""Run database work of an event loop on a bounded pool of threads."""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import FunctionType
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections, reset_queries

from chatmemory.conf import settings
from chatmemory.database.faults import write_connection
from chatmemory.database.host_tests import (
    as_if_committed,
    is_test_running,
    require_shared_data,
    require_visible_data,
)
from chatmemory.database.retries import has_twin
from chatmemory.database.threads import DaemonExecutor
from chatmemory.errors import ChatMemoryError, MemoryUnavailable
from chatmemory.logs import log_error

# Note [Threads and loops]
#
# Django's database code is synchronous and its connections belong to a thread. Sockets and runners
# are coroutines. Each public function has an async twin (`in_pool`) that runs it on one of
# `DB_THREADS` threads, which all event loops of the process share. The number of threads bounds the
# number of connections. Without an executor of its own `sync_to_async` would run all calls of a
# process on one thread.
# - The thread closes unusable connections before and after each call, as Django does for requests.
# - A cancelled twin does not stop the thread: the call ends and its transaction is committed or
#   rolled back. Its error is logged, because no caller waits for it; a refusal is not.
# - Code on a thread reaches a loop only with `call_soon_threadsafe`.
# - `DB_THREADS=0` runs each call on the thread of `sync_to_async`, which a TestCase needs: another
#   thread does not see its uncommitted data (database/host_tests.py).

# Note [Lanes]
#
# Writes to one session wait for its lock (Note [One lock for one session]). If they waited on pool
# threads, a few writes to a blocked session would occupy all threads, and the other sessions would
# stop. So in each event loop a lane, usually the address of a session, admits one call to the pool
# at a time; the next ones wait in the loop, where they cost no thread. A lane is free again when
# the thread has finished, not when its caller is cancelled.

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

Lane = tuple[object, ...]
"""The key of a lane, such as the address of a session. See Note [Lanes]."""

EXIT_WAIT_SECONDS = 0.5
"""How long a process waits at its exit for running calls."""

_thread_state = threading.local()

_executors: dict[int, DaemonExecutor] = {}
# A lane's lock exists only while a call holds or awaits it: there are as many lanes as sessions.
_lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[Lane, asyncio.Lock]] = (
    WeakKeyDictionary()
)


class TenantSchemasUnsupported(ImproperlyConfigured):
    """chatmemory cannot use a database with a schema per tenant; see check chatmemory.E014."""

    def __init__(self) -> None:
        super().__init__(type(self).__doc__)


def in_pool(
    function: Callable[P, T], *, lane: Callable[..., Lane] | None = None
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return the async twin of a function that uses the database.

    `lane` returns the lane of a call from its arguments. A cancelled call still runs to its end.
    See Note [Threads and loops] and Note [Lanes].
    """

    if isinstance(function, FunctionType):
        has_twin(f"a{function.__name__}")(function)

    @functools.wraps(function)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        threads = settings.DB_THREADS
        if not threads:
            return await sync_to_async(_in_own_thread)(function, *args, **kwargs)
        lock = _lock_of(lane(*args, **kwargs)) if lane else None
        if lock is not None:
            await lock.acquire()
        running = asyncio.ensure_future(_call_in_pool(threads)(function, *args, **kwargs))
        if lock is not None:
            # Not in `finally`: after a cancellation the thread still works on the session.
            running.add_done_callback(lambda _: lock.release())
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(_log_failure_after_cancel)
            raise

    return twin


def _log_failure_after_cancel(call: asyncio.Future[Any]) -> None:
    # A refusal, such as Held, is an answer. Without a caller it needs no log line.
    error = _error_of(call)
    if isinstance(error, MemoryUnavailable) or not isinstance(error, ChatMemoryError):
        _log_failure("a call failed after its caller was cancelled", call)


def _log_failure(message: str, call: asyncio.Future[Any] | Future[Any]) -> None:
    """Log the error of a call that no caller waits for."""
    error = _error_of(call)
    if error is not None:
        log_error(logger, message, error=error)


def _error_of(call: asyncio.Future[Any] | Future[Any]) -> BaseException | None:
    return None if call.cancelled() else call.exception()


async def require_test_data() -> None:
    """Check that async twins see the data of a running test. Raises ChatMemoryTestMixinMissing."""
    if is_test_running():
        await in_pool(require_visible_data)()


def call_soon(function: Callable[[], object]) -> None:
    """Start a function on a pool thread without waiting, and log its error.

    Without a pool (`DB_THREADS=0`) it runs on this thread, and its error is raised.
    """
    threads = settings.DB_THREADS
    if not threads:
        function()
        return
    future = _executor(threads).submit(_with_fresh_connection, function)
    future.add_done_callback(functools.partial(_log_failure, "background work failed"))


def release_connections() -> None:
    """Close this thread's connections before a long wait, except those in a transaction.

    `close_old_connections` would keep connections that are younger than CONN_MAX_AGE.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def is_pool_thread() -> bool:
    """Whether this is a pool thread, for which sockets and runs wait."""
    return getattr(_thread_state, "is_pool", False)


def _in_own_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    _require_one_schema()
    return as_if_committed(function, *args, **kwargs)


def _require_one_schema() -> None:
    """Raise TenantSchemasUnsupported if connections have a schema per tenant.

    A pool thread would use another tenant's schema than its caller.
    """
    if hasattr(write_connection(), "set_schema"):  # django-tenants, django-tenant-schemas
        raise TenantSchemasUnsupported


def _with_fresh_connection(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    _thread_state.is_pool = True
    _require_one_schema()
    require_shared_data()
    close_old_connections()
    reset_queries()  # with DEBUG, Django collects queries until the next request begins
    try:
        return function(*args, **kwargs)
    finally:
        close_old_connections()


@functools.cache  # it examines its function, which takes as long as the call itself
def _call_in_pool(threads: int) -> Callable[..., Coroutine[Any, Any, Any]]:
    return sync_to_async(
        _with_fresh_connection, thread_sensitive=False, executor=_executor(threads)
    )


def _executor(threads: int) -> DaemonExecutor:
    if threads not in _executors:
        _executors[threads] = DaemonExecutor(threads, name="chatmemory-db")
    return _executors[threads]


@atexit.register
def _wait_at_exit() -> None:
    """Wait for running calls, but not long, so that a hanging database does not block the exit."""
    for executor in _executors.values():
        executor.shutdown(wait=False)
        executor.join(EXIT_WAIT_SECONDS)


def _forget_inherited_pool() -> None:
    """Forget Django's pool and connection of the parent process, which also uses their sockets.

    They are kept in `_inherited`: if they were closed, the server would end those of the parent.
    """
    backend = sys.modules.get("django.db.backends.postgresql.base")
    pools = getattr(getattr(backend, "DatabaseWrapper", None), "_connection_pools", {})
    connection = write_connection()
    if (pool := pools.pop(connection.alias, None)) is not None:
        _inherited.append((pool, connection.connection))
        if not connection.in_atomic_block:
            connection.connection = None


_inherited: list[object] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited_pool)


def _lock_of(lane: Lane) -> asyncio.Lock:
    locks = _lanes.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    lock = locks.get(lane)
    if lock is None:
        lock = locks[lane] = asyncio.Lock()
    return lock
