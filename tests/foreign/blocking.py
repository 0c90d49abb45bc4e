"""The guard of `swap` sees what blocks; run with their tests, since nothing of theirs blocks."""

from __future__ import annotations

import time

import pytest
from blockbuster import BlockingError  # type: ignore[import-not-found]  # as in `swap`

from chatmemory import services
from chatmemory.langchain import DjangoChatMessageHistory


async def test_what_blocks_in_an_async_method_is_seen(monkeypatch):
    monkeypatch.setattr(services, "aread_history", lambda **_: time.sleep(0.001))
    with pytest.raises(BlockingError):
        await DjangoChatMessageHistory("s", owner=None).aget_messages()
