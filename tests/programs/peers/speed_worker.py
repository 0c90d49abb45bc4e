"""A case in a peer's environment: `… tests.programs.peers.speed_worker UNIT CASE INDEX SCALE`."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable
from importlib import import_module
from typing import Any
from urllib.parse import quote

from langchain_core.chat_history import BaseChatMessageHistory

from tests.programs.speed.cases import Scale, Setup
from tests.programs.speed.histories import WORK, MakeHistory
from tests.programs.speed.interleave import AGAIN, serve

REDIS = os.environ.get("PEERS_REDIS", "redis://127.0.0.1:6379/15")


def benchmark_url() -> str:
    """Return the URL of the benchmark's database. It drops the tables of the peers with it."""
    entry = json.loads(os.environ["CHATMEMORY_BENCH"])["database"]
    login = ":".join(quote(entry[name], safe="") for name in ("USER", "PASSWORD") if entry[name])
    return f"postgresql://{login}@{entry['HOST']}:{entry['PORT'] or 5432}/{entry['NAME']}"


def postgres() -> MakeHistory:
    """langchain-postgres with one connection, as its documentation shows."""
    psycopg: Any = import_module("psycopg")
    module: Any = import_module("langchain_postgres")
    connection = psycopg.connect(benchmark_url())
    table = "peer_messages"
    module.PostgresChatMessageHistory.create_tables(connection, table)

    def make(key: str) -> BaseChatMessageHistory:
        session = str(uuid.uuid5(uuid.NAMESPACE_OID, key))
        history: BaseChatMessageHistory = module.PostgresChatMessageHistory(
            table, session, sync_connection=connection
        )
        return history

    return make


def sql() -> MakeHistory:
    """langchain-community's SQL history with one engine."""
    module: Any = import_module("langchain_community.chat_message_histories")
    sqlalchemy: Any = import_module("sqlalchemy")
    url = benchmark_url().replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url)

    def make(key: str) -> BaseChatMessageHistory:
        history: BaseChatMessageHistory = module.SQLChatMessageHistory(key, connection=engine)
        return history

    return make


def redis() -> MakeHistory:
    """langchain-community's Redis history; its keys expire after an hour."""
    module: Any = import_module("langchain_community.chat_message_histories")
    run = uuid.uuid4().hex

    def make(key: str) -> BaseChatMessageHistory:
        history: BaseChatMessageHistory = module.RedisChatMessageHistory(
            f"{run}:{key}", url=REDIS, ttl=3600
        )
        return history

    return make


STORES: dict[str, Callable[[], MakeHistory]] = {
    "langchain-postgres": postgres,
    "SQLChatMessageHistory": sql,
    "RedisChatMessageHistory": redis,
}


def main(name: str, index: str, scale: str) -> None:
    """Run the case `STORE, WORK`."""
    store, work = name.removesuffix(f" {AGAIN}").split(", ", 1)
    case, messages = WORK[work]
    setup = Setup(key=name, index=int(index), scale=Scale(**json.loads(scale)))
    serve(case(setup, STORES[store](), messages))


if __name__ == "__main__":
    main(*sys.argv[2:])
