"""Writes to a turn together with its rows: on PostgreSQL in the same statement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

from chatmemory.database.sql import Values
from chatmemory.models import Turn

# SELECT and not VALUES: it inserts no row where the conditions on the session did not hold.
_INSERT = """\
INSERT INTO {turns} ({columns})
    SELECT {values}
    FROM locked
    RETURNING id"""

# `locked` without a row has the same effect for the update. The session is a value, and not
# `locked.id`, since PostgreSQL would otherwise read all partitions of a table by session.
_UPDATE = """\
UPDATE {turns}
    SET {assignments}
    FROM locked
    WHERE {turns}.session_id = {session} AND {turns}.client_id = {client_id}
    RETURNING {turns}.id"""


# Not `StoredRows` itself: its module imports this one.
class StoredAt(Protocol):
    """The position of stored rows."""

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

    def values(self) -> Mapping[str, Any]:
        """Return the values of the statement by name; its text depends on their shape alone."""

    def sql(self, values: Values) -> str:
        """Return a statement for PostgreSQL that returns the turn's id.

        It reads the CTE `locked`: the row of the locked session, or none.
        """

    def write(self, stored_at: StoredAt) -> int | None:
        """Write the turn with the ORM; return the primary key of a new turn."""


_FROM_SESSION: Final[Mapping[str, str]] = {
    "session_id": "locked.id",
    "epoch": "locked.epoch",
    "fence": "locked.fence",
    "user_seq": "locked.before + 1",
}
"""Columns of a new turn that the statement takes from its session."""


@cache
def _defaults() -> Mapping[str, Any]:
    """Return the defaults of the other columns, except those that the database sets."""
    return {
        field.attname: field.get_default()
        for field in Turn._meta.concrete_fields
        if not (field.primary_key or field.attname in _FROM_SESSION or field.has_db_default())
    }


@dataclass(frozen=True, slots=True)
class TurnInsert:
    """A new turn that begins with the first of the rows, with their session, epoch and fence."""

    columns: Mapping[str, Any]
    """Expressions among them are the same objects in each call, see `Values`."""

    def values(self) -> Mapping[str, Any]:
        return {f"turn_{name}": value for name, value in {**_defaults(), **self.columns}.items()}

    def sql(self, values: Values) -> str:
        columns = {
            **_FROM_SESSION,
            **{name: values.sql_of(f"turn_{name}") for name in {**_defaults(), **self.columns}},
        }
        return _INSERT.format(
            turns=values.quote(Turn._meta.db_table),
            columns=", ".join(map(values.quote, columns)),
            values=", ".join(columns.values()),
        )

    def write(self, stored_at: StoredAt) -> int:
        turn = Turn.objects.create(
            session_id=stored_at.session_pk,
            epoch=stored_at.epoch,
            fence=stored_at.fence,
            user_seq=stored_at.first_seq,
            **self.columns,
        )
        return turn.pk


@dataclass(frozen=True, slots=True)
class TurnUpdate:
    """New values for the turn of the locked session with this client_id."""

    session_pk: int
    client_id: str
    columns: Mapping[str, Any]

    def values(self) -> Mapping[str, Any]:
        columns = {f"turn_{name}": value for name, value in self.columns.items()}
        address = {"session_of_turn": self.session_pk, "client_id_of_turn": self.client_id}
        return {**columns, **address}

    def sql(self, values: Values) -> str:
        assignments = (
            f"{values.quote(name)} = {values.sql_of(f'turn_{name}')}" for name in self.columns
        )
        return _UPDATE.format(
            turns=values.quote(Turn._meta.db_table),
            assignments=", ".join(assignments),
            session=values.sql_of("session_of_turn"),
            client_id=values.sql_of("client_id_of_turn"),
        )

    def write(self, stored_at: StoredAt) -> None:
        turns = Turn.objects.filter(session=self.session_pk, client_id=self.client_id)
        turns.update(**self.columns)
