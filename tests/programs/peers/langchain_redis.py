"""langchain-redis's history, which needs a server with the search module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import redis
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_redis import RedisChatMessageHistory

from chatmemory.testing.langchain import HistoryStore
from chatmemory.testing.stores import Address, Store
from tests.programs.peers.base import REDIS, Peer, Proxy, name_of


class SearchedHistory(HistoryStore):
    def __init__(self, ttl: int | None = None) -> None:
        with redis.Redis.from_url(REDIS) as client:
            try:
                client.execute_command("FT._LIST")
            except redis.ResponseError:
                pytest.skip("the Redis server has no search module")
        address = urlsplit(REDIS)
        self.proxy = Proxy(address.hostname or "127.0.0.1", address.port or 6379)
        self.url = address._replace(netloc=f"127.0.0.1:{self.proxy.port}").geturl()
        self.ttl = ttl

    def history(self, at: Address) -> BaseChatMessageHistory:
        return RedisChatMessageHistory(name_of(at), redis_url=self.url, ttl=self.ttl)

    def short_lived(self, seconds: float) -> Store:
        return SearchedHistory(ttl=int(seconds))

    @contextmanager
    def outage(self) -> Iterator[None]:
        with self.proxy.cut():
            yield

    def close(self) -> None:
        self.proxy.close()


class TestSearchedHistory(Peer):
    column = "langchain-redis"
    make_store = "tests.programs.peers.langchain_redis:SearchedHistory"
