"""Support for tests of host projects that run in a transaction without a commit."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from chatmemory.database.faults import write_connection
from chatmemory.logs import log_error

P = ParamSpec("P")
T = TypeVar("T")


logger = logging.getLogger(__name__)

_threads: WeakKeyDictionary[BaseDatabaseWrapper, int] = WeakKeyDictionary()
"""Connections that were opened during tests, with their threads; empty outside tests."""


class ChatMemoryTestMixinMissing(RuntimeError):
    """Database work on another thread cannot see the data of the running test."""

    def __init__(self) -> None:
        super().__init__(
            "chatmemory cannot use another thread here: it would not see this test's data. "
            "Put chatmemory.testing.cases.ChatMemoryTestMixin before the test class's TestCase, or "
            'with pytest set pytest_plugins = ["chatmemory.testing.plugin"] in the top-level '
            'conftest.py. With either, do not set CHATMEMORY["DB_THREADS"], and let Django run '
            "async tests, not pytest-asyncio. See docs/howto/testing.md."
        )


def is_test_running() -> bool:
    """Whether a test has opened a connection to a database."""
    return bool(_threads)


def require_visible_data() -> None:
    """Check that this thread sees the data of a running test. Raises ChatMemoryTestMixinMissing."""
    current = threading.get_ident()
    for connection, thread in list(_threads.items()):
        if thread != current and _has_test_block(connection):
            raise ChatMemoryTestMixinMissing


def require_shared_data() -> None:
    """Check that pool threads see the data of a running test. Raises ChatMemoryTestMixinMissing."""
    if not _threads:
        return
    connection = write_connection()
    # Threads that share an in-memory SQLite database block each other.
    is_in_memory = connection.vendor == "sqlite" and connection.is_in_memory_db()  # type: ignore[attr-defined]  # of SQLite's
    if is_in_memory or _has_test_block(connection):
        raise ChatMemoryTestMixinMissing
    require_visible_data()


def as_if_committed(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function and, in a test's transaction, the `on_commit` hooks that it added."""
    require_visible_data()
    connection = write_connection()
    count = len(connection.run_on_commit)
    try:
        return function(*args, **kwargs)
    finally:
        # Only the test's blocks: the hooks of a block that the host's code opened wait for its end.
        if (
            _threads
            and connection.atomic_blocks
            and all(map(_is_of_test, connection.atomic_blocks))
        ):
            while len(connection.run_on_commit) > count:  # a hook may add further ones
                _, hook, is_robust = connection.run_on_commit.pop(count)  # type: ignore[misc]  # django-stubs omit the third item
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
    """Whether a Django TestCase or pytest-django's `db` opened this atomic block."""
    return bool(getattr(block, "_from_testcase", False))


def note_connection(*, connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Record a connection that a test opens."""
    # Django's test runner creates mail.outbox; pytest-django uses the same function.
    if hasattr(sys.modules.get("django.core.mail"), "outbox"):
        _threads[connection] = threading.get_ident()


connection_created.connect(note_connection, dispatch_uid="chatmemory.note_connection")
