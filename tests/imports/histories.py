"""Histories as LangChain's packages store them, in tables and lists for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db import connection
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
)

ANN = UUID("6f0f4a39-7d5f-4f0e-9a54-1f0f9a3f0a01")

CALL = {"name": "weather", "args": {"city": "Oslo", "at": 7}, "id": "c1", "type": "tool_call"}
BAD_CALL = {
    "name": "weather",
    "args": "{",
    "id": "c2",
    "error": "no JSON",
    "type": "invalid_tool_call",
}
USAGE = {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8}
MESSAGES: list[BaseMessage] = [
    SystemMessage("Be short.", id="m0"),
    HumanMessage(
        [{"type": "text", "text": "Sun?"}, {"type": "image_url", "image_url": {"url": "a.png"}}],
        name="Ann",
        id="m1",
        additional_kwargs={"channel": {"b": 1, "a": [None, 2**60]}},
    ),
    AIMessage(
        [{"type": "reasoning", "reasoning": "Look."}, {"type": "text", "text": "One moment."}],
        id="m2",
        tool_calls=[CALL],
        invalid_tool_calls=[BAD_CALL],
        usage_metadata=USAGE,
        response_metadata={"model_name": "gpt-5", "finish_reason": "tool_calls"},
    ),
    ToolMessage("rain", tool_call_id="c1", name="weather", artifact={"mm": 3}, status="error"),
    ToolMessage("none", tool_call_id="c2"),
    FunctionMessage(content="1", name="count"),
    ChatMessage(content="Hm.", role="user"),
    AIMessage("Rain.", id="m3", name="Bot"),
]


def rows_of(histories: dict[Any, Sequence[BaseMessage]]) -> list[tuple[Any, str]]:
    """Return the session_id and the JSON of each message."""
    return [
        (session_id, json.dumps(message_to_dict(message)))
        for session_id, messages in histories.items()
        for message in messages
    ]


@contextmanager
def table(rows: Sequence[tuple[Any, str | None]], name: str = "message_store") -> Iterator[None]:
    """Make the table of `SQLChatMessageHistory` of langchain-community 0.4.2."""
    # As SQLAlchemy 2.1.9 writes it.
    kind = {
        "postgresql": "SERIAL NOT NULL",
        "mysql": "INTEGER NOT NULL AUTO_INCREMENT",
        "sqlite": "INTEGER NOT NULL",
    }[connection.vendor]
    sql = f"CREATE TABLE {name} (id {kind}, session_id TEXT, message TEXT, PRIMARY KEY (id))"
    with made(name, sql):
        insert(rows, name)
        yield


@contextmanager
def postgres_table(rows: Sequence[tuple[UUID, str]], name: str = "chat_history") -> Iterator[None]:
    """Make the table of `PostgresChatMessageHistory` of langchain-postgres 0.0.19."""
    columns = (
        "id SERIAL PRIMARY KEY, session_id UUID NOT NULL, message JSONB NOT NULL,"
        " created_at TIMESTAMPTZ NOT NULL DEFAULT NOW()"
    )
    with made(name, f"CREATE TABLE {name} ({columns})"):
        insert(rows, name)
        yield


@contextmanager
def made(name: str, sql: str) -> Iterator[None]:
    """Make a table, and drop it."""
    execute(f"DROP TABLE IF EXISTS {name}")
    execute(sql)
    try:
        yield
    finally:
        execute(f"DROP TABLE IF EXISTS {name}")


def insert(rows: Sequence[tuple[Any, str | None]], name: str = "message_store") -> None:
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {name} (session_id, message) VALUES (%s, %s)", rows)  # noqa: S608  # a constant name


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)
