"""The sizes of the tables, as the database estimates them."""

from __future__ import annotations

from dataclasses import dataclass

from chatmemory.database.faults import write_connection
from chatmemory.models import installed_models


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of a table with its indexes. SQLite only knows the size of the whole file."""

    table: str
    size_bytes: int
    index_bytes: int | None
    rows: int | None
    """An estimate; None if the database has none."""


# The rows of a table with partitions are in the partitions; `pg_partition_tree` has no others.
_POSTGRESQL = """\
SELECT tables.relname, sum(pg_total_relation_size(parts.oid))::bigint,
    sum(pg_indexes_size(parts.oid))::bigint,
    CASE WHEN max(parts.reltuples) >= 0 THEN sum(greatest(parts.reltuples, 0))::bigint END
FROM pg_class AS tables
LEFT JOIN pg_partition_tree(tables.oid) AS tree ON tree.isleaf
JOIN pg_class AS parts ON parts.oid = coalesce(tree.relid, tables.oid)
WHERE tables.oid = ANY (SELECT to_regclass(name)::oid FROM unnest(%s::text[]) AS names (name))
GROUP BY tables.oid, tables.relname
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
    tables = [model._meta.db_table for model in installed_models()]
    statements = {
        "postgresql": (_POSTGRESQL, [[connection.ops.quote_name(name) for name in tables]]),
        "mysql": (_MARIADB, [tables]),
        "sqlite": (_SQLITE, []),
    }
    sql, parameters = statements[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return [TableSize(*row) for row in cursor.fetchall()]
