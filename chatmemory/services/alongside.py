"""Writes to a turn that go with its rows: on PostgreSQL in their statement, else in their unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Field
from django.db.models.sql import Query

from chatmemory.models import Turn


class Place(Protocol):
    """Where the rows came to lie."""

    @property
    def session_pk(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def fence(self) -> int: ...
    @property
    def first_seq(self) -> int: ...


class TurnWrite(Protocol):
    """A write to one turn."""

    def sql(self, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        """For PostgreSQL, with its parameters: `locked` has the session's row, or none."""

    def write(self, place: Place) -> int | None:
        """The same through the ORM; return the primary key of a new turn."""


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn that begins with the first of the rows; session, number and fence are theirs."""

    columns: Mapping[str, Any]

    def sql(self, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        quote = connection.ops.quote_name
        turn = Turn(**self.columns)
        names = ["session_id", "epoch", "fence", "user_seq"]
        values = ["locked.id", "locked.epoch", "locked.fence", "locked.before + 1"]
        params: list[Any] = []
        for field in Turn._meta.concrete_fields:
            is_given = field.name in self.columns or not field.has_db_default()
            if is_given and not field.primary_key and field.attname not in names:
                value, more = _sql(field, getattr(turn, field.name), connection)
                names.append(field.attname)
                values.append(f"{value}::{field.db_type(connection)}")
                params += more
        columns = ", ".join(map(quote, names))
        table = quote(Turn._meta.db_table)
        return f"INSERT INTO {table} ({columns}) SELECT {', '.join(values)} FROM locked", params  # noqa: S608  # names only

    def write(self, place: Place) -> int:
        turn = Turn.objects.create(
            session_id=place.session_pk,
            epoch=place.epoch,
            fence=place.fence,
            user_seq=place.first_seq,
            **self.columns,
        )
        return turn.pk


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """The turn of the locked session with this client_id; its last row is among the rows."""

    client_id: str
    columns: Mapping[str, Any]

    def sql(self, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        quote = connection.ops.quote_name
        table = quote(Turn._meta.db_table)
        fields = {field.name: field for field in Turn._meta.concrete_fields}
        parts: list[str] = []
        params: list[Any] = []
        for name, given in self.columns.items():
            value, more = _sql(fields[name], given, connection)
            parts.append(f"{quote(name)} = {value}")
            params += more
        # With the join nothing is done where the session's conditions did not hold.
        return (
            f"UPDATE {table} SET {', '.join(parts)} FROM locked "  # noqa: S608  # names only
            f"WHERE {table}.session_id = locked.id AND {table}.client_id = %s",
            [*params, self.client_id],
        )

    def write(self, place: Place) -> None:
        turns = Turn.objects.filter(session=place.session_pk, client_id=self.client_id)
        turns.update(**self.columns)


def _sql(
    field: Field[Any, Any], value: Any, connection: BaseDatabaseWrapper
) -> tuple[str, list[Any]]:
    if not hasattr(value, "resolve_expression"):
        return "%s", [field.get_db_prep_save(value, connection)]
    query = Query(Turn, alias_cols=False)
    compiler = query.get_compiler(connection=connection)
    sql, params = compiler.compile(value.resolve_expression(query, for_save=True))
    return sql, list(params)
