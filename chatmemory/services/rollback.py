"""Transactions of tests, which no other thread sees and no commit ends."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from chatmemory.logs import log_error
from chatmemory.services.faults import database

P = ParamSpec("P")
T = TypeVar("T")


logger = logging.getLogger(__name__)

_threads: WeakKeyDictionary[BaseDatabaseWrapper, int] = WeakKeyDictionary()
"""The connections that were opened during tests, with their threads; always empty elsewhere."""


class ChatMemoryTestMixinMissing(RuntimeError):
    """Another thread would do database work, which cannot see the data of the running test."""

    def __init__(self) -> None:
        super().__init__(
            "chatmemory would work on a thread that cannot see this test's data. "
            "Put chatmemory.testing.cases.ChatMemoryTestMixin before the test class's TestCase, or "
            'with pytest set pytest_plugins = ["chatmemory.testing.plugin"] in the top-level '
            'conftest.py. With either, leave CHATMEMORY["DB_THREADS"] alone, and let Django run '
            "async tests, not pytest-asyncio. See docs/testing.md."
        )


def is_test_running() -> bool:
    """Whether a test has opened a connection to a database."""
    return bool(_threads)


def require_visible_data() -> None:
    """Check that this thread sees the data of the test that runs, if one does.

    Raises ChatMemoryTestMixinMissing.
    """
    here = threading.get_ident()
    for connection, thread in list(_threads.items()):
        if thread != here and _has_test_block(connection):
            raise ChatMemoryTestMixinMissing


def require_shared_data() -> None:
    """Check that threads of a pool see what a test stores. Raises ChatMemoryTestMixinMissing."""
    if not _threads:
        return
    connection = database()
    # Threads that share a SQLite database in memory lock one another out.
    is_in_memory = connection.vendor == "sqlite" and connection.is_in_memory_db()  # type: ignore[attr-defined]  # of SQLite's
    if is_in_memory or _has_test_block(connection):
        raise ChatMemoryTestMixinMissing
    require_visible_data()


def as_if_committed(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function; in a test's transaction, call its `on_commit` hooks too."""
    require_visible_data()
    connection = database()
    count = len(connection.run_on_commit)
    try:
        return function(*args, **kwargs)
    finally:
        if (
            _threads
            and connection.atomic_blocks
            and all(map(_is_of_test, connection.atomic_blocks))
        ):
            hooks = connection.run_on_commit[count:]
            del connection.run_on_commit[count:]
            for _, hook, is_robust in hooks:  # type: ignore[misc]  # django-stubs miss the third
                _call_hook(hook, is_robust=is_robust)


def _call_hook(hook: Callable[[], object], *, is_robust: bool) -> None:
    try:
        hook()
    except Exception as error:
        if not is_robust:
            raise
        log_error(logger, "an on_commit hook failed", error=error)


def _has_test_block(connection: BaseDatabaseWrapper) -> bool:
    return any(map(_is_of_test, connection.atomic_blocks))


def _is_of_test(block: object) -> bool:
    """Whether a Django TestCase, or pytest-django's `db`, opened this block."""
    return bool(getattr(block, "_from_testcase", False))


def note_connection(*, connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Remember a connection that a test opens."""
    # Where no test runs, nothing has imported django.core.mail or prepared its outbox.
    if hasattr(sys.modules.get("django.core.mail"), "outbox"):
        _threads[connection] = threading.get_ident()


connection_created.connect(note_connection, dispatch_uid="chatmemory.note_connection")
