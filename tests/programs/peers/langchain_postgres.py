"""langchain-postgres's history, with a connection for each thread."""

# ruff: noqa: S608  # only our own names

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import psycopg
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_postgres import PostgresChatMessageHistory

from chatmemory.testing.base import make_messages
from chatmemory.testing.langchain import HistoryStore
from chatmemory.testing.stores import Address
from chatmemory.testing.violations import check
from tests.programs.peers.base import POSTGRESQL, Peer, Proxy, name_of

TABLE = "peer_messages"


class Postgres(HistoryStore):
    def __init__(self) -> None:
        address = urlsplit(POSTGRESQL)
        self.proxy = Proxy(address.hostname or "127.0.0.1", address.port or 5432)
        at = f"{address.username}@127.0.0.1:{self.proxy.port}"
        self.url = address._replace(netloc=at).geturl()
        self.own = threading.local()
        with suppress(psycopg.errors.UniqueViolation), psycopg.connect(POSTGRESQL) as connection:
            PostgresChatMessageHistory.create_tables(connection, TABLE)

    def connection(self) -> psycopg.Connection:
        found = getattr(self.own, "connection", None)
        if found is None or found.closed:
            found = self.own.connection = psycopg.connect(self.url)
        return found

    def history(self, at: Address) -> BaseChatMessageHistory:
        return PostgresChatMessageHistory(TABLE, key(at), sync_connection=self.connection())

    @contextmanager
    def outage(self) -> Iterator[None]:
        with self.proxy.cut():
            yield
        self.release()

    def rows(self, at: Address) -> list[tuple[int, str]]:
        query = f"SELECT id, message::text FROM {TABLE} WHERE session_id = %s ORDER BY id"
        with psycopg.connect(POSTGRESQL) as connection:
            return connection.execute(query, [key(at)]).fetchall()

    def raw(self, at: Address) -> Iterable[bytes]:
        return [message.encode() for _, message in self.rows(at)]

    def damage(self, at: Address, index: int) -> None:
        update = f"""UPDATE {TABLE} SET message = '"oops"' WHERE id = %s"""
        with psycopg.connect(POSTGRESQL) as connection:
            connection.execute(update, [self.rows(at)[index][0]])

    def release(self) -> None:
        found = getattr(self.own, "connection", None)
        if found is not None:
            found.close()

    def close(self) -> None:
        self.release()
        self.proxy.close()


def key(at: Address) -> str:
    """Session ids are UUIDs."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name_of(at)))


class TestPostgres(Peer):
    column = "PostgresChatMessageHistory"
    make_store = "tests.programs.peers.langchain_postgres:Postgres"

    def test_a_read_ends_its_transaction(self, store: Postgres, at: Address) -> None:
        """A read leaves no transaction open."""
        store.append(at, make_messages("1", "2"))
        store.read(at)
        state = store.connection().info.transaction_status
        check(left_open=(int(state != psycopg.pq.TransactionStatus.IDLE), 1))
