"""LangChain's memories in the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from langchain_classic.chains import ConversationChain
from langchain_classic.memory import ConversationBufferMemory
from langchain_core.chat_history import BaseChatMessageHistory, InMemoryChatMessageHistory

from chatmemory.testing.langchain import HistoryStore, to_langchain, to_plain
from chatmemory.testing.stores import Address, Message, Model, Store
from tests.programs.peers.base import Peer, name_of
from tests.programs.peers.fake_llm import PROMPT, FakeChatModel

MEMORY = ConversationBufferMemory(return_messages=True)


class SharedMemory(Store):
    """One ConversationBufferMemory, created at import, for all chains."""

    def __init__(self) -> None:
        MEMORY.clear()  # each test starts like a new process

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        MEMORY.chat_memory.add_messages([to_langchain(message) for message in messages])

    def read(self, at: Address) -> list[Message]:
        return [to_plain(message) for message in MEMORY.chat_memory.messages]

    def clear(self, at: Address) -> None:
        MEMORY.clear()

    def turn(self, at: Address, text: str, model: Model) -> str:
        chain = ConversationChain(llm=FakeChatModel(model), memory=MEMORY, prompt=PROMPT)
        return str(chain.predict(input=text))


class InMemory(HistoryStore):
    """A dict with a history for each session, as the RunnableWithMessageHistory docs show."""

    histories: ClassVar[dict[str, InMemoryChatMessageHistory]] = {}

    def history(self, at: Address) -> BaseChatMessageHistory:
        return self.histories.setdefault(name_of(at), InMemoryChatMessageHistory())


class TestSharedMemory(Peer):
    column = "shared ConversationBufferMemory"
    make_store = "tests.programs.peers.langchain_classic:SharedMemory"


class TestInMemory(Peer):
    column = "InMemoryChatMessageHistory"
    make_store = "tests.programs.peers.langchain_classic:InMemory"
