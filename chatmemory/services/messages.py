"""Messages: appended, whole or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db import IntegrityError

from chatmemory import codec
from chatmemory.codec import Row
from chatmemory.errors import BadInput, Busy, HistoryCleared, NotFound
from chatmemory.models import Session
from chatmemory.services.actors import Actor, scope_for
from chatmemory.services.addresses import check_session_key
from chatmemory.services.ends import end_overdue
from chatmemory.services.faults import Fault, fault_of
from chatmemory.services.news import tell
from chatmemory.services.pool import address_lane, in_pool
from chatmemory.services.refusals import explain
from chatmemory.services.rows import OPEN, store
from chatmemory.services.sessions import write_at

MAX_BATCH = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Where a batch is stored."""

    session_pk: int
    epoch: int
    first_seq: int
    last_seq: int
    is_duplicate: bool
    """It was stored by an earlier call with the same client_id."""


def append_messages(
    *,
    session_key: str,
    messages: Sequence[Mapping[str, object]],
    by: Actor,
    scope: str | None = None,
    client_id: str | None = None,
    epoch: int | None = None,
    create: bool = False,
    lenient: bool = False,
) -> Appended:
    """Store a batch of up to 1,000 plain messages, all or none, under consecutive numbers.

    An empty batch stores nothing, whatever the session's state, and not its `client_id`; its
    `first_seq` is the next number, one above `last_seq`.

    The same `client_id` again stores nothing and returns where the first batch lies. With an
    `epoch`, nothing is stored after a clear or purge. `create` makes the session if there is
    none; not with an `epoch`, which says that there was one. `lenient` repairs and flags what the
    database can't hold, where else it is refused.

    One statement on PostgreSQL outside a transaction. Inside a caller's transaction it is tried
    once, and lasts only if that commits.

    Raises BadInput, NotFound, Conflict, HistoryCleared, Archived, Busy, MemoryUnavailable.
    """
    scope = scope_for(by, scope)
    check_session_key(session_key)
    if len(messages) > MAX_BATCH:
        raise BadInput("A batch has up to 1,000 messages.", code="too_many", limit=MAX_BATCH)
    client_id = uuid.uuid4().hex if client_id is None else codec.check_client_id(client_id)
    rows = [
        codec.encode(message, lenient=lenient, field=f"messages[{place}]")
        for place, message in enumerate(messages)
    ]

    return write_at(
        lambda: (
            _append(scope, session_key, rows, client_id, epoch)
            if rows
            else _append_nothing(scope, session_key, epoch)
        ),
        session_key=session_key,
        by=by,
        scope=scope,
        epoch=epoch,
        create=create,
    )


def _append(
    scope: str, key: str, rows: Sequence[Row], client_id: str, epoch: int | None
) -> Appended | None:
    """Store the rows or say why not; None if what was in the way has just gone."""
    only_if = {**OPEN, "running": None} | ({} if epoch is None else {"epoch": epoch})
    try:
        stored = store(
            rows,
            at={"scope": scope, "key": key},
            only_if=only_if,
            unexpired=True,
            client_id=client_id,
        )
    except IntegrityError as error:
        if fault_of(error) is not Fault.DUPLICATE:
            raise
        stored = None
    if stored is not None:
        tell(stored.session_pk)
        return Appended(
            session_pk=stored.session_pk,
            epoch=stored.epoch,
            first_seq=stored.first_seq,
            last_seq=stored.last_seq,
            is_duplicate=False,
        )
    found = explain(scope, key, client_id)
    if found.rows:
        found.check_replay(rows)
        return Appended(
            session_pk=found.session_pk,
            epoch=found.epoch,
            first_seq=found.rows[0].seq,
            last_seq=found.rows[-1].seq,
            is_duplicate=True,
        )
    found.check_open(epoch)
    if found.running is not None and not (found.is_overdue and end_overdue(found.session_pk)):
        raise Busy(turn=found.running)
    return None


def _append_nothing(scope: str, key: str, epoch: int | None) -> Appended:
    session = Session.objects.at(scope, key).first()
    if session is None:
        raise NotFound
    if epoch not in (None, session.epoch):
        raise HistoryCleared
    return Appended(
        session_pk=session.pk,
        epoch=session.epoch,
        first_seq=session.last_seq + 1,
        last_seq=session.last_seq,
        is_duplicate=False,
    )


aappend_messages = in_pool(append_messages, lane=address_lane)
