"""Compare the columns of the app's tables with the models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from django.db.models import Model

from chatmemory.database.faults import write_connection
from chatmemory.database.retries import retried
from chatmemory.models import installed_models

REMEDY = (
    "Run `manage.py migrate`: it also makes the tables of a new app. Only if that does not help, "
    "an earlier version of 0001_initial made the tables. With that version of chatmemory, run "
    "`chatmemory_export --all` and then `migrate chatmemory zero`. With this version, run "
    "`migrate` and `chatmemory_import --own-scopes`."
)
"""What to do about wrong tables. Only the version that made them can drop all of them."""

# Not Django's introspection: it needs several statements for each table, and cannot parse all of
# SQLite's tables.
_COLUMNS = """\
SELECT table_name, column_name, is_nullable = 'YES', column_default IS NOT NULL
FROM information_schema.columns WHERE table_schema """
_STATEMENTS = {
    "postgresql": f"{_COLUMNS} = ANY (current_schemas(false))",
    "mysql": f"{_COLUMNS} = DATABASE()",
    "sqlite": """\
SELECT tables.name, columns.name, NOT columns."notnull", columns.dflt_value IS NOT NULL
FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns
WHERE tables.type = 'table'""",
}

Stored = dict[str, tuple[bool, bool]]
"""The columns of a table: whether each can be NULL, and whether it has a default."""


@retried(is_repeatable=True)
def wrong_tables() -> list[str]:
    """Return a sentence for each table that does not fit its model; none before the first migrate.

    A column that no model has is wrong if it needs a value. Raises MemoryUnavailable.
    """
    connection = write_connection()
    tables: defaultdict[str, Stored] = defaultdict(dict)
    with connection.cursor() as cursor:
        cursor.execute(_STATEMENTS[connection.vendor])
        for table, column, can_be_null, has_default in cursor.fetchall():
            tables[table][column] = (bool(can_be_null), bool(has_default))
    models = {model._meta.db_table: model for model in installed_models()}
    if tables.keys().isdisjoint(models):
        return []
    return [
        f"Table {table} {fault}."
        for table, model in models.items()
        for fault in faults(model, tables.get(table, {}))
    ]


def faults(model: type[Model], stored: Stored) -> Iterator[str]:
    """Yield what is wrong with the table of a model."""
    if not stored:
        yield "is missing"
        return
    fields = {str(field.column): field for field in model._meta.concrete_fields}
    if missing := [column for column in fields if column not in stored]:
        yield f"lacks {', '.join(missing)}"
    required = [
        column
        for column, (can_be_null, has_default) in stored.items()
        if column not in fields and not (can_be_null or has_default)
    ]
    if required:
        yield f"requires {', '.join(required)}, which no model has"
    strict = [
        column
        for column, (can_be_null, _) in stored.items()
        if not can_be_null and column in fields and fields[column].null
    ]
    if strict:
        yield f"refuses NULL in {', '.join(strict)}"
