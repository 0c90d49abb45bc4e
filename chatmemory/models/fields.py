"""Fields and expressions that have the same effect on every database."""

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
"""The current UTC time on the database's clock, by vendor; see Note [Database clock]."""

TODAY = {
    "postgresql": "(CLOCK_TIMESTAMP() AT TIME ZONE 'UTC')::date",
    "mysql": "UTC_DATE()",
    "sqlite": "DATE('NOW')",
}
"""The current UTC day on the database's clock, by vendor."""

# Note [Database clock]
#
# All times that the app assigns, and comparisons with them (leases, expiry, retention, tickets),
# use the clock of the database. Clocks of processes differ, so a lease that one process reads as
# expired could be valid for another. The time is that at which the statement runs. PostgreSQL's
# `now()` is the start of the transaction, which may then wait for the session's lock, so that a
# later row would get an earlier time. Messages are ordered by seq, never by a time. SQLite's
# clock has milliseconds, the others microseconds. Tests change a time by writing the row.


class _Clock(models.Func):
    """An SQL function of the database's clock, by vendor."""

    sql_by_vendor: ClassVar[Mapping[str, str]]

    def as_sql(
        self,
        compiler: SQLCompiler,
        connection: BaseDatabaseWrapper,
        function: str | None = None,
        template: str | None = None,
        arg_joiner: str | None = None,
        **extra_context: Any,
    ) -> tuple[str, tuple[str | int, ...]]:
        return self.sql_by_vendor[connection.vendor].replace("%", "%%"), ()


class DatabaseNow(_Clock):
    """The UTC time at which the statement runs; see Note [Database clock]."""

    sql_by_vendor: ClassVar[Mapping[str, str]] = CLOCK
    output_field = models.DateTimeField()


class StatementNow(DatabaseNow):
    """One time for the whole statement, which a range of an index needs."""

    sql_by_vendor: ClassVar[Mapping[str, str]] = {**CLOCK, "postgresql": "STATEMENT_TIMESTAMP()"}


class DatabaseToday(_Clock):
    """The UTC day on which the statement runs; see Note [Database clock]."""

    sql_by_vendor = TODAY
    output_field = models.DateField()


def database_now(connection: BaseDatabaseWrapper) -> datetime:
    """Read the database's clock, in the form in which a `DatabaseNow` column is read."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {CLOCK[connection.vendor]}")  # a constant
        (value,) = cursor.fetchone()
    now = datetime.fromisoformat(value) if isinstance(value, str) else value
    if not django_settings.USE_TZ:
        return now.replace(tzinfo=None)
    return now if now.tzinfo else now.replace(tzinfo=UTC)


class KeyField(models.CharField):  # type: ignore[type-arg]  # has no runtime generics
    """A CharField that compares byte by byte on every database.

    MariaDB's default collations treat `Alice`, `alice`, `Álice` and `Alice ` as equal, and all
    emoji too.
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters = super().db_parameters(connection)
        if connection.vendor == "mysql":
            is_mariadb = getattr(connection, "mysql_is_mariadb", False)
            parameters["collation"] = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        return parameters
