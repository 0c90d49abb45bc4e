"""Fixtures of the tests of the admin."""

from __future__ import annotations

import pytest

from chatmemory.services.jobs import run


@pytest.fixture(autouse=True)
def _long_slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a job of few sessions end in one request, also on a busy machine."""
    if "requests_alone" not in request.node.name:
        monkeypatch.setattr(run, "SLICE_SECONDS", 60.0)
