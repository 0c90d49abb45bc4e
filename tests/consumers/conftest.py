"""Fixtures of the tests of the websocket."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chatmemory.consumers import ChatConsumer
from chatmemory.consumers.limits import SocketLimits
from chatmemory.database.reads import read_page_at
from chatmemory.services import catch_up


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace limits of the sockets that connect after the call."""

    def replace_limits(**fields: float) -> None:
        monkeypatch.setattr(ChatConsumer, "limits", SocketLimits(**fields))  # type: ignore[arg-type]

    return replace_limits


@pytest.fixture
def page_reads(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The positions from which feeds read pages."""
    positions: list[int | None] = []

    def noted(*address: str, after: int | None, limit: int) -> object:
        positions.append(after)
        return read_page_at(*address, after=after, limit=limit)

    monkeypatch.setattr(catch_up, "read_page_at", noted)
    return positions
