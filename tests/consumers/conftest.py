"""Fixtures of the tests of the websocket."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chatmemory.consumers import ChatConsumer
from chatmemory.consumers.limits import SocketLimits


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace limits of the sockets that connect after the call."""

    def replace_limits(**fields: float) -> None:
        monkeypatch.setattr(ChatConsumer, "limits", SocketLimits(**fields))  # type: ignore[arg-type]

    return replace_limits
