"""What the tables of the app contain, as digests that can be compared after an upgrade."""

from __future__ import annotations

import hashlib
from typing import Any

from django.db import connection

AUDIT_KEY = "the fixed key of the databases in tests/upgrades"


def contents() -> dict[str, dict[str, Any]]:
    """Return the number of rows of each table of the app, and a digest of each column."""
    with connection.cursor() as cursor:
        tables = sorted(connection.introspection.table_names(cursor))
    return {name: _table(name) for name in tables if name.startswith("chatmemory_")}


def _table(name: str) -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {name} ORDER BY id")  # noqa: S608  # a name of ours
        columns = [column[0] for column in cursor.description]
        rows = cursor.fetchall()
    values = dict(zip(columns, zip(*rows, strict=True), strict=False))
    return {
        "rows": len(rows),
        "columns": {column: _digest(values.get(column, ())) for column in columns},
    }


def _digest(values: tuple[object, ...]) -> str:
    text = "\n".join("NULL" if value is None else f"={value}" for value in values)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
