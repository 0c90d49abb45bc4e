"""Why the ASGI application is imported: to serve, or only for a system check."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class Startup:
    """The state of this process."""

    is_inspected = False
    """Whether a system check imports the application."""


@contextmanager
def inspecting() -> Iterator[None]:
    """Import the application in this block without starting anything."""
    Startup.is_inspected = True
    try:
        yield
    finally:
        Startup.is_inspected = False


def is_serving() -> bool:
    """Whether the process that imports the application will serve it.

    `runserver` runs the checks in the process that serves afterwards.
    """
    return not Startup.is_inspected or sys.argv[1:2] == ["runserver"]


def is_testing() -> bool:
    """Whether tests import the application: threads would query outside of their transactions."""
    return "pytest" in sys.modules or sys.argv[1:2] == ["test"]


def are_threads_patched() -> bool:
    """Whether gevent or eventlet has replaced threads.

    An event loop would then run in the thread of the requests, where Django refuses queries while
    a loop runs.
    """
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    return (gevent is not None and gevent.is_module_patched("threading")) or (
        eventlet is not None and eventlet.is_monkey_patched("thread")
    )
