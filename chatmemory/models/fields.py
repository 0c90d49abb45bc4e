"""Fields and expressions that have the same effect on every database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

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


# Note [Time zones]
#
# Times of our tables are aware in Python, whatever the settings of the host are. SQLite and MariaDB
# store them in UTC, as their clocks above do. Django would read them as local times if USE_TZ is
# False, and in the zone of the connection if DATABASES has a TIME_ZONE. With such settings a time
# has the offset that the host's zone had then: templates show the local time, and comparisons are
# exact when the clocks change.


class _MomentField(models.DateTimeField):  # type: ignore[type-arg]  # has no runtime generics
    """A DateTimeField whose values are aware. See Note [Time zones]."""

    def get_db_converters(self, connection: BaseDatabaseWrapper) -> list[Any]:
        converters: list[Any] = super().get_db_converters(connection)
        return converters if connection.timezone is UTC else [*converters, _aware]

    def get_db_prep_value(
        self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False
    ) -> Any:
        value = value if prepared else self.get_prep_value(value)
        if isinstance(value, datetime) and connection.vendor != "postgresql":
            value = value.astimezone(UTC).replace(tzinfo=None)
        if isinstance(value, datetime) and connection.vendor == "sqlite":
            # SQLite compares texts: an equal time of its clock must have as many digits.
            is_exact = value.microsecond % 1_000 == 0
            return value.isoformat(" ", "milliseconds" if is_exact else "microseconds")
        return super().get_db_prep_value(value, connection, prepared=True)

    def deconstruct(self) -> Any:
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, kwargs  # the same column


def _aware(
    value: datetime | None, expression: object, connection: BaseDatabaseWrapper
) -> datetime | None:
    if value is None:
        return None
    if connection.vendor != "postgresql":
        value = value.replace(tzinfo=UTC)
    try:
        return value.astimezone()  # Python reads a naive time in the zone of the process
    except OverflowError:  # the first or the last day of the calendar
        return value.replace(tzinfo=UTC)


if TYPE_CHECKING:  # mypy knows the values of Django's own fields only
    MomentField = models.DateTimeField
else:
    MomentField = _MomentField


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
    output_field = MomentField()


class StatementNow(DatabaseNow):
    """One time for the whole statement, which a range of an index needs."""

    sql_by_vendor: ClassVar[Mapping[str, str]] = {**CLOCK, "postgresql": "STATEMENT_TIMESTAMP()"}


class DatabaseToday(_Clock):
    """The UTC day on which the statement runs; see Note [Database clock]."""

    sql_by_vendor = TODAY
    output_field = models.DateField()


class SecondsAfter(models.Func):
    """The time a number of seconds after another time: two columns."""

    output_field = MomentField()
    template = "(%(expressions)s)"
    arg_joiner = " + INTERVAL '1 second' * "

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        return self.as_sql(
            compiler,
            connection,
            template="DATE_ADD(%(expressions)s SECOND)",
            arg_joiner=", INTERVAL ",
        )

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        # Each sign is doubled twice: for this template, and for the parameters of the statement.
        form = "%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f"
        template = f"STRFTIME('{form}', %(expressions)s || ' seconds')"
        return self.as_sql(compiler, connection, template=template, arg_joiner=", ")


def database_now(connection: BaseDatabaseWrapper) -> datetime:
    """Read the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {CLOCK[connection.vendor]}")  # a constant
        (value,) = cursor.fetchone()
    now = datetime.fromisoformat(value) if isinstance(value, str) else value
    if connection.vendor == "postgresql":
        return now.astimezone(UTC)  # with USE_TZ = False, a naive time in the zone of the process
    return now.replace(tzinfo=UTC)


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
