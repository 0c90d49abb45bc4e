"""Call the host's code from an event loop, such as a responder, with usable connections."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakSet

from asgiref.sync import async_to_sync, sync_to_async
from django.db import close_old_connections, connections
from django.utils.module_loading import import_string

from chatmemory.database.pool import threads
from chatmemory.database.threads import DaemonExecutor

# Note [Host code in loops]
#
# Django closes unusable connections before and after each request. The host's code in our loops
# belongs to no request, so its connections would stay broken until the process ends. It reaches
# the database in two ways:
# - Django's async methods and `sync_to_async` use one thread for all loops of the process.
#   `fresh_connections` closes the connections of that thread, without waiting for it: a call of
#   other host code may block it. The block's own calls come later in the queue of the thread.
# - `asyncio.to_thread`, LangChain's sync tools and models use the loop's default executor, which is
#   a `HostExecutor`.
# With `DB_THREADS` 0 both are Django's thread, since another one does not see the rows of a test.

P = ParamSpec("P")
T = TypeVar("T")

HOST_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""Threads for blocking calls; as many as Python's default executor has."""

_is_host_code: ContextVar[bool] = ContextVar("chatmemory_is_host_code", default=False)
_test_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
"""The loops of tests that have a `HostExecutor`."""
_closing: set[asyncio.Future[None]] = set()
_lock = threading.Lock()
_blocks = 0
"""Open blocks of `fresh_connections`, in all loops."""


class HostExecutor(DaemonExecutor):
    """Calls the host's code, each time with usable connections. See Note [Host code in loops]."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        submit = partial(super().submit, partial(_with_fresh_connection, fn, *args, **kwargs))
        if not _is_host_code.get():
            return submit()  # a test's own calls need threads
        return threads().elsewhere(submit, inline=partial(_submit_to_test, fn, *args, **kwargs))


def _submit_to_test(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    call = sync_to_async(fn)(*args, **kwargs)
    return asyncio.run_coroutine_threadsafe(call, asyncio.get_running_loop())


@asynccontextmanager
async def fresh_connections() -> AsyncIterator[None]:
    """Let async code of the host use the database in this block: Note [Host code in loops]."""
    token, task = _is_host_code.set(True), asyncio.current_task()
    try:
        await _start_closing(is_only=_count_block(1) == 1)
        yield
    finally:
        is_only = _count_block(-1) == 0
        # Python may close a coroutine outside its task, where it can neither reset nor await.
        if _current_task() is task:
            _is_host_code.reset(token)
            await _start_closing(is_only=is_only)


async def call_host(path: str, *arguments: object, executor: HostExecutor | None = None) -> object:
    """Call a function that a setting names, sync or async, and return its result.

    It is imported, and a sync one called, in a thread of the executor, or of the loop's. Call it in
    a block of `fresh_connections`.
    """
    loop = asyncio.get_running_loop()
    # In a thread, since the import of LangChain and of a provider's package takes seconds.
    function = await loop.run_in_executor(executor, import_string, path)
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    result: object = await loop.run_in_executor(executor, partial(function, *arguments))
    return await result if inspect.isawaitable(result) else result


def call_host_here(path: str, *arguments: object) -> object:
    """Call a function that a setting names, sync or async, in this thread, which runs no loop."""
    result: object = import_string(path)(*arguments)
    return async_to_sync(_awaited)(result) if inspect.isawaitable(result) else result


def ask_host(path: str, *arguments: object) -> None:
    """Call a function that refuses by an error, as `call_host_here` does.

    Raises the error. Raises TypeError if the function returns a value: it may mean a refusal.
    """
    result = call_host_here(path, *arguments)
    if result is not None:
        name = type(result).__name__
        raise TypeError(f"{path} must return None or raise an error, not return a {name}")


async def _awaited(result: Awaitable[object]) -> object:
    return await result


def _use_host_executor() -> None:
    """Give the loop of a test, which we did not start, the executor of the runner's loop."""
    loop = asyncio.get_running_loop()
    if loop not in _test_loops:
        _test_loops.add(loop)
        loop.set_default_executor(HostExecutor(HOST_THREADS, name="chatmemory-responders"))


def _current_task() -> asyncio.Task[object] | None:
    """Return the task that runs; None outside a loop."""
    with suppress(RuntimeError):
        return asyncio.current_task()
    return None


def _count_block(change: int) -> int:
    global _blocks
    with _lock:
        _blocks += change
        return _blocks


async def _start_closing(*, is_only: bool) -> None:
    closing = asyncio.ensure_future(_aclose_old(is_only=is_only))
    await threads().elsewhere(partial(_queue, closing), inline=partial(_finish_in_test, closing))


async def _queue(closing: asyncio.Future[None]) -> None:
    _closing.add(closing)  # the loop has only weak references
    closing.add_done_callback(_closing.discard)
    await asyncio.sleep(0)  # it is in the queue of the thread now


async def _finish_in_test(closing: asyncio.Future[None]) -> None:
    _use_host_executor()
    await closing  # a test may end its loop


def _close_old(*, is_only: bool) -> None:
    for connection in connections.all(initialized_only=True):
        # Other blocks may be reading with a cursor, such as that of `aiterator`. The transaction of
        # a test must stay open.
        if (is_only or connection.errors_occurred) and not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _with_fresh_connection(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    close_old_connections()
    try:
        return function(*args, **kwargs)
    finally:
        close_old_connections()


_aclose_old = sync_to_async(_close_old)
