"""Columns that behave alike on every database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

from django.conf import settings as django_settings
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql.compiler import SQLCompiler

CLOCK = {
    "postgresql": "CLOCK_TIMESTAMP()",
    "mysql": "UTC_TIMESTAMP(6)",
    "sqlite": "STRFTIME('%Y-%m-%d %H:%M:%f','NOW')",
}
"""The database's clock, by vendor. Not `now()`, which on PostgreSQL is when the transaction
began: before the wait for the lock."""


TODAY = {
    "postgresql": "(CLOCK_TIMESTAMP() AT TIME ZONE 'UTC')::date",
    "mysql": "UTC_DATE()",
    "sqlite": "DATE('NOW')",
}
"""The day on the database's clock, in UTC, by vendor."""


class _Clock(models.Func):
    """What the database's clock says, by vendor."""

    says: ClassVar[Mapping[str, str]]

    def as_sql(
        self,
        compiler: SQLCompiler,
        connection: BaseDatabaseWrapper,
        function: str | None = None,
        template: str | None = None,
        arg_joiner: str | None = None,
        **extra_context: Any,
    ) -> tuple[str, tuple[str | int, ...]]:
        return self.says[connection.vendor].replace("%", "%%"), ()


class DatabaseNow(_Clock):
    """The time on the database's clock, in UTC, at the moment the row is written."""

    says = CLOCK
    output_field = models.DateTimeField()


class DatabaseToday(_Clock):
    """The day on the database's clock, in UTC."""

    says = TODAY
    output_field = models.DateField()


def database_now(connection: BaseDatabaseWrapper) -> datetime:
    """The time on the database's clock, as a column with `DatabaseNow` gives it back."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {CLOCK[connection.vendor]}")  # a constant
        (value,) = cursor.fetchone()
    now = datetime.fromisoformat(value) if isinstance(value, str) else value
    if not django_settings.USE_TZ:
        return now.replace(tzinfo=None)
    return now if now.tzinfo else now.replace(tzinfo=UTC)


class KeyField(models.CharField):  # type: ignore[type-arg]  # has no runtime generics
    """A short text that is compared byte by byte on every database.

    MariaDB's usual collations hold `Alice`, `alice`, `Álice` and `Alice ` for one key, and
    all emoji for equal.
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters = super().db_parameters(connection)
        if connection.vendor == "mysql":
            maria = getattr(connection, "mysql_is_mariadb", False)
            parameters["collation"] = "utf8mb4_nopad_bin" if maria else "utf8mb4_0900_bin"
        return parameters
