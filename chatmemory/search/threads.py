"""The thread of searches that sockets and other coroutines start."""

from __future__ import annotations

from functools import cache

from chatmemory.database.pool import InlineThreads, Threads, threads


def search_threads() -> Threads | InlineThreads:
    """Return where a search runs that a coroutine awaits: a thread of its own for all of them."""
    found = threads()
    return found if isinstance(found, InlineThreads) else _own_thread()


@cache
def _own_thread() -> Threads:
    return Threads(1)
