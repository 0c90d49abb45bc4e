"""The one place where rows get their numbers.

The UPDATE of the session row takes the lock and the numbers; the rows follow in the same statement
on PostgreSQL, in the same transaction elsewhere. Every condition stands on the session row: after
a wait for the lock PostgreSQL reads only that row again, so a subquery would see the past.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from chatmemory.codec import Row
from chatmemory.conf import settings
from chatmemory.models import CLOCK, TODAY, Message, Session, Turn, unexpired_sql
from chatmemory.services.alongside import TurnWrite
from chatmemory.services.faults import database
from chatmemory.services.locks import unit
from chatmemory.services.news import tell_appended

OPEN: Final[Mapping[str, object]] = {"removed_at": None, "archived_at": None}
"""What every session that takes messages has, besides not being expired."""

OWN_TURN: Final = -1
"""As `turn` of `store`: the row begins a turn, so its own number is the turn's."""

ARRAYS_ABOVE = 16
"""From how many rows on PostgreSQL is given arrays instead of single values."""

_COLUMNS = (
    "role",
    "text",
    "body",
    "client_id",
    "batch",
    "step",
    "status",
    "error",
    "model",
    "tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Where rows came to lie, and the session row after it."""

    session_pk: int
    epoch: int
    fence: int
    waiting: int
    first_seq: int
    last_seq: int
    turn_pk: int | None = None
    """Of the turn that was written with them."""


def store(
    rows: Sequence[Row],
    *,
    at: Mapping[str, object],
    only_if: Mapping[str, object],
    unexpired: bool = False,
    client_id: str | None = None,
    turn: int | None = None,
    put: Mapping[str, object] | None = None,
    add: dict[str, int] | None = None,
    turn_write: TurnWrite | None = None,
) -> Stored | None:
    """Lock the session, number the rows and insert them; None if a condition doesn't hold.

    `at` are the columns that address the session, `only_if` what they and others must be (None
    for null), `put` and `add` what else changes on its row, `turn_write` what is done to a turn.
    Raises IntegrityError if `client_id` is there already, for rows or for a new turn; nothing is
    changed then. One statement on PostgreSQL outside a transaction.
    """
    connection = database()
    write = _Write(
        connection, rows, client_id, turn, turn_write, is_bounded=not connection.in_atomic_block
    )
    where, where_params = write.where({**at, **only_if}, unexpired=unexpired)
    changes, change_params = write.changes(put or {}, add or {})
    with _unit(connection), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            stored = write.at_once(cursor, changes, change_params, where, where_params)
        else:
            stored = write.in_steps(cursor, changes, change_params, where, where_params, at)
            if stored is not None and turn_write is not None:
                stored = replace(stored, turn_pk=turn_write.write(stored))
    if stored is not None:
        tell_appended(
            stored.session_pk,
            first_seq=stored.first_seq,
            last_seq=stored.last_seq,
            roles=[row.role for row in rows],
            turn=stored.first_seq if turn == OWN_TURN else turn,
        )
    return stored


def _unit(connection: BaseDatabaseWrapper) -> AbstractContextManager[None]:
    """A transaction or savepoint, where the statement isn't one by itself."""
    is_one = connection.vendor == "postgresql" and not connection.in_atomic_block
    return nullcontext() if is_one else unit()


class _Write:
    """The statements of one `store`, for one database."""

    def __init__(
        self,
        connection: BaseDatabaseWrapper,
        rows: Sequence[Row],
        client_id: str | None,
        turn: int | None,
        turn_write: TurnWrite | None,
        *,
        is_bounded: bool,
    ) -> None:
        self.connection = connection
        self.is_bounded = is_bounded
        self.quote = connection.ops.quote_name
        self.clock = CLOCK[connection.vendor].replace("%", "%%")
        self.session = self.quote(Session._meta.db_table)
        self.message = self.quote(Message._meta.db_table)
        self.turns = self.quote(Turn._meta.db_table)
        self.turn = turn
        self.turn_write = turn_write
        self.rows = rows
        self.values = [
            (
                row.role,
                row.text,
                row.body,
                client_id if place == 0 else None,
                len(rows) if place == 0 else None,
                row.step,
                row.status,
                row.error,
                row.model,
                row.tokens,
            )
            for place, row in enumerate(rows)
        ]

    def where(
        self, conditions: Mapping[str, object], *, unexpired: bool
    ) -> tuple[str, list[object]]:
        parts = [
            f"{self.quote(name)} IS NULL" if value is None else f"{self.quote(name)} = %s"
            for name, value in conditions.items()
        ]
        params = [value for value in conditions.values() if value is not None]
        if unexpired:
            goes_on, more = unexpired_sql(self.connection)
            parts.append(goes_on)
            params += more
        return " AND ".join(parts), params

    def changes(self, put: Mapping[str, object], add: dict[str, int]) -> tuple[str, list[object]]:
        greatest = "MAX" if self.connection.vendor == "sqlite" else "GREATEST"
        latest_day = f"{greatest}(last_active_day, {TODAY[self.connection.vendor]})"
        growth = {"last_seq": len(self.rows), "tokens": sum(row.tokens for row in self.rows)} | add
        parts = [f"{name} = {name} + %s" for name in growth]
        parts += [f"{name} = %s" for name in put]
        parts += [f"last_message_at = {self.clock}", f"last_active_day = {latest_day}"]
        return ", ".join(parts), [*growth.values(), *put.values()]

    def at_once(
        self,
        cursor: Any,
        changes: str,
        change_params: list[object],
        where: str,
        where_params: list[object],
    ) -> Stored | None:
        bounded = ""
        params: list[object] = []
        if self.is_bounded:
            bounded = "bounded AS MATERIALIZED (SELECT set_config('lock_timeout', %s, true)), "
            params.append(f"{int(settings.LOCK_TIMEOUT * 1000)}ms")
        source, source_params = self.source()
        own = "locked.before + 1" if self.turn == OWN_TURN else "%s::bigint"
        params += [*change_params, *where_params]
        along, of_turn = "", "NULL"
        if self.turn_write is not None:
            sql, more = self.turn_write.sql(self.connection)
            along, of_turn = (
                f", along AS ({sql} RETURNING {self.turns}.id)",
                "(SELECT id FROM along)",
            )
            params += more
        params += [] if self.turn == OWN_TURN else [self.turn]
        cursor.execute(
            f"WITH {bounded}locked AS ("  # noqa: S608  # names only; values are parameters
            f"UPDATE {self.session} SET {changes} {'FROM bounded' if bounded else ''} "
            f"WHERE {where} "
            f"RETURNING id, last_seq - {len(self.rows)} AS before, epoch, fence, waiting){along} "
            f"INSERT INTO {self.message} (session_id, seq, turn, {', '.join(_COLUMNS)}) "
            f"SELECT locked.id, locked.before + given.place, {own}, "
            f"{', '.join(f'given.{name}' for name in _COLUMNS)} "
            f"FROM locked, {source} AS given (place, {', '.join(_COLUMNS)}) "
            "RETURNING session_id, seq, (SELECT epoch FROM locked), "
            f"(SELECT fence FROM locked), (SELECT waiting FROM locked), {of_turn}",
            [*params, *source_params],
        )
        found = max(cursor.fetchall(), key=lambda found: found[1], default=None)
        return None if found is None else self.stored(*found)

    def stored(
        self,
        session_pk: int,
        last_seq: int,
        epoch: int,
        fence: int,
        waiting: int,
        turn_pk: int | None = None,
    ) -> Stored:
        return Stored(
            session_pk=session_pk,
            epoch=epoch,
            fence=fence,
            waiting=waiting,
            first_seq=last_seq - len(self.rows) + 1,
            last_seq=last_seq,
            turn_pk=turn_pk,
        )

    def source(self) -> tuple[str, list[object]]:
        types = ("bigint", *_column_types(self.connection.alias))
        if len(self.rows) > ARRAYS_ABOVE:
            arrays = [list(column) for column in zip(*self.values, strict=True)]
            places = list(range(1, len(self.rows) + 1))
            casts = ", ".join(f"%s::{kind}[]" for kind in types)
            return f"unnest({casts})", [places, *arrays]
        first = "(" + ", ".join(f"%s::{kind}" for kind in types) + ")"
        other = "(" + ", ".join(["%s"] * len(types)) + ")"
        rows = ", ".join([first] + [other] * (len(self.rows) - 1))
        params: list[object] = [
            value for n, row in enumerate(self.values, 1) for value in (n, *row)
        ]
        return f"(VALUES {rows})", params

    def in_steps(
        self,
        cursor: Any,
        changes: str,
        change_params: list[object],
        where: str,
        where_params: list[object],
        at: Mapping[str, object],
    ) -> Stored | None:
        update = f"UPDATE {self.session} SET {changes} WHERE {where}"  # noqa: S608  # names only
        wanted = "id, last_seq, epoch, fence, waiting"
        if self.connection.vendor == "sqlite":
            cursor.execute(f"{update} RETURNING {wanted}", [*change_params, *where_params])
            found = cursor.fetchone()
        else:
            cursor.execute(update, [*change_params, *where_params])
            found = None
            if cursor.rowcount:
                address, address_params = self.where(at, unexpired=False)
                cursor.execute(
                    f"SELECT {wanted} FROM {self.session} WHERE {address}",  # noqa: S608  # names only
                    address_params,
                )
                found = cursor.fetchone()
        if found is None:
            return None
        session_pk, last_seq = found[:2]
        before = last_seq - len(self.rows)
        turn = before + 1 if self.turn == OWN_TURN else self.turn
        row = "(" + ", ".join(["%s"] * (3 + len(_COLUMNS))) + ")"
        cursor.execute(
            f"INSERT INTO {self.message} "  # noqa: S608  # names only
            f"(session_id, seq, turn, {', '.join(_COLUMNS)}) "
            f"VALUES {', '.join([row] * len(self.rows))}",
            [
                value
                for place, values in enumerate(self.values, 1)
                for value in (session_pk, before + place, turn, *values)
            ],
        )
        return self.stored(*found)


@cache
def _column_types(alias: str) -> tuple[str, ...]:
    connection = connections[alias]
    return tuple(str(Message._meta.get_field(name).db_type(connection)) for name in _COLUMNS)
