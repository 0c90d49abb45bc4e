"""The sizes of the tables, as the database estimates them."""

from __future__ import annotations

from dataclasses import dataclass

from django.apps import apps

from chatmemory.database.faults import write_connection


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of a table with its indexes. SQLite has only that of the whole file."""

    table: str
    size_bytes: int
    index_bytes: int | None
    rows: int | None
    """An estimate; None if the database has none."""


_POSTGRESQL = """\
SELECT relname, pg_total_relation_size(oid), pg_indexes_size(oid),
    CASE WHEN reltuples < 0 THEN NULL ELSE reltuples::bigint END
FROM pg_class
WHERE oid = ANY (SELECT to_regclass(name)::oid FROM unnest(%s::text[]) AS names (name))
ORDER BY 2 DESC"""

_MARIADB = """\
SELECT table_name, data_length + index_length, index_length, table_rows
FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name IN %s
ORDER BY 2 DESC"""

_SQLITE = """\
SELECT 'database', page_count * page_size, NULL, NULL
FROM pragma_page_count(), pragma_page_size()"""


def read_storage() -> list[TableSize]:
    """Return the sizes of the app's tables, the largest first, in one statement."""
    connection = write_connection()
    tables = [model._meta.db_table for model in apps.get_app_config("chatmemory").get_models()]
    statements = {
        "postgresql": (_POSTGRESQL, [[connection.ops.quote_name(name) for name in tables]]),
        "mysql": (_MARIADB, [tables]),
        "sqlite": (_SQLITE, []),
    }
    sql, parameters = statements[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return [TableSize(*row) for row in cursor.fetchall()]
