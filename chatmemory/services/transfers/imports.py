"""Import sessions from a file, with their numbers, times and flags.

Until its last row is stored, a session is archived under the scope `importing:<scope>`, where no
reader finds it; `finish_import` moves it to its address. An unfinished import expires.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db.models import Max

from chatmemory.access.actors import INTERNAL_PREFIXES, Actor, importing_scope, owner_of, scope_for
from chatmemory.access.addresses import check_session_key
from chatmemory.database.after_commit import announce_change
from chatmemory.database.faults import ignored_duplicate
from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.database.retries import durably, retried
from chatmemory.errors import BadInput, Busy, Conflict, MemoryUnavailable, NotFound
from chatmemory.models import (
    AuditAction,
    AuditEntry,
    DatabaseNow,
    Feedback,
    Message,
    Session,
    Turn,
    on_primary,
    superseded,
)
from chatmemory.services.audit.entries import check_reason, record
from chatmemory.services.derived.removal import delete_all
from chatmemory.services.integrity.feedback import repair_replies, stray_feedback
from chatmemory.services.notes import import_notes
from chatmemory.services.removal.hide import purge_expired
from chatmemory.services.tags import add_tags
from chatmemory.services.turns.endings import interrupt_turn

UNFINISHED_LIFETIME = timedelta(days=7)
"""The time in which an interrupted import can be continued."""

MAX_CHUNK = 1_000
MAX_SCOPE_CHARS = 150

KEY_IN_USE = "Another session already has this key."
UNFINISHED = (
    "An interrupted import of this session had other messages; it was deleted. Import again."
)
IN_PROGRESS = "Another import of this session is in progress."


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """A session that is being imported."""

    session_pk: int
    scope: str
    key: str
    session: Mapping[str, Any]
    """The columns of the session in the file."""
    tags: Collection[str]
    """The tags of the session in the file."""
    notes: Sequence[Mapping[str, Any]]
    """The notes of operators in the file."""
    was_imported: bool
    """An earlier import stored the session, so its rows are only compared."""


def is_imported(*, session_key: str, created_at: datetime, by: Actor, scope: str | None) -> bool:
    """Return whether the session that was created at this time has this address.

    Raises BadInput, and Conflict if the address belongs to another session.
    """
    scope = scope_for(by, scope)
    check_session_key(session_key)
    check_destination(scope)
    found = Session.objects.filter(scope=scope, key=session_key)
    stored = durably(found.values_list("created_at", flat=True).first, is_repeatable=True)
    if stored not in (None, created_at):
        raise Conflict(KEY_IN_USE)
    return stored is not None


@contextmanager
def _unavailable_if_deleted() -> Iterator[None]:
    """Raise MemoryUnavailable if the session of the import was deleted meanwhile."""
    try:
        yield
    except (Session.DoesNotExist, NotFound) as error:
        message = "The session was deleted while it was imported."
        raise MemoryUnavailable(message) from error


@_unavailable_if_deleted()
@retried(is_repeatable=True)
def begin_import(
    *,
    session_key: str,
    session: Mapping[str, Any],
    tags: Collection[str] = (),
    notes: Sequence[Mapping[str, Any]] = (),
    digest: str,
    by: Actor,
    scope: str | None,
) -> Import:
    """Create a session to import into, or find the one of an earlier import with this `digest`.

    `session` contains the columns of its row without address and owner.

    Raises BadInput, MemoryUnavailable, and Conflict if the address belongs to another session.
    """
    scope = scope_for(by, scope)
    created_at = session["created_at"]
    was_imported = is_imported(session_key=session_key, created_at=created_at, by=by, scope=scope)
    if was_imported:
        stored = Session.objects.get(scope=scope, key=session_key)
    else:
        stored = _stage(scope, digest, session["stored_from"])
    return Import(
        session_pk=stored.pk,
        scope=scope,
        key=session_key,
        session=session,
        tags=tags,
        notes=notes,
        was_imported=was_imported,
    )


def check_destination(scope: str) -> None:
    """Check that sessions can be imported into this scope. Raises BadInput."""
    if len(importing_scope(scope)) > MAX_SCOPE_CHARS or scope.startswith(INTERNAL_PREFIXES):
        raise BadInput("Nothing can be imported into this scope.", field="scope")
    owner, users = owner_of(scope), on_primary(get_user_model())
    try:
        if owner is None or users.filter(pk=owner).exists():
            return
    except (ValueError, ValidationError):
        pass
    raise BadInput("The user of this scope does not exist.", field="scope")


def _stage(scope: str, digest: str, stored_from: int) -> Session:
    """Return the session at the temporary address; create it if it does not exist."""
    address = {"scope": importing_scope(scope), "key": digest}
    expires_at = DatabaseNow() + UNFINISHED_LIFETIME
    new = Session(
        **address,
        expires_at=expires_at,
        archived_at=DatabaseNow(),
        stored_from=stored_from,
        first_seq=stored_from,
        last_seq=stored_from - 1,
    )
    with locked_transaction():
        purge_expired(**address)
        if not Session.objects.filter(**address).update(expires_at=expires_at):
            # Another process may create it simultaneously: both continue with that row.
            Session.objects.bulk_create([new], ignore_conflicts=True)
    return Session.objects.get(**address)


@_unavailable_if_deleted()
@retried(is_repeatable=True)
def import_rows(
    *,
    found: Import,
    turns: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    feedback: Sequence[Mapping[str, Any]] = (),
    withdrawn: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Store the next rows, consecutive and at most 1,000, and what belongs to them.

    Rows that an earlier call stored are compared.

    A waiting turn is stored as cancelled, with its text, and a running turn as interrupted: this
    database has no runs for them.

    Raises BadInput, Conflict, MemoryUnavailable, and Busy if another import of this session is in
    progress.
    """
    session = Session.objects.get(pk=found.session_pk)
    # Compared without the lock: stored rows change only by redaction. `_insert_rows` rechecks seqs.
    known = [row for row in rows if row["seq"] <= session.last_seq]
    if not _are_stored(session, known):
        raise Conflict(KEY_IN_USE if found.was_imported else UNFINISHED)
    new = rows[len(known) :]
    if found.was_imported and new:
        raise Conflict(KEY_IN_USE)
    if not found.was_imported and (new or turns or feedback or withdrawn):
        _insert_rows(found, turns, new, feedback, withdrawn)


def _are_stored(session: Session, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether these rows are stored, or were redacted or deleted later."""
    if not rows:
        return True
    columns = ("role", "text", "body", "created_at")
    numbers = (rows[0]["seq"], rows[-1]["seq"])
    stored = Message.stored.filter(session=session, seq__range=numbers)
    stored_rows = {row["seq"]: row for row in stored.values("seq", "redacted", *columns)}
    for row in rows:
        stored_row = stored_rows.get(row["seq"])
        if stored_row is None:
            if row["seq"] >= session.stored_from:
                return False
        elif not stored_row["redacted"] and any(stored_row[name] != row[name] for name in columns):
            return False
    return True


def _insert_rows(
    found: Import,
    turns: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    feedback: Sequence[Mapping[str, Any]],
    withdrawn: Sequence[Mapping[str, Any]],
) -> None:
    with ignored_duplicate(), locked_transaction():
        session = lock_pk(found.session_pk)
        is_next = not rows or rows[0]["seq"] == session.last_seq + 1
        if session.scope != importing_scope(found.scope) or not is_next:
            raise Busy(IN_PROGRESS)
        Turn.objects.bulk_create(_new_turns(session, turns))
        Message.stored.bulk_create([Message(session=session, **row) for row in rows])
        # An earlier, interrupted import may have stored an older state of the same feedback.
        session.feedback.filter(user_seq__in=[given["user_seq"] for given in feedback]).delete()
        Feedback.objects.bulk_create([Feedback(session=session, **given) for given in feedback])
        for one in withdrawn:
            numbers = {"low": one["low"], "high": one["high"]}
            session.withdrawn.update_or_create(**numbers, defaults=one)
        if rows:
            Session.objects.filter(pk=session.pk).update(last_seq=rows[-1]["seq"])
        return
    raise BadInput(_duplicate_text(found, turns, rows), field="client_id")


def _new_turns(session: Session, turns: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """Return the turns that are not stored yet; waiting and running turns are ended."""
    names = [turn["client_id"] for turn in turns]
    known = set(session.turns.filter(client_id__in=names).values_list("client_id", flat=True))
    new = []
    for turn in turns:
        if turn["client_id"] in known:
            continue
        columns = dict(turn)
        if turn["status"] in Turn.ACTIVE_STATUSES:
            if turn["user_seq"] is None:  # `_end_waiting` sets its end
                columns |= {"status": Turn.Status.CANCELLED, "ended_at": None}
            else:
                status = Turn.Status.INTERRUPTED
                columns |= {"status": status, "asked": "", "ended_at": DatabaseNow()}
        new.append(Turn(session=session, epoch=session.epoch, **columns))
    return new


def _duplicate_text(
    found: Import, turns: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> str:
    """Return an error text with the duplicate client_id."""
    names = [row["client_id"] for row in rows if row["client_id"] is not None]
    stored = Message.stored.filter(session_id=found.session_pk, client_id__in=names)
    names += stored.values_list("client_id", flat=True)
    of_turns = Counter(turn["client_id"] for turn in turns)
    [(name, _)] = (Counter(names) | of_turns).most_common(1)
    return f"The client_id {name} is a duplicate in the session."


@_unavailable_if_deleted()
@retried(is_repeatable=True)
def finish_import(
    *,
    found: Import,
    turns: int,
    running: str | None,
    by: Actor,
    reason: str,
    feedback: int = 0,
    withdrawn: int = 0,
) -> bool:
    """Move a complete session to its address; return False if it was imported before.

    `turns`, `feedback` and `withdrawn` are the expected numbers of rows, `running` is the
    client_id of the running turn: it is interrupted, and its partial text becomes a row.

    Raises BadInput, Busy, MemoryUnavailable, and Conflict if the address is no longer free.
    """
    check_reason(reason)
    if found.was_imported:
        return False
    with ignored_duplicate(), locked_transaction():
        session = lock_pk(found.session_pk)
        if session.scope == found.scope:  # an attempt whose answer was lost, or another import
            return False
        if session.scope != importing_scope(found.scope):
            raise NotFound  # purged or erased; its rows may still be stored
        _check_complete(session, found, turns, feedback, withdrawn)
        # The feedback can have changed while the messages were exported.
        repair_replies(session, found.session.get("revision", 0))
        _complete_session(session, found)
        if running is not None:
            _interrupt(session, running)
        count = found.session["last_seq"] - found.session["stored_from"] + 1
        entry = record(session, AuditAction.IMPORT, by, reason, messages=count, turns=turns)
        _end_waiting(session, entry)
        announce_change(session.pk)
        return True
    # The address is occupied: by another session, or by a concurrent import of this file.
    _check_address(found, by)
    discard_import(found=found)
    raise Busy(IN_PROGRESS)


def _interrupt(session: Session, running: str) -> None:
    """End the running turn of the file. Needs the lock."""
    turn = session.turns.get(client_id=running)
    Session.objects.filter(pk=session.pk).update(running=running)
    interrupt_turn(session, turn)


def _end_waiting(session: Session, entry: AuditEntry) -> None:
    """End the turns that were waiting in the file, at the time of the entry.

    By that time, `read_unstored` recognizes that no removal in the source database ended them.
    """
    waited = session.turns.filter(status=Turn.Status.CANCELLED, ended_at__isnull=True)
    waited.update(ended_at=entry.created_at)


def _check_complete(
    session: Session, found: Import, turns: int, feedback: int, withdrawn: int
) -> None:
    """Raise BadInput if rows, turns, feedback or withdrawn ranges are missing."""
    if any(getattr(session, name) != found.session[name] for name in ("stored_from", "last_seq")):
        raise BadInput("Rows of this session are missing.", code="bad_shape")
    if session.turns.count() != turns:
        raise BadInput("The session contains a duplicate turn.", code="bad_shape")
    if session.feedback.count() != feedback or stray_feedback([session.pk]).exists():
        raise BadInput("The feedback does not match the turns.", code="bad_shape")
    if session.withdrawn.count() != withdrawn:
        raise BadInput("A withdrawn range is a duplicate.", code="bad_shape")


def _check_address(found: Import, by: Actor) -> None:
    """Raise Conflict if the address belongs to another session."""
    is_imported(
        session_key=found.key, created_at=found.session["created_at"], by=by, scope=found.scope
    )


def _complete_session(session: Session, found: Import) -> None:
    """Give the session its address, columns, tags and notes of the file. Needs the lock."""
    add_tags(session, found.tags)
    import_notes(session, found.notes)
    session.scope, session.key = found.scope, found.key
    columns = {**found.session, "owner": owner_of(found.scope)}
    if session.held_at is not None:  # held during the import: the file must not release it
        columns["held_at"] = session.held_at
    ranges = superseded(1, session=session)
    changed = Message.stored.filter(session=session).aggregate(to=Max("revision"))["to"]
    Session.objects.filter(pk=session.pk).update(
        **columns,
        scope=found.scope,
        key=found.key,
        superseded_to=max((one.high for one in ranges), default=0),
        rows_revision=changed or 0,
    )


def discard_import(*, found: Import) -> None:
    """Delete the stored part of an import, unless it was finished or is on hold.

    Raises MemoryUnavailable.
    """
    if not found.was_imported:
        while _discard_chunk(found):
            pass


@retried(is_repeatable=True)
def _discard_chunk(found: Import) -> bool:
    """Delete up to 1,000 rows, and the session with the last ones; return whether rows are left."""
    with locked_transaction():
        try:
            session = lock_pk(found.session_pk)
        except NotFound:
            return False
        if session.scope != importing_scope(found.scope) or session.held_at is not None:
            return False
        if delete_all(session.pk, MAX_CHUNK):
            return True
        # In chunks, so that no transaction deletes millions of rows.
        after = session.stored_from + MAX_CHUNK
        rows = Message.stored.filter(session=session)
        rows.filter(seq__lt=after).delete()
        if after <= session.last_seq:
            Session.objects.filter(pk=session.pk).update(first_seq=after, stored_from=after)
            return True
        session.turns.all().delete()
        session.delete()
        return False
