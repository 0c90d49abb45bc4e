"""mem0: the claim that it keeps the newest messages of a conversation.

Its memories come from a model and an embedder, which this test does not have. The conversation
itself is in an SQLite table, whose newest ten messages mem0 gives to that model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from mem0.memory.storage import SQLiteManager

from chatmemory.testing.base import Contract, make_messages, texts
from chatmemory.testing.stores import Address, Message, Store
from chatmemory.testing.violations import check, missing
from tests.programs.peers.base import name_of

KEPT = 10


class LastMessages(Store):
    def __init__(self, path: str) -> None:
        self.manager = SQLiteManager(path)

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        self.manager.save_messages([dict(message) for message in messages], name_of(at))

    def read(self, at: Address) -> list[Message]:
        found: list[Message] = self.manager.get_last_messages(name_of(at), limit=KEPT)
        return found

    def close(self) -> None:
        self.manager.close()


class TestLastMessages(Contract):
    column = "mem0"
    make_store = "tests.programs.peers.mem0:LastMessages"

    @pytest.fixture
    def arguments(self, tmp_path: Any) -> dict[str, Any]:
        return {"path": str(tmp_path / "memory")}

    def test_the_newest_of_a_batch_are_kept(self, store: Store, at: Address) -> None:
        """Of a batch of 12, the newest ten are kept."""
        contents = [str(number) for number in range(12)]
        store.append(at, make_messages(*contents))
        newest = contents[-KEPT:]
        check(lost=(missing(texts(store.read(at)), newest), KEPT))
