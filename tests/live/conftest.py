"""Fixtures of the tests of hub, feeds and runner."""

from __future__ import annotations

import pytest

from chatmemory.database.reads import read_page_at
from chatmemory.services import catch_up


@pytest.fixture
def page_reads(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The positions from which feeds read pages."""
    positions: list[int | None] = []

    def noted(*address: str, after: int | None, limit: int) -> object:
        positions.append(after)
        return read_page_at(*address, after=after, limit=limit)

    monkeypatch.setattr(catch_up, "read_page_at", noted)
    return positions
