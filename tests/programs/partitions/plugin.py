"""Run tests on tables with partitions: `pytest -p tests.programs.partitions.plugin`.

The tables are replaced after each migration of the test's database.
"""

from __future__ import annotations

from django.db import connections
from django.db.models.signals import post_migrate


def _replace_tables(using: str, **_: object) -> None:
    # pytest imports plugins before pytest-django sets Django up.
    from tests.programs.partitions.tables import TABLES, partition_tables

    existing = connections[using].introspection.table_names()
    if set(TABLES) <= set(existing):  # not while a test of migrations has removed them
        partition_tables(connections[using])


post_migrate.connect(_replace_tables)
