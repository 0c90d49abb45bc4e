"""Count the bytes of a message on PostgreSQL: of the table, of each index and of each column.

Usage: `python -m tests.programs.benchmarks.storage [ROWS]`, on a migrated PostgreSQL database. It
fills a schema of its own, which it drops at the end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django.setup()  # before anything below imports a model

from django.db import connection  # noqa: E402  # after the setup
from django.db.backends.utils import CursorWrapper  # noqa: E402

from chatmemory.models import Message  # noqa: E402

CHARS = 400
"""The average text. Texts have 1 to 799 characters: a page would waste space on equal ones."""
SCHEMA = "chatmemory_storage"
TABLE = f"{SCHEMA}.message"
COLUMNS = [str(field.column) for field in Message._meta.local_concrete_fields]

_FILL = """\
INSERT INTO {table} (
    id, session_id, seq, turn, revision, created_at, batch, step, tokens, redacted, quarantined,
    role, text, client_id, status, error, model
)
SELECT
    number,
    (number - 1) / 50 + 1,
    (number - 1) % 50 + 1,
    {turn},
    0,
    now(),
    {batch},
    {step},
    100,
    false,
    false,
    CASE WHEN is_user THEN 'user' ELSE 'assistant' END,
    repeat('x', (number * 7919 % 799)::int + 1),
    {client_id},
    'complete',
    '',
    ''
FROM (
    SELECT number, number % 2 = 1 AS is_user FROM generate_series(1, {rows}::bigint) AS number
) AS given"""

SHORT_ID = "left(translate(encode(uuid_send(gen_random_uuid()), 'base64'), '+/', '-_'), 22)"
HEX_ID = "replace(gen_random_uuid()::text, '-', '')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How messages are stored."""

    is_batch_of_two: bool = True
    """One call stores a question and its answer, as by LangChain; else each has its own call, as in
    a turn over a socket."""
    client_id: str = SHORT_ID
    """SQL of a random client_id."""
    in_model_order: bool = False
    """Columns in the order of the model instead of the migration's."""
    is_index_full: bool = False
    """The index of client_ids contains the rows without one."""

    def values(self) -> dict[str, str]:
        """Return the SQL of the columns that depend on the case."""
        if self.is_batch_of_two:
            client_id = f"CASE WHEN is_user THEN {self.client_id} END"
            batch = "CASE WHEN is_user THEN 2 END"
            return {"turn": "NULL", "batch": batch, "step": "NULL", "client_id": client_id}
        step = "CASE WHEN NOT is_user THEN 1 END"
        turn = "(number - 1) / 2 * 2 % 50 + 1"
        return {"turn": turn, "batch": "1", "step": step, "client_id": self.client_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes for each message."""

    table: float
    indexes: dict[str, float]
    columns: dict[str, float]

    @property
    def ratio(self) -> float:
        """The table and its indexes as a multiple of the text."""
        return (self.table + sum(self.indexes.values())) / CHARS


def measure(case: Case, rows: int) -> Sizes:
    """Store messages in a table of their own, and return their sizes."""
    with _own_schema() as cursor:
        _create_table(cursor, case)
        cursor.execute(_FILL.format(table=TABLE, rows=rows, **case.values()))
        cursor.execute(_INDEXES, [TABLE])
        names = [name for (name,) in cursor.fetchall()]
        sums = ", ".join(f"coalesce(sum(pg_column_size({name})), 0)" for name in COLUMNS)
        cursor.execute(f"SELECT {sums} FROM {TABLE}")  # noqa: S608  # names only
        columns = zip(COLUMNS, cursor.fetchone(), strict=True)
        return Sizes(
            table=_size(cursor, TABLE) / rows,
            indexes={name.split(".")[-1]: _size(cursor, name) / rows for name in names},
            columns={name: float(size) / rows for name, size in columns},
        )


_INDEXES = "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = %s::regclass"


@contextmanager
def _own_schema() -> Iterator[CursorWrapper]:
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA {SCHEMA}")
        try:
            yield cursor
        finally:
            cursor.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


def _create_table(cursor: CursorWrapper, case: Case) -> None:
    source = Message._meta.db_table
    if not case.in_model_order and not case.is_index_full:
        cursor.execute(f"CREATE TABLE {TABLE} (LIKE {source} INCLUDING ALL)")
        return
    columns = ", ".join(COLUMNS) if case.in_model_order else "*"
    where = "" if case.is_index_full else "WHERE client_id IS NOT NULL"
    cursor.execute(f"CREATE TABLE {TABLE} AS SELECT {columns} FROM {source} WITH NO DATA")  # noqa: S608  # names only
    for index in ("(id)", "(session_id, seq)", f"(session_id, client_id) {where}"):
        cursor.execute(f"CREATE UNIQUE INDEX ON {TABLE} {index}")


def _size(cursor: CursorWrapper, relation: str) -> int:
    cursor.execute("SELECT pg_relation_size(%s::regclass)", [relation])
    size: int = cursor.fetchone()[0]
    return size


def main(rows: int) -> None:
    """Print the sizes of each case, then those of the columns."""
    before = Case(client_id=HEX_ID, in_model_order=True, is_index_full=True)
    cases = {
        "model order, full index, hexadecimal ids": before,
        "  with a partial index": replace(before, is_index_full=False),
        "  with fixed widths first too": Case(client_id=HEX_ID),
        "  with short ids too": Case(),
    }
    for is_batch_of_two in (True, False):
        sys.stdout.write("\nbatches of two\n" if is_batch_of_two else "\nturns\n")
        for name, case in cases.items():
            sizes = measure(replace(case, is_batch_of_two=is_batch_of_two), rows)
            indexes = "".join(f"{size:>8.1f}" for size in sizes.indexes.values())
            line = f"{name:<42}{sizes.table:>8.1f}{indexes}{sizes.ratio:>8.3f}\n"
            sys.stdout.write(line)
        for column, size in sizes.columns.items():
            sys.stdout.write(f"    {column:<38}{size:>8.1f}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
