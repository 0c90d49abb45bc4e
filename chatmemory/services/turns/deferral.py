"""Deferred messages: batches that wait for the end of the running turn of their session."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from django.db.models import F

from chatmemory import codec
from chatmemory.codec import Row
from chatmemory.conf import settings
from chatmemory.database.after_commit import announce_change
from chatmemory.database.faults import ignored_duplicate
from chatmemory.database.inserts import store_rows
from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.database.refusals import is_client_id_stored, report_damage
from chatmemory.database.retries import retried
from chatmemory.errors import BadInput, NotFound
from chatmemory.models import Session, Turn

# Note [Deferred messages]
#
# The rows of a running turn are consecutive, so nothing else is stored meanwhile. A batch that
# waits for its end is a row of the table of turns that never runs: `asked` contains its messages.
# So it is as durable as a waiting turn, `Session.waiting` counts it, and a clear, purge, redaction
# or erasure removes it too. Archiving does not, since the messages were accepted before.
# - It is only deferred while a turn runs, under the session's lock, and all code that ends a turn
#   stores it: the functions in `endings` in the same transaction, the run's own end directly after
#   its commit. Neither needs a process that runs turns.
# - If a process dies between that commit and the next one, the next append, claim or sweep of the
#   session stores the batch. An append and a claim do so before anything else, so that the order
#   remains, and a new turn cannot run while `waiting` is not 0.
# - Its rows precede turns that wait: these get their numbers when they start.
# - The rows keep the client_id, so a repeated call finds either the batch or its rows.


def defer(session: Session, client_id: str, rows: Sequence[Row], author: str | None = None) -> None:
    """Store a batch behind the running turn, and count it. Needs the session's lock.

    Raises IntegrityError if a turn or batch has this `client_id`, BadInput if the batch as JSON
    exceeds MAX_MESSAGE_BYTES: it must fit into a statement when the turn ends.
    """
    asked = codec.encode_batch(rows, author)
    if (size := len(asked.encode())) > (limit := settings.MAX_MESSAGE_BYTES):
        raise BadInput(
            f"A deferred batch can have at most {limit} bytes; this one has {size}.",
            code="too_large",
            limit=limit,
        )
    Session.objects.filter(pk=session.pk).update(
        waiting=F("waiting") + 1, revision=F("revision") + 1
    )
    Turn(
        session=session,
        client_id=client_id,
        status=Turn.Status.WAITING,
        asked=asked,
        epoch=session.epoch,
    ).save(force_insert=True)
    announce_change(session.pk)


def store_deferred(session: Session) -> None:
    """Store the deferred batches of a session without a running turn. Needs the session's lock."""
    batches = list(session.turns.deferred()) if session.waiting else []
    for batch in batches:
        with ignored_duplicate():
            store_rows(
                [codec.encode(each, lenient=True) for each in codec.decode_batch(batch.asked)],
                address={"id": session.pk},
                conditions={"running": None},
                client_id=batch.client_id,
                author=codec.batch_author(batch.asked),
            )
            continue
        if not is_client_id_stored(session.pk, batch.client_id):
            raise report_damage(session.pk)
    if batches:
        session.turns.filter(pk__in=[batch.pk for batch in batches]).delete()
        Session.objects.filter(pk=session.pk).update(
            waiting=F("waiting") - len(batches), revision=F("revision") + 1
        )
        session.refresh_from_db()
        announce_change(session.pk)


@retried(is_repeatable=True)
def store_deferred_of(session_pk: int) -> bool:
    """Store the deferred batches of a session if no turn runs; return whether there were any.

    Raises MemoryUnavailable.
    """
    if not Turn.objects.filter(session=session_pk).deferred().exists():
        return False
    with suppress(NotFound), locked_transaction():
        session = lock_pk(session_pk)
        if session.running is None:
            store_deferred(session)
    return True
