"""Database work of the event loop: on threads of our own, one write of a session at a time."""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
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
from chatmemory.logs import log_error
from chatmemory.services.actors import Actor
from chatmemory.services.faults import database, has_twin
from chatmemory.services.rollback import (
    as_if_committed,
    is_test_running,
    require_shared_data,
    require_visible_data,
)
from chatmemory.threads import DaemonExecutor

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

Lane = tuple[object, ...]
"""What only one call of the pool may work on at a time."""

LAST_SECONDS = 0.5
"""How long the end of the process waits for what the threads are at."""

_here = threading.local()

_executors: dict[int, DaemonExecutor] = {}
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
    """The async twin of a function that works with the database.

    It runs on `DB_THREADS` threads that all twins of the process share; `lane` gives, from the
    arguments, what only one of them may work on at a time. A cancelled call still ends what it
    began.
    """

    if isinstance(function, FunctionType):
        has_twin(f"a{function.__name__}")(function)

    @functools.wraps(function)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        threads = settings.DB_THREADS
        if not threads:
            return await sync_to_async(_in_own_thread)(function, *args, **kwargs)
        call = sync_to_async(
            _with_fresh_connection, thread_sensitive=False, executor=_executor(threads)
        )
        lock = _lock_of(lane(*args, **kwargs)) if lane else None
        if lock is not None:
            await lock.acquire()
        running = asyncio.ensure_future(call(function, *args, **kwargs))
        if lock is not None:
            # Not when the caller is cancelled: the thread works on the session until it is done.
            running.add_done_callback(lambda _: lock.release())
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            message = "a call failed after its caller was cancelled"
            running.add_done_callback(functools.partial(_log_failure, message))
            raise

    return twin


def _log_failure(message: str, call: asyncio.Future[Any] | Future[Any]) -> None:
    """Log the error of a call that no caller waits for any longer."""
    error = None if call.cancelled() else call.exception()
    if error is not None:
        log_error(logger, message, error=error)


async def require_test_data() -> None:
    """Check that the twins see the data of a running test. Raises ChatMemoryTestMixinMissing."""
    if is_test_running():
        await in_pool(require_visible_data)()


def call_soon(function: Callable[[], object]) -> None:
    """Call a function on a thread of the pool, without waiting; without a pool, on this one.

    On a thread of the pool an error is logged.
    """
    threads = settings.DB_THREADS
    if not threads:
        function()
        return
    future = _executor(threads).submit(_with_fresh_connection, function)
    future.add_done_callback(functools.partial(_log_failure, "background work failed"))


def address_lane(*, session_key: str, by: Actor, scope: str | None = None, **_: object) -> Lane:
    """The lane of calls that name a session by its address."""
    return (scope or f"{by.kind}:{by.id}", session_key)


def release_connections() -> None:
    """Give this thread's connections back, so that a wait holds none; not those in a transaction.

    `close_old_connections` would keep those that CONN_MAX_AGE lets live on.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def is_pool_thread() -> bool:
    """Whether this is a thread of the pool, which sockets and runs wait for."""
    return getattr(_here, "is_pool", False)


def _in_own_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    _require_one_schema()
    return as_if_committed(function, *args, **kwargs)


def _require_one_schema() -> None:
    """Refuse connections that choose a tenant's schema: this thread's is not the caller's.

    Raises TenantSchemasUnsupported.
    """
    if hasattr(database(), "set_schema"):  # django-tenants, django-tenant-schemas
        raise TenantSchemasUnsupported


def _with_fresh_connection(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    _here.is_pool = True
    _require_one_schema()
    require_shared_data()
    close_old_connections()
    reset_queries()  # which Django keeps while DEBUG is on, until a request begins
    try:
        return function(*args, **kwargs)
    finally:
        close_old_connections()


def _executor(threads: int) -> DaemonExecutor:
    if threads not in _executors:
        _executors[threads] = DaemonExecutor(threads, name="chatmemory-db")
    return _executors[threads]


@atexit.register
def _end() -> None:
    """Let what is under way end; but a database that hangs keeps no process from its end."""
    for executor in _executors.values():
        executor.shutdown(wait=False)
        executor.join(LAST_SECONDS)


def _lock_of(lane: Lane) -> asyncio.Lock:
    locks = _lanes.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    lock = locks.get(lane)
    if lock is None:
        lock = locks[lane] = asyncio.Lock()
    return lock
