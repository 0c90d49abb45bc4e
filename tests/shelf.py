"""A small store in SQLite that keeps the contract and shares no code with ours."""

# ruff: noqa: S608  # only our own names

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from chatmemory.testing.stores import Address, Message, Model, Store

TABLES = """
    CREATE TABLE IF NOT EXISTS session (
        user TEXT, key TEXT, epoch INT DEFAULT 0, floor INT DEFAULT 0, last INT DEFAULT 0,
        used REAL DEFAULT 0, PRIMARY KEY (user, key)
    );
    CREATE TABLE IF NOT EXISTS message (
        user TEXT, key TEXT, seq INT, body TEXT, client_id TEXT, PRIMARY KEY (user, key, seq)
    );
"""
IN_SESSION = "user = ? AND key = ?"


class Cleared(Exception):
    """The session was cleared after the turn had started."""


class Refused(Exception):
    """The id was already used for other content."""


class Shelf(Store):
    """Uses the same ideas as ours: numbers assigned under a lock, a floor, an epoch."""

    errors = (sqlite3.OperationalError,)
    stores_user_message_first = True

    def __init__(self, path: str, ttl: float | None = None, window: int | None = None) -> None:
        self.path = path
        self.ttl = ttl
        self.window = window
        with self.locked() as cursor:
            for table in TABLES.split(";"):
                cursor.execute(table)

    @contextmanager
    def locked(self) -> Iterator[sqlite3.Cursor]:
        """Open a transaction that takes the write lock at its start."""
        connection = sqlite3.connect(self.path, timeout=20, isolation_level=None)
        with closing(connection):
            connection.execute("PRAGMA synchronous = OFF")  # tests do not cut the power
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                yield connection.cursor()

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        self.store(at, messages)

    def append_once(self, at: Address, messages: Sequence[Message], client_id: str) -> None:
        self.store(at, messages, client_id=client_id)

    def store(
        self,
        at: Address,
        messages: Sequence[Message],
        *,
        client_id: str | None = None,
        epoch: int | None = None,
    ) -> int:
        """Append a batch; return the epoch."""
        bodies = [self.dump(message) for message in messages]
        with self.locked() as cursor:
            if client_id is not None and self.is_stored(cursor, at, bodies, client_id):
                return 0
            last, now = self.begin(cursor, at, epoch)
            self.insert(cursor, at, bodies, last, client_id)
            cursor.execute(
                f"UPDATE session SET last = ?, used = ? WHERE {IN_SESSION}",
                [last + len(bodies), time.time(), *at],
            )
            return now

    def begin(self, cursor: sqlite3.Cursor, at: Address, epoch: int | None) -> tuple[int, int]:
        """Create a new session or empty an expired one; return its last number and its epoch."""
        cursor.execute("INSERT OR IGNORE INTO session (user, key) VALUES (?, ?)", at)
        last, now, used = cursor.execute(
            f"SELECT last, epoch, used FROM session WHERE {IN_SESSION}", at
        ).fetchone()
        if epoch not in (None, now):
            raise Cleared
        if self.is_expired(used):
            cursor.execute(f"UPDATE session SET floor = last WHERE {IN_SESSION}", at)
        return last, now

    def is_stored(
        self, cursor: sqlite3.Cursor, at: Address, bodies: list[str], client_id: str
    ) -> bool:
        """Whether a batch with this id is stored. Raises Refused if its content differs."""
        stored = cursor.execute(
            f"SELECT body FROM message WHERE {IN_SESSION} AND client_id = ? ORDER BY seq",
            [*at, client_id],
        ).fetchall()
        if stored and [body for (body,) in stored] != bodies:
            raise Refused
        return bool(stored)

    def insert(
        self,
        cursor: sqlite3.Cursor,
        at: Address,
        bodies: list[str],
        last: int,
        client_id: str | None,
    ) -> None:
        cursor.executemany(
            "INSERT INTO message VALUES (?, ?, ?, ?, ?)",
            [(*at, last + index, body, client_id) for index, body in enumerate(bodies, 1)],
        )

    def read(self, at: Address) -> list[Message]:
        with self.locked() as cursor:
            found = cursor.execute(
                f"SELECT floor, used FROM session WHERE {IN_SESSION}", at
            ).fetchone() or (0, 0)
            if self.is_expired(found[1]):
                return []
            rows = cursor.execute(
                f"SELECT body FROM message WHERE {IN_SESSION} AND seq > ? ORDER BY seq",
                [*at, found[0]],
            ).fetchall()
        return [self.load(body) for (body,) in rows]

    def dump(self, message: Message) -> str:
        return json.dumps(message)

    def load(self, body: str) -> Message:
        try:
            found: Message = json.loads(body)
        except ValueError:
            return {"role": "user", "content": "(damaged)"}
        return found

    def trim(self, at: Address, keep_last: int) -> None:
        self.remove(at, "floor = max(floor, last - ?)", keep_last)

    def clear(self, at: Address) -> None:
        self.remove(at, "floor = last, epoch = epoch + ?", 1)

    def purge(self, at: Address) -> None:
        self.clear(at)

    def remove(self, at: Address, change: str, value: int) -> None:
        with self.locked() as cursor:
            cursor.execute(f"UPDATE session SET {change} WHERE {IN_SESSION}", [value, *at])

    def turn(self, at: Address, text: str, model: Model) -> str:
        before = self.read(at) if self.window is None else self.read(at)[-self.window :]
        epoch = self.store(at, [{"role": "user", "content": text}])
        reply = model([*(message["content"] for message in before), text])
        self.store(at, [{"role": "assistant", "content": reply}], epoch=epoch)
        return reply

    def short_lived(self, seconds: float) -> Store:
        return type(self)(self.path, ttl=seconds)

    def bounded(self, messages: int) -> Store:
        return type(self)(self.path, window=messages)

    def is_expired(self, used: float) -> bool:
        return self.ttl is not None and used + self.ttl < time.time()

    def age(self, at: Address, seconds: float) -> None:
        with self.locked() as cursor:
            cursor.execute(f"UPDATE session SET used = used - ? WHERE {IN_SESSION}", [seconds, *at])

    @contextmanager
    def outage(self) -> Iterator[None]:
        path, self.path = self.path, str(Path(self.path).parent)
        try:
            yield
        finally:
            self.path = path

    def damage(self, at: Address, index: int) -> None:
        with self.locked() as cursor:
            cursor.execute(
                f"UPDATE message SET body = '{{oops' WHERE {IN_SESSION} AND seq = ?",
                [*at, index + 1],
            )

    def raw(self, at: Address) -> Iterable[bytes]:
        with self.locked() as cursor:
            rows: list[Any] = cursor.execute(
                f"SELECT body FROM message WHERE {IN_SESSION}", at
            ).fetchall()
        return [body if isinstance(body, bytes) else body.encode() for (body,) in rows]
