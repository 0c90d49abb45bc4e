"""The guard of `swap` detects blocking calls; LangChain's own tests make none."""

from __future__ import annotations

import time

import pytest
from blockbuster import BlockingError  # type: ignore[import-not-found]  # as in `swap`

from chatmemory.langchain import DjangoChatMessageHistory
from chatmemory.services import sessions


async def test_a_blocking_call_in_an_async_method_is_detected(monkeypatch):
    monkeypatch.setattr(sessions, "aread_content", lambda **_: time.sleep(0.001))
    with pytest.raises(BlockingError):
        await DjangoChatMessageHistory("s", owner=None).aget_messages()
