"""What all tests of the search need."""

from __future__ import annotations

import pytest

from chatmemory.search import searching


@pytest.fixture(autouse=True)
def _enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine would answer in parts."""
    monkeypatch.setattr(searching, "MAX_SECONDS", 600.0)
