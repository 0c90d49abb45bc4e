"""Run database work of an event loop on a bounded pool of threads, or in tests on their thread."""

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
from contextlib import suppress
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
from chatmemory.database.retries import has_async_version
from chatmemory.database.threads import DaemonExecutor
from chatmemory.errors import ChatMemoryError, MemoryUnavailable
from chatmemory.logs import log_error

# Note [Threads and loops]
#
# Django's database code is synchronous and its connections belong to a thread. Sockets and runners
# are coroutines. They call the async version of a function (`in_pool`), which runs it on one of
# `DB_THREADS` threads, which all event loops of the process share. The number of threads bounds the
# number of connections. Without an executor of its own `sync_to_async` would run all calls of a
# process on one thread.
# - The thread closes unusable connections before and after each call, as Django does for requests.
# - A cancelled call does not stop the thread: the work ends and its transaction is committed or
#   rolled back. Its error is logged, because no caller waits for it; a refusal is not.
# - Code on a thread reaches a loop only with `call_soon_threadsafe`.
# - `DB_THREADS=0` runs each call on the thread of `sync_to_async`, which a TestCase needs: another
#   thread does not see its uncommitted data (database/host_tests.py). What differs then is in
#   `InlineThreads`; all other code calls `threads()` and does not read the setting.

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
    """Return the async version of a function that uses the database.

    `lane` returns the lane of a call from its arguments. A cancelled call still runs to its end.
    See Note [Threads and loops] and Note [Lanes].
    """

    if isinstance(function, FunctionType):
        has_async_version(f"a{function.__name__}")(function)

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        work = functools.partial(function, *args, **kwargs)
        return await threads().call(work, lambda: lane(*args, **kwargs) if lane else None)

    return call


class Threads:
    """Work is on `count` threads, and in loops of ours. See Note [Threads and loops]."""

    problem = ""
    """Why a process cannot run turns for others."""

    def __init__(self, count: int) -> None:
        self.executor = DaemonExecutor(count, name="chatmemory-db")
        # Once: it examines its function, which takes as long as the call itself.
        self._call = sync_to_async(
            _with_fresh_connection, thread_sensitive=False, executor=self.executor
        )

    async def call(self, work: Callable[[], T], lane: Callable[[], Lane | None]) -> T:
        """Return the result of database work; `lane` returns its lane."""
        key = lane()
        lock = _lock_of(key) if key is not None else None
        if lock is not None:
            await lock.acquire()
        running = asyncio.ensure_future(self._call(work))
        if lock is not None:
            # Not in `finally`: after a cancellation the thread still works on the session.
            running.add_done_callback(lambda _: lock.release())
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(_log_failure_after_cancel)
            raise

    def call_soon(self, function: Callable[[], object]) -> None:
        future = self.executor.submit(_with_fresh_connection, function)
        future.add_done_callback(functools.partial(_log_failure, "background work failed"))

    def elsewhere(self, call: Callable[[], T], *, inline: Callable[[], T]) -> T:
        """Return the result of `call`, which uses another thread, or else of `inline`."""
        return call()

    def in_background(self, start: Callable[[], object]) -> None:
        """Start work of another thread, such as the keeper's, unless it would not see the rows."""
        start()

    def use_current_loop(self) -> None:
        """Prefer the running loop for coroutines, if other threads do not see the rows."""

    def submit(
        self,
        work: Coroutine[Any, Any, T],
        submit: Callable[[Coroutine[Any, Any, T]], Future[T]],
    ) -> Future[T]:
        """Start a coroutine with `submit`, or else in the preferred loop."""
        return submit(work)

    @property
    def has_loop(self) -> bool:
        """Whether a coroutine that is submitted sees the rows."""
        return True


class InlineThreads:
    """Work is on Django's own thread, for tests that roll back: only it sees their rows."""

    problem = "CHATMEMORY['DB_THREADS'] is 0, which works only in tests. Set it to 1 or more."

    def __init__(self) -> None:
        self._test_loop: asyncio.AbstractEventLoop | None = None
        """The loop of a test's sockets: its thread sees the test's rows."""

    async def call(self, work: Callable[[], T], lane: Callable[[], Lane | None]) -> T:
        return await sync_to_async(_in_own_thread)(work)

    def call_soon(self, function: Callable[[], object]) -> None:
        function()

    def elsewhere(self, call: Callable[[], T], *, inline: Callable[[], T]) -> T:
        return inline()

    def in_background(self, start: Callable[[], object]) -> None:
        pass

    def use_current_loop(self) -> None:
        with suppress(RuntimeError):  # called from a sync view
            self._test_loop = asyncio.get_running_loop()

    def submit(
        self,
        work: Coroutine[Any, Any, T],
        submit: Callable[[Coroutine[Any, Any, T]], Future[T]],
    ) -> Future[T]:
        loop = self._test_loop
        if loop is not None and loop.is_running():
            return asyncio.run_coroutine_threadsafe(work, loop)
        return submit(work)

    @property
    def has_loop(self) -> bool:
        return self._test_loop is not None and self._test_loop.is_running()


def threads() -> Threads | InlineThreads:
    """Return where work is done now. A test may change the setting."""
    count = settings.DB_THREADS
    if not count:
        return _inline
    found = _threads.get(count)
    return found if found is not None else _threads.setdefault(count, Threads(count))


_inline = InlineThreads()
_threads: dict[int, Threads] = {}


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
    """Check that other threads see the data of a test. Raises ChatMemoryTestMixinMissing."""
    if is_test_running():
        await in_pool(require_visible_data)()


def call_soon(function: Callable[[], object]) -> None:
    """Start a function on a pool thread without waiting, and log its error.

    Without a pool (`DB_THREADS=0`) it runs on this thread, and its error is raised.
    """
    threads().call_soon(function)


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


def _in_own_thread(work: Callable[[], T]) -> T:
    _require_one_schema()
    return as_if_committed(work)


def _require_one_schema() -> None:
    """Raise TenantSchemasUnsupported if connections have a schema per tenant.

    A pool thread would use another tenant's schema than its caller.
    """
    if hasattr(write_connection(), "set_schema"):  # django-tenants, django-tenant-schemas
        raise TenantSchemasUnsupported


def _with_fresh_connection(work: Callable[[], T]) -> T:
    _thread_state.is_pool = True
    _require_one_schema()
    require_shared_data()
    close_old_connections()
    reset_queries()  # with DEBUG, Django collects queries until the next request begins
    try:
        return work()
    finally:
        close_old_connections()


@atexit.register
def _wait_at_exit() -> None:
    """Wait for running calls, but not long, so that a hanging database does not block the exit."""
    for used in _threads.values():
        used.executor.shutdown(wait=False)
        used.executor.join(EXIT_WAIT_SECONDS)


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
