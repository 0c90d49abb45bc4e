"""A pytest plugin for the tests of your project: `pytest_plugins = ["chatmemory.testing.plugin"]`.

It needs pytest-django.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
from asgiref.sync import async_to_sync

ASYNC_MARKERS = ("asyncio", "anyio", "trio")


@pytest.fixture(scope="session", autouse=True)
def _chatmemory_settings(django_test_environment: None) -> Iterator[None]:
    # pytest imports plugins before pytest-django sets Django up.
    from chatmemory.testing.cases import settings_for_tests

    with settings_for_tests():
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """End chatmemory's threads before the fixtures roll back or flush the database."""
    from chatmemory.testing.cases import end_threads

    end_threads()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test as Django's TestCase does, unless it is marked for another plugin.

    Its database work is done on the thread that holds the test's transaction.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    if any(map(pyfuncitem.get_closest_marker, ASYNC_MARKERS)):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    async_to_sync(pyfuncitem.obj)(**{name: pyfuncitem.funcargs[name] for name in names})
    return True
