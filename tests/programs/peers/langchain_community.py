"""The histories of langchain-community, and langchain-classic's memories on top of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import redis
import sqlalchemy
from langchain_classic.chains import ConversationChain
from langchain_classic.memory import ConversationSummaryMemory, ConversationTokenBufferMemory
from langchain_community.chat_message_histories import (
    FileChatMessageHistory,
    RedisChatMessageHistory,
    SQLChatMessageHistory,
)
from langchain_core.chat_history import BaseChatMessageHistory

from chatmemory.testing.base import make_messages
from chatmemory.testing.langchain import HistoryStore
from chatmemory.testing.stores import Address, Model, Store, StoreFactory
from chatmemory.testing.violations import check
from chatmemory.testing.workers import WorkerPool
from tests.programs.peers.base import POSTGRESQL, REDIS, FilePeer, Peer, Proxy, name_of
from tests.programs.peers.fake_llm import PROMPT, FakeChatModel


class RedisHistory(HistoryStore):
    def __init__(self, ttl: int | None = None, port: int | None = None) -> None:
        """`port` is that of another store's proxy."""
        address = urlsplit(REDIS)
        self.proxy = Proxy(address.hostname or "127.0.0.1", address.port or 6379)
        self.url = address._replace(netloc=f"127.0.0.1:{port or self.proxy.port}").geturl()
        self.ttl = ttl

    def history(self, at: Address) -> BaseChatMessageHistory:
        return RedisChatMessageHistory(name_of(at), url=self.url, ttl=self.ttl)

    def short_lived(self, seconds: float) -> Store:
        return RedisHistory(ttl=int(seconds))

    @contextmanager
    def outage(self) -> Iterator[None]:
        with self.proxy.cut():
            yield

    def raw(self, at: Address) -> Iterable[bytes]:
        with redis.Redis.from_url(REDIS) as client:
            values: list[bytes] = client.lrange(f"message_store:{name_of(at)}", 0, -1)
        return values

    def damage(self, at: Address, index: int) -> None:
        with redis.Redis.from_url(REDIS) as client:
            client.lset(f"message_store:{name_of(at)}", -index - 1, "{oops")

    def close(self) -> None:
        self.proxy.close()


class SQLHistory(HistoryStore):
    """Uses PostgreSQL, with one engine for all sessions."""

    def __init__(self) -> None:
        address = urlsplit(POSTGRESQL)
        self.proxy = Proxy(address.hostname or "127.0.0.1", address.port or 5432)
        at = f"{address.username}@127.0.0.1:{self.proxy.port}"
        url = address._replace(scheme="postgresql+psycopg", netloc=at).geturl()
        self.engine = sqlalchemy.create_engine(url, pool_size=8)

    def history(self, at: Address) -> BaseChatMessageHistory:
        return SQLChatMessageHistory(name_of(at), connection=self.engine)

    @contextmanager
    def outage(self) -> Iterator[None]:
        with self.proxy.cut():
            yield
        self.engine.dispose()

    def rows(self, at: Address) -> list[tuple[int, str]]:
        query = "SELECT id, message FROM message_store WHERE session_id = :name ORDER BY id"
        with self.engine.connect() as connection:
            found = connection.execute(sqlalchemy.text(query), {"name": name_of(at)})
            return [(row[0], row[1]) for row in found]

    def raw(self, at: Address) -> Iterable[bytes]:
        return [message.encode() for _, message in self.rows(at)]

    def damage(self, at: Address, index: int) -> None:
        update = "UPDATE message_store SET message = '{oops' WHERE id = :id"
        with self.engine.begin() as connection:
            connection.execute(sqlalchemy.text(update), {"id": self.rows(at)[index][0]})

    def close(self) -> None:
        self.engine.dispose()
        self.proxy.close()


class FileHistory(HistoryStore):
    def __init__(self, path: str) -> None:
        self.folder = Path(path)
        self.folder.mkdir(exist_ok=True)

    def file(self, at: Address) -> Path:
        return self.folder / sha256(name_of(at).encode()).hexdigest()

    def history(self, at: Address) -> BaseChatMessageHistory:
        return FileChatMessageHistory(str(self.file(at)))

    def raw(self, at: Address) -> Iterable[bytes]:
        return [self.file(at).read_bytes()]

    def damage(self, at: Address, index: int) -> None:
        messages = json.loads(self.file(at).read_text())
        messages[index] = "oops"
        self.file(at).write_text(json.dumps(messages))


class Conversation(SQLHistory):
    """A ConversationChain with a memory of langchain-classic over the SQL history."""

    def __init__(self, limit: int = 2_000) -> None:
        super().__init__()
        self.limit = limit

    def memory(self, at: Address) -> Any:
        raise NotImplementedError

    def turn(self, at: Address, text: str, model: Model) -> str:
        memory = self.memory(at)
        chain = ConversationChain(llm=FakeChatModel(model), memory=memory, prompt=PROMPT)
        return str(chain.predict(input=text))


class TokenMemory(Conversation):
    def memory(self, at: Address) -> Any:
        return ConversationTokenBufferMemory(
            llm=FakeChatModel(lambda given: given[-1]),
            chat_memory=self.history(at),
            return_messages=True,
            max_token_limit=self.limit,
        )

    def bounded(self, messages: int) -> Store:
        return TokenMemory(limit=messages)


class SummaryMemory(Conversation):
    """Keeps a memory for each session; its fake summary contains all texts."""

    memories: ClassVar[dict[Address, Any]] = {}

    def memory(self, at: Address) -> Any:
        if at not in self.memories:
            self.memories[at] = ConversationSummaryMemory(
                llm=FakeChatModel(lambda given: given[-1]),
                chat_memory=self.history(at),
                return_messages=True,
            )
        return self.memories[at]


class TestRedisHistory(Peer):
    column = "RedisChatMessageHistory"
    make_store = "tests.programs.peers.langchain_community:RedisHistory"

    def test_a_killed_writer_leaves_an_expiry(
        self, store: RedisHistory, at: Address, workers: WorkerPool
    ) -> None:
        """A killed writer leaves no session that never expires."""
        factory = StoreFactory(
            path=self.make_store, arguments={"ttl": 60, "port": store.proxy.port}
        )
        (worker,) = workers.take(1, factory)
        store.proxy.held = b"EXPIRE"
        worker.begin(factory, "append", [[at, make_messages("1", "2")]])
        if not store.proxy.is_holding.wait(20):
            raise AssertionError("nothing expires")
        workers.kill(worker)
        with redis.Redis.from_url(REDIS) as client:
            left = client.ttl(f"message_store:{name_of(at)}")
        check(without_an_end=(int(left == -1), 1))


class TestSQLHistory(Peer):
    column = "SQLChatMessageHistory"
    make_store = "tests.programs.peers.langchain_community:SQLHistory"


class TestFileHistory(FilePeer):
    column = "FileChatMessageHistory"
    make_store = "tests.programs.peers.langchain_community:FileHistory"
    long_history = 1_000  # it writes the whole file for each message


class TestTokenMemory(Peer):
    column = "ConversationTokenBufferMemory"
    make_store = "tests.programs.peers.langchain_community:TokenMemory"


class TestSummaryMemory(Peer):
    column = "ConversationSummaryMemory"
    make_store = "tests.programs.peers.langchain_community:SummaryMemory"
    # It gives the model a summary instead of the messages that these tests expect.
    test_a_turn_is_stored_and_given_to_the_next = None  # type: ignore[assignment]
    test_the_model_is_given_nothing_of_others = None  # type: ignore[assignment]
