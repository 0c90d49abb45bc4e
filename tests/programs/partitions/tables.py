"""Rebuild the tables of messages and turns with partitions by their session, on PostgreSQL."""

from __future__ import annotations

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from chatmemory.models import Message, Turn

PARTITIONS = 16
TABLES = (Message._meta.db_table, Turn._meta.db_table)

_FOREIGN_KEYS = """
SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = %s::regclass AND contype = 'f'"""
_UNIQUE_CONSTRAINTS = """
SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = %s::regclass AND contype = 'u'"""
_INDEXES = """
SELECT pg_get_indexdef(indexrelid) FROM pg_index
WHERE indrelid = %s::regclass
    AND NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = indexrelid AND contype <> 'f')"""
_STORAGE = "SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE oid = %s::regclass"


def partition_tables(connection: BaseDatabaseWrapper) -> None:
    """Replace both tables, which must be empty; do nothing if they have partitions.

    The primary key becomes (session_id, id): a unique index must contain the session.
    """
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute("SELECT relkind FROM pg_class WHERE oid = %s::regclass", [table])
            if cursor.fetchone() != ("p",):
                _replace(cursor, table)


def _replace(cursor: CursorWrapper, table: str) -> None:
    cursor.execute(f"SELECT count(*) FROM {table}")  # noqa: S608  # names only
    if (count := cursor.fetchone()[0]) != 0:
        raise ValueError(f"{table} has {count} rows; only an empty table can be replaced.")
    found = {}
    for query in (_FOREIGN_KEYS, _UNIQUE_CONSTRAINTS, _INDEXES, _STORAGE):
        cursor.execute(query, [table])
        found[query] = cursor.fetchall()
    cursor.execute(
        f"CREATE TABLE {table}_new (LIKE {table} INCLUDING ALL EXCLUDING INDEXES)"
        " PARTITION BY HASH (session_id)"
    )
    cursor.execute(f"DROP TABLE {table}")
    cursor.execute(f"ALTER TABLE {table}_new RENAME TO {table}")
    cursor.execute(f"ALTER SEQUENCE {table}_new_id_seq RENAME TO {table}_id_seq")
    cursor.execute(f"ALTER TABLE {table} ADD PRIMARY KEY (session_id, id)")
    for name, definition in found[_UNIQUE_CONSTRAINTS] + found[_FOREIGN_KEYS]:
        cursor.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}")
    for (definition,) in found[_INDEXES]:
        cursor.execute(definition)
    [(storage,)] = found[_STORAGE]
    for number in range(PARTITIONS):
        cursor.execute(
            f"CREATE TABLE {table}_{number} PARTITION OF {table}"
            f" FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {number})"
            + (f" WITH ({storage})" if storage else "")
        )
