"""Sessions taken in from a file, with the numbers, times and marks that they had.

Until its last row is there, a session lies archived under the scope `importing:<scope>`, where
nobody looks for it; `finish_import` moves it to its address. One that is never finished expires.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.db.models import Max

from chatmemory.errors import BadInput, Busy, Conflict, MemoryUnavailable, NotFound
from chatmemory.models import DatabaseNow, Message, Session, Turn, on_primary
from chatmemory.services.actors import NOBODYS, Actor, importing, owner_of, scope_for
from chatmemory.services.addresses import check_session_key
from chatmemory.services.audit import check_reason, record
from chatmemory.services.ends import interrupt
from chatmemory.services.faults import Fault, durably, fault_of
from chatmemory.services.floor import LIVE
from chatmemory.services.locks import lock_pk, unit
from chatmemory.services.news import tell
from chatmemory.services.pool import Lane, in_pool
from chatmemory.services.removal import purge_expired
from chatmemory.services.tags import add_tags

T = TypeVar("T")

LASTS = timedelta(days=7)
"""How long an import that was broken off can be gone on with."""

MAX_CHUNK = 1_000
MAX_SCOPE_CHARS = 150

OTHER = "There is another session under this key."
UNFINISHED = "An import of this session was broken off with other messages; it is gone now."
UNDER_WAY = "Another import of this session is under way."


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """A session that is being imported."""

    session_pk: int
    scope: str
    key: str
    session: Mapping[str, Any]
    """Its columns in the file."""
    tags: Collection[str]
    """Its tags in the file."""
    is_there: bool
    """It was imported before; now it is only compared."""


def is_imported(*, session_key: str, created_at: datetime, by: Actor, scope: str | None) -> bool:
    """Whether the session that was made at that time is at its address already.

    Raises BadInput; Conflict if the address belongs to another.
    """
    scope = scope_for(by, scope)
    check_session_key(session_key)
    _check_scope(scope)
    found = Session.objects.filter(scope=scope, key=session_key)
    at = durably(found.values_list("created_at", flat=True).first, is_repeatable=True)
    if at not in (None, created_at):
        raise Conflict(OTHER)
    return at is not None


def begin_import(
    *,
    session_key: str,
    session: Mapping[str, Any],
    tags: Collection[str] = (),
    digest: str,
    by: Actor,
    scope: str | None,
) -> Import:
    """Make room for a session from a file, or find that of an earlier try with this `digest`.

    `session` has the columns of its row but for address and owner. Raises BadInput; Conflict if
    the address belongs to another session.
    """
    scope = scope_for(by, scope)

    def work() -> Import:
        created_at = session["created_at"]
        is_there = is_imported(session_key=session_key, created_at=created_at, by=by, scope=scope)
        at = (scope, session_key) if is_there else _stage(scope, digest, session["stored_from"])
        return Import(
            session_pk=Session.objects.get(scope=at[0], key=at[1]).pk,
            scope=scope,
            key=session_key,
            session=session,
            tags=tags,
            is_there=is_there,
        )

    return _while_there(work)


def _check_scope(scope: str) -> None:
    if len(importing(scope)) > MAX_SCOPE_CHARS or scope.startswith(NOBODYS):
        raise BadInput("Nothing can be imported into this scope.", field="scope")
    owner, users = owner_of(scope), on_primary(get_user_model())
    try:
        if owner is None or users.filter(pk=owner).exists():
            return
    except (ValueError, ValidationError):
        pass
    raise BadInput("There is no user of this scope.", field="scope")


def _stage(scope: str, digest: str, stored_from: int) -> tuple[str, str]:
    """The address of the session in which the rows are gathered, made if there is none."""
    at = {"scope": importing(scope), "key": digest}
    lasts = {"expires_at": DatabaseNow() + LASTS}
    new = Session(
        **at,
        **lasts,
        archived_at=DatabaseNow(),
        stored_from=stored_from,
        first_seq=stored_from,
        last_seq=stored_from - 1,
    )
    with unit():
        purge_expired(**at)
        if not Session.objects.filter(**at).update(**lasts):
            Session.objects.bulk_create([new], ignore_conflicts=True)
    return at["scope"], at["key"]


def import_rows(
    *, found: Import, turns: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Store the next rows, consecutive and up to 1,000, and turns; or see that they are there.

    A turn that waited is stored as cancelled, one that ran as interrupted: their runs are not
    here. Raises BadInput, Conflict, and Busy if another import of this session is under way.
    """

    def work() -> None:
        session = Session.objects.get(pk=found.session_pk)
        known = [row for row in rows if row["seq"] <= session.last_seq]
        if not _are_same(session, known):
            raise Conflict(OTHER if found.is_there else UNFINISHED)
        new = rows[len(known) :]
        if found.is_there and new:
            raise Conflict(OTHER)
        if not found.is_there and (new or turns):
            _insert(found, turns, new)

    _while_there(work)


def _while_there(work: Callable[[], T]) -> T:
    """Call `work` durably. Raises MemoryUnavailable if another deleted the session."""
    try:
        return durably(work, is_repeatable=True)
    except (Session.DoesNotExist, NotFound) as error:
        message = "The session was deleted while it was imported."
        raise MemoryUnavailable(message) from error


def _are_same(session: Session, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these rows are stored, or were redacted or deleted since."""
    if not rows:
        return True
    columns = ("role", "text", "body", "created_at")
    numbers = (rows[0]["seq"], rows[-1]["seq"])
    stored = Message.stored.filter(session=session, seq__range=numbers)
    values = {row["seq"]: row for row in stored.values("seq", "redacted", *columns)}
    for row in rows:
        there = values.get(row["seq"])
        if there is None:
            if row["seq"] >= session.stored_from:
                return False
        elif not there["redacted"] and any(there[name] != row[name] for name in columns):
            return False
    return True


def _insert(
    found: Import, turns: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> None:
    try:
        with unit():
            session = lock_pk(found.session_pk)
            is_next = not rows or rows[0]["seq"] == session.last_seq + 1
            if session.scope != importing(found.scope) or not is_next:
                raise Busy(UNDER_WAY)
            Turn.objects.bulk_create(_new_turns(session, turns))
            Message.stored.bulk_create([Message(session=session, **row) for row in rows])
            if rows:
                Session.objects.filter(pk=session.pk).update(last_seq=rows[-1]["seq"])
    except IntegrityError as error:
        if fault_of(error) is not Fault.DUPLICATE:
            raise
        raise BadInput(_double(found, turns, rows), field="client_id") from error


def _new_turns(session: Session, turns: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """Those that an earlier try didn't store, as they are without their runs."""
    names = [turn["client_id"] for turn in turns]
    known = set(session.turns.filter(client_id__in=names).values_list("client_id", flat=True))
    new = []
    for turn in turns:
        if turn["client_id"] in known:
            continue
        columns = dict(turn)
        if turn["status"] in LIVE:
            ran = turn["user_seq"] is not None
            status = Turn.Status.INTERRUPTED if ran else Turn.Status.CANCELLED
            columns |= {"status": status, "asked": "", "ended_at": DatabaseNow()}
        new.append(Turn(session=session, epoch=session.epoch, **columns))
    return new


def _double(
    found: Import, turns: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> str:
    """Say which client_id is there twice."""
    names = [row["client_id"] for row in rows if row["client_id"] is not None]
    stored = Message.stored.filter(session_id=found.session_pk, client_id__in=names)
    names += stored.values_list("client_id", flat=True)
    of_turns = Counter(turn["client_id"] for turn in turns)
    [(name, _)] = max(Counter(names), of_turns, key=_most).most_common(1)
    return f"The client_id {name} stands twice in the session."


def _most(names: Counter[str]) -> int:
    return max(names.values(), default=0)


def finish_import(
    *, found: Import, turns: int, running: str | None, by: Actor, reason: str
) -> bool:
    """Move a session whose rows are all there to its address; False if it was there before.

    `turns` is how many there must be, `running` the client_id of the one that ran: it ends as
    any does whose process died, with a row for what it had said.
    Raises BadInput, and Conflict if the address was taken in the meantime.
    """
    check_reason(reason)
    if found.is_there:
        return False

    def work() -> bool:
        try:
            with unit():
                session = lock_pk(found.session_pk)
                if session.scope == found.scope:
                    return False
                if session.scope != importing(found.scope):
                    raise NotFound  # purged or erased; its rows may still be there
                _check_whole(session, found, turns)
                _move(session, found)
                if running is not None:
                    turn = session.turns.get(client_id=running)
                    Session.objects.filter(pk=session.pk).update(running=running)
                    interrupt(session, turn)
                count = found.session["last_seq"] - found.session["stored_from"] + 1
                record(session, "import", by, reason, messages=count, turns=turns)
                tell(session.pk)
                return True
        except IntegrityError as error:
            if fault_of(error) is not Fault.DUPLICATE:
                raise
            _check_address(found, by)
            discard_import(found=found)
            raise Busy(UNDER_WAY) from error

    return _while_there(work)


def _check_whole(session: Session, found: Import, turns: int) -> None:
    """See that all is there that the file said. Raises BadInput."""
    wanted = {name: found.session[name] for name in ("stored_from", "last_seq")}
    if any(getattr(session, name) != number for name, number in wanted.items()):
        raise BadInput("Rows of this session are missing.", code="bad_shape")
    if session.turns.count() != turns:
        raise BadInput("A turn stands twice in the session.", code="bad_shape")


def _check_address(found: Import, by: Actor) -> None:
    """Raises Conflict if the address belongs to another session."""
    is_imported(
        session_key=found.key, created_at=found.session["created_at"], by=by, scope=found.scope
    )


def _move(session: Session, found: Import) -> None:
    """Needs the lock."""
    add_tags(session, found.tags)
    session.scope, session.key = found.scope, found.key
    columns = {**found.session, "owner": owner_of(found.scope)}
    if session.held_at is not None:
        columns["held_at"] = session.held_at
    replaced = session.turns.filter(user_seq__isnull=False).aggregate(to=Max("replaces_to"))["to"]
    Session.objects.filter(pk=session.pk).update(
        **columns, scope=found.scope, key=found.key, superseded_to=replaced or 0
    )


def discard_import(*, found: Import) -> None:
    """Delete what was stored of an import that can't be finished.

    One that was finished stays, and one on hold.
    """

    def work() -> bool:
        with unit():
            try:
                session = lock_pk(found.session_pk)
            except NotFound:
                return False
            if session.scope != importing(found.scope) or session.held_at is not None:
                return False
            after = session.stored_from + MAX_CHUNK
            rows = Message.stored.filter(session=session)
            rows.filter(seq__lt=after).delete()
            if after <= session.last_seq:
                Session.objects.filter(pk=session.pk).update(first_seq=after, stored_from=after)
                return True
            session.turns.all().delete()
            session.delete()
            return False

    if not found.is_there:
        while durably(work, is_repeatable=True):
            pass


def _lane(*, found: Import, **_: object) -> Lane:
    return (found.session_pk,)


ais_imported = in_pool(is_imported)
abegin_import = in_pool(begin_import)
aimport_rows = in_pool(import_rows, lane=_lane)
afinish_import = in_pool(finish_import, lane=_lane)
adiscard_import = in_pool(discard_import, lane=_lane)
