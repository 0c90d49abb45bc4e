"""A pytest plugin for LangChain's own tests: replaces their in-memory history by our class.

It runs in its own process, since their package is named `tests` too.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import blockbuster  # type: ignore[import-not-found]  # installed only for these tests
import django
import pytest
from langchain_core import chat_history
from langchain_core.messages import BaseMessage

django.setup()

from chatmemory.langchain import DjangoChatMessageHistory  # noqa: E402  # it has models

_thread = ThreadPoolExecutor(1)
_made: list[str] = []
"""The session keys of all histories that the running test has created."""
_outcomes: dict[str, dict[str, Any]] = {}


class Ours(DjangoChatMessageHistory):
    """The history under test, with a new session for each object.

    Their tests also need a constructor with messages, and `==`, which compares the stored messages.
    Both use another thread, so that only the methods of the history can block the event loop.
    """

    __hash__ = None  # type: ignore[assignment]  # as theirs

    def __init__(self, *, messages: Sequence[BaseMessage] = ()) -> None:
        self.key = uuid.uuid4().hex
        super().__init__(self.key, owner=None)
        _made.append(self.key)
        if messages:
            _thread.submit(self.reopened().add_messages, messages).result()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ours):
            return NotImplemented
        mine, theirs = _thread.map(lambda history: history.reopened().messages, (self, other))
        return bool(mine == theirs)

    def reopened(self) -> DjangoChatMessageHistory:
        """Return a new object for the same session, which has read nothing yet."""
        return DjangoChatMessageHistory(self.key, owner=None)


# Their modules are imported later, and then import our class from here.
chat_history.InMemoryChatMessageHistory = Ours  # type: ignore[assignment,misc]  # replaced on purpose


@pytest.fixture(autouse=True)
def _no_blocking() -> Iterator[None]:
    # Their conftest guards only langchain_core.
    with blockbuster.blockbuster_ctx("chatmemory"):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "setup":
        _made.clear()
    if report.when == "call" or not report.passed:
        _outcomes[f"{item.path.name}::{item.name}"] = {
            "outcome": report.outcome,
            "error": call.excinfo.typename if call.excinfo else None,
            "uses_ours": bool(_made),
        }
    return report


def pytest_sessionfinish() -> None:
    Path(os.environ["OUTCOMES"]).write_text(json.dumps(_outcomes))
