"""A store that has nothing to do with ours, and keeps the contract: SQLite, and no more."""

# ruff: noqa: S608  # names of our own only

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
MINE = "user = ? AND key = ?"


class Gone(Exception):
    """The session was cleared since the turn began."""


class Refused(Exception):
    """The id was used for other words."""


class Shelf(Store):
    """Numbers under a lock, a floor, an epoch: the same ideas as ours, in a hundred lines."""

    errors = (sqlite3.OperationalError,)
    keeps_words = True

    def __init__(self, path: str, ttl: float | None = None, window: int | None = None) -> None:
        self.path = path
        self.ttl = ttl
        self.window = window
        with self.locked() as cursor:
            for table in TABLES.split(";"):
                cursor.execute(table)

    @contextmanager
    def locked(self) -> Iterator[sqlite3.Cursor]:
        """A transaction that has the write lock from its start."""
        connection = sqlite3.connect(self.path, timeout=20, isolation_level=None)
        with closing(connection):
            connection.execute("PRAGMA synchronous = OFF")  # tests cut no power
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
        """Append, and return the epoch."""
        bodies = [self.dump(message) for message in messages]
        with self.locked() as cursor:
            if client_id is not None and self.is_stored(cursor, at, bodies, client_id):
                return 0
            last, now = self.begin(cursor, at, epoch)
            self.insert(cursor, at, bodies, last, client_id)
            cursor.execute(
                f"UPDATE session SET last = ?, used = ? WHERE {MINE}",
                [last + len(bodies), time.time(), *at],
            )
            return now

    def begin(self, cursor: sqlite3.Cursor, at: Address, epoch: int | None) -> tuple[int, int]:
        """The last number and the epoch of a session, made if it is new, emptied if it is old."""
        cursor.execute("INSERT OR IGNORE INTO session (user, key) VALUES (?, ?)", at)
        last, now, used = cursor.execute(
            f"SELECT last, epoch, used FROM session WHERE {MINE}", at
        ).fetchone()
        if epoch not in (None, now):
            raise Gone
        if self.is_expired(used):
            cursor.execute(f"UPDATE session SET floor = last WHERE {MINE}", at)
        return last, now

    def is_stored(
        self, cursor: sqlite3.Cursor, at: Address, bodies: list[str], client_id: str
    ) -> bool:
        """Whether this was written before; raises Refused if it was with other words."""
        stored = cursor.execute(
            f"SELECT body FROM message WHERE {MINE} AND client_id = ? ORDER BY seq",
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
            [(*at, last + place, body, client_id) for place, body in enumerate(bodies, 1)],
        )

    def read(self, at: Address) -> list[Message]:
        with self.locked() as cursor:
            found = cursor.execute(
                f"SELECT floor, used FROM session WHERE {MINE}", at
            ).fetchone() or (0, 0)
            if self.is_expired(found[1]):
                return []
            rows = cursor.execute(
                f"SELECT body FROM message WHERE {MINE} AND seq > ? ORDER BY seq", [*at, found[0]]
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
            cursor.execute(f"UPDATE session SET {change} WHERE {MINE}", [value, *at])

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
            cursor.execute(f"UPDATE session SET used = used - ? WHERE {MINE}", [seconds, *at])

    @contextmanager
    def outage(self) -> Iterator[None]:
        path, self.path = self.path, str(Path(self.path).parent)
        try:
            yield
        finally:
            self.path = path

    def damage(self, at: Address, place: int) -> None:
        with self.locked() as cursor:
            cursor.execute(
                f"UPDATE message SET body = '{{oops' WHERE {MINE} AND seq = ?", [*at, place + 1]
            )

    def raw(self, at: Address) -> Iterable[bytes]:
        with self.locked() as cursor:
            rows: list[Any] = cursor.execute(
                f"SELECT body FROM message WHERE {MINE}", at
            ).fetchall()
        return [body if isinstance(body, bytes) else body.encode() for (body,) in rows]
