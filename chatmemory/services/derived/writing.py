"""Store rows that were made from messages, unless the messages have changed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chatmemory.access.actors import Actor
from chatmemory.access.addresses import Address, address_lane
from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.database.pool import Lane, in_pool
from chatmemory.database.retries import retried
from chatmemory.errors import BadInput, NotFound
from chatmemory.models import Session, superseded
from chatmemory.models.derived import DerivedRow
from chatmemory.services.derived.removal import overlapping, remove


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a session before its messages were read. See `store`."""

    session_pk: int
    epoch: int
    rows_revision: int


def seen_of(session: Session) -> Seen:
    """Return the state of a session that was read before its messages."""
    return Seen(session.pk, session.epoch, session.rows_revision)


@retried(is_repeatable=True)
def see(*, session_key: str, by: Actor, scope: str | None = None) -> Seen:
    """Return the state of a session, to be passed to `store`. Call it before you read messages.

    Raises NotFound, BadInput, MemoryUnavailable.
    """
    found = Address(session_key, by, scope).sessions()
    for seen in found.values_list("pk", "epoch", "rows_revision"):
        return Seen(*seen)
    raise NotFound


@retried(is_repeatable=False)
def store(seen: Seen, rows: Sequence[DerivedRow], *, replace: bool = False) -> bool:
    """Store rows that were made from messages of a session, all of one model; or none.

    Returns False and stores nothing if a message was changed since `seen`, if the session was
    cleared, purged or erased, or if the first message of a row is hidden. So it does for a model
    with `when_hidden = "delete"` if an edit has superseded a message of a row. Read again then. An
    append changes nothing of this. The rows get their session here. With `replace`, the rows that
    are stored and overlap them are deleted.
    Raises BadInput for a range that has no messages, MemoryUnavailable.
    """
    with locked_transaction():
        try:
            session = lock_pk(seen.session_pk)
        except NotFound:
            return False
        for row in rows:
            _check_range(row, session)
        if (session.epoch, session.rows_revision) != (seen.epoch, seen.rows_revision):
            return False
        if any(_is_hidden(row, session) for row in rows):
            return False
        for row in rows:
            row.session = session
            if replace:
                remove(overlapping(type(row), session.pk, row.low, row.high))
        if rows:
            type(rows[0]).objects.bulk_create(rows)
        return True


def _check_range(row: DerivedRow, session: Session) -> None:
    high = session.last_seq if row.high is None else row.high
    if not 1 <= row.low <= high <= session.last_seq:
        message = f"The session has no messages {row.low} to {row.high}."
        raise BadInput(message, code="bad_number", field="low")


def _is_hidden(row: DerivedRow, session: Session) -> bool:
    if row.low < session.first_seq:
        return True
    if row.when_hidden == "keep" or row.low > session.superseded_to:
        return False
    high = session.last_seq if row.high is None else row.high
    return any(found.low <= high for found in superseded(row.low, session=session))


def _lane_of_rows(seen: Seen, rows: object, **_: object) -> Lane:
    return (seen.session_pk,)


asee = in_pool(see, lane=address_lane)
astore = in_pool(store, lane=_lane_of_rows)
