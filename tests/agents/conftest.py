"""Fixtures of the tests of sessions."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from asgiref.sync import async_to_sync


@pytest.fixture
def async_calls() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Return a function that awaits a coroutine in the thread of the test's transaction."""

    async def wait(call: Coroutine[Any, Any, Any]) -> Any:
        return await call

    return async_to_sync(wait)
