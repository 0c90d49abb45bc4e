"""The check of the character set of MariaDB's columns, by default the database's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db import connections, router

from chatmemory.models import Session, installed_models

# Not CONVERT TO CHARACTER SET, which would also change the collations that our columns name. The
# columns of JSON, which is ASCII here, have a constraint that MODIFY would drop.
_COLUMNS = """\
SELECT c.table_name, c.column_name, c.column_type, c.is_nullable, c.column_default
FROM information_schema.columns c
WHERE c.table_schema = DATABASE() AND c.table_name LIKE %s
    AND c.character_set_name IS NOT NULL AND c.character_set_name <> 'utf8mb4'
    AND NOT EXISTS (
        SELECT 1 FROM information_schema.check_constraints k
        WHERE k.constraint_schema = c.table_schema AND k.table_name = c.table_name
            AND k.constraint_name = c.column_name
    )
ORDER BY c.table_name, c.ordinal_position"""


@checks.register(checks.Tags.database)
def check_character_sets(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **_: Any
) -> list[checks.CheckMessage]:
    """Warn of columns on MariaDB that cannot store each text."""
    alias = router.db_for_write(Session)
    connection = connections[alias]
    if alias not in (databases or ()) or connection.vendor != "mysql":
        return []
    quote = connection.ops.quote_name
    tables = {model._meta.db_table for model in installed_models()}
    with connection.cursor() as cursor:
        cursor.execute(_COLUMNS, ["chatmemory%"])
        found = [row for row in cursor.fetchall() if row[0] in tables]
    if not found:
        return []
    statements = [
        f"ALTER DATABASE {quote(connection.settings_dict['NAME'])} CHARACTER SET utf8mb4;"
    ]
    for table, columns in groupby(found, itemgetter(0)):
        changes = ", ".join(
            f"MODIFY {quote(name)} {kind} CHARACTER SET utf8mb4"
            f"{'' if is_nullable == 'YES' else ' NOT NULL'}"
            f"{'' if default is None else f' DEFAULT {default}'}"
            for _, name, kind, is_nullable, default in columns
        )
        statements.append(f"ALTER TABLE {quote(table)} {changes};")
    return [
        checks.Warning(
            f"{len(found)} columns of chatmemory have another character set than utf8mb4.",
            hint="A message with an emoji is refused, and a reply with one fails. Run:\n"
            + "\n".join(statements),
            id="chatmemory.W042",
        )
    ]
