"""Find, open, change and read sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TypeVar

from django.db.models import F

from chatmemory.access import rates
from chatmemory.access.actors import (
    INTERNAL_PREFIXES,
    Actor,
    check_own_name,
    owner_of,
    scope_for,
    visitor_of,
)
from chatmemory.access.addresses import (
    MAX_SEQ,
    Address,
    address_lane,
    check_session_key,
)
from chatmemory.access.visitors import lock_current_visitor
from chatmemory.codec import CLIENT_PREFIX, check_value
from chatmemory.conf import settings
from chatmemory.database.after_commit import announce_change
from chatmemory.database.faults import write_connection
from chatmemory.database.locks import locked_transaction
from chatmemory.database.pool import in_pool
from chatmemory.database.reads import (
    read_content_at,
    read_head_at,
    read_page_at,
    read_session_at,
)
from chatmemory.database.refusals import report_damage
from chatmemory.database.retries import durably, retried
from chatmemory.errors import (
    BadInput,
    Conflict,
    Forbidden,
    Held,
    HistoryCleared,
    MemoryUnavailable,
    NotFound,
)
from chatmemory.models import (
    AuditAction,
    ContentRow,
    Head,
    Message,
    Page,
    Session,
    SessionPage,
    SessionQuerySet,
    database_now,
    session_page,
    superseded_seqs,
)
from chatmemory.services.audit.entries import check_reason, record
from chatmemory.services.removal.hide import purge_expired
from chatmemory.services.session_fields import (
    ENDS,
    UNCHANGED,
    Unchanged,
    check_fields,
    check_metadata_filter,
    fields_of_host,
    is_same,
)

T = TypeVar("T")

MAX_ATTEMPTS = 3
"""Attempts of a write that is refused for no visible reason: the reason may just have ended."""

MAX_PAGE = 1_000


def sessions_of(by: Actor, scope: str | None = None) -> SessionQuerySet:
    """Return the active sessions of the actor's scope, unordered."""
    return Session.objects.active().filter(scope=scope_for(by, scope))


def list_sessions(
    *,
    by: Actor,
    scope: str | None = None,
    archived: bool | None = None,
    pinned: bool | None = None,
    running: bool | None = None,
    title: str = "",
    metadata: Mapping[str, str] | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> SessionPage:
    """Return up to `limit` active sessions of the actor's scope, the last active first.

    `title` is a part of the titles; `metadata` has keys of METADATA_FILTERS, and the texts that the
    metadata must have. None and an empty text select all. `cursor` is `next` of an earlier page;
    `limit` is 1 to 1,000.
    Raises BadInput, MemoryUnavailable.
    """
    check_page_limit(limit)
    check_value(title, "title")
    check_metadata_filter(metadata or {})
    sessions = sessions_of(by, scope).having(
        archived=archived, pinned=pinned, running=running, title=title, metadata=metadata
    )
    read = partial(session_page, sessions, limit=limit, cursor=cursor)
    return durably(read, is_repeatable=True)


def get_session(*, session_key: str, by: Actor, scope: str | None = None) -> Session:
    """Return the active session with this key.

    Raises BadInput, MemoryUnavailable, and NotFound also for another user's session.
    """
    check_session_key(session_key)
    session = read_session_at(scope_for(by, scope), session_key)
    if session is None:
        raise NotFound
    return session


def get_head(*, session_key: str, by: Actor, scope: str | None = None) -> Head:
    """Return the head of the active session with this key, with its running turn.

    Raises BadInput, NotFound, MemoryUnavailable.
    """
    check_session_key(session_key)
    head = read_head_at(scope_for(by, scope), session_key)
    if head is None:
        raise NotFound
    return head


def open_session(
    *,
    session_key: str,
    by: Actor,
    scope: str | None = None,
    title: str = "",
    instructions: str = "",
    metadata: Mapping[str, object] | None = None,
    expires_at: datetime | None = None,
    ttl_seconds: int | None = None,
) -> Session:
    """Return the session with this key; create it if it is missing.

    `title`, `instructions`, `metadata`, `expires_at` (an aware time) and `ttl_seconds` (after the
    last message, 1 to 2,147,483,647) apply only to a new session. The earlier end replaces
    `SESSION_TTL`. A key has 1 to 200 characters, a title up to 200, metadata 8,192 bytes as JSON.
    Keys `ui:…` are only for people's own clients; only keys of A-Z a-z 0-9 - _ . : @ have a page.
    Raises BadInput, also if the user has MAX_SESSIONS_PER_USER sessions, Unauthenticated for a
    visitor who has ended or was adopted, and MemoryUnavailable.
    """
    check_own_name(by)
    scope = scope_for(by, scope)
    check_session_key(session_key)
    if session_key.startswith(CLIENT_PREFIX) and by.kind not in ("user", "visitor"):
        message = f"Keys that begin with {CLIENT_PREFIX} are reserved for foreign chat clients."
        raise BadInput(message, field="session_key")
    if scope.startswith(INTERNAL_PREFIXES):
        raise BadInput("No session can be opened in this scope.", field="scope")
    fields: dict[str, object] = {
        "title": title,
        "instructions": instructions,
        "metadata": dict(metadata or {}),
        "expires_at": expires_at,
        "ttl_seconds": ttl_seconds,
    }
    check_fields(fields)
    if settings.NEW_SESSION is not None and by.kind in ("user", "visitor"):
        found = _read_active(scope, session_key)
        if found is not None:
            return found
        rates.check_sessions(by)  # before the host's code runs
        fields |= fields_of_host(settings.NEW_SESSION, by, session_key, title)
    new = Session(scope=scope, key=session_key, owner_id=owner_of(scope), **fields)
    return _get_or_create(new, by)


@retried(is_repeatable=True)
def _read_active(scope: str, key: str) -> Session | None:
    return Session.objects.at(scope, key).first()


@retried(is_repeatable=True)
def _get_or_create(new: Session, by: Actor) -> Session:
    session = Session.objects.at(new.scope, new.key).first()
    if session is None:
        rates.check_sessions(by)
        with locked_transaction():
            if (visitor := visitor_of(new.scope)) is not None:
                lock_current_visitor(visitor, by)
            if by.kind == "visitor":
                rates.check_visitor_sessions(new.scope)
            purge_expired(new.scope, new.key)  # an expired session still occupies its key
            # Another process may create the row simultaneously: both processes return that row.
            Session.objects.bulk_create([new], ignore_conflicts=True)
        session = Session.objects.at(new.scope, new.key).first()
    if session is None:
        raise MemoryUnavailable("The session was purged while it was opened; try again.")
    return session


@retried(is_repeatable=True)
def update_session(
    *,
    session_key: str,
    by: Actor,
    title: str | None = None,
    pinned: bool | None = None,
    instructions: str | None = None,
    metadata: Mapping[str, object] | None = None,
    expires_at: datetime | Unchanged | None = UNCHANGED,
    ttl_seconds: int | Unchanged | None = UNCHANGED,
    expect_revision: int | None = None,
    reason: str = "",
    scope: str | None = None,
) -> Session:
    """Change a session, and return it.

    None changes nothing; of `expires_at` and `ttl_seconds` it removes the end, and UNCHANGED
    changes nothing. A title has up to 200 characters; without one, lists show the first message. A
    person can pin up to 100 sessions. `instructions`, `metadata` (which replaces all of it) and the
    ends are only for operators and server code, with the bounds of `open_session`. With
    `expect_revision`, a session that has changed since that revision is a Conflict, unless it
    already has the new values. The audit records who renamed another person's session, and each
    other change but pins, with the reason, but no content.
    Raises BadInput, NotFound, Held (title, instructions and metadata stay), Conflict, Forbidden,
    MemoryUnavailable.
    """
    given: dict[str, object] = {
        "title": title,
        "instructions": instructions,
        "metadata": None if metadata is None else dict(metadata),
        "expires_at": expires_at,
        "ttl_seconds": ttl_seconds,
    }
    fields = {
        name: value
        for name, value in given.items()
        if value is not UNCHANGED and (value is not None or name in ENDS)
    }
    check_fields(fields)
    check_reason(reason)
    if by.kind in ("user", "visitor") and fields.keys() - {"title"}:
        raise Forbidden
    with locked_transaction():
        session = Address(session_key, by, scope).lock()
        changed = {
            name: new for name, new in fields.items() if not is_same(getattr(session, name), new)
        }
        is_moved = pinned not in (None, session.pinned_at is not None)
        if not changed and not is_moved:
            return session
        if expect_revision not in (None, session.revision):
            raise Conflict(f"The session has changed since revision {expect_revision}. Reload it.")
        for name in changed.keys() - ENDS:
            if session.held_at is not None:
                raise Held(f"The session is on hold, so its {name} cannot be changed.")
        if is_moved:
            session.pinned_at = _pin_time(session) if pinned else None
        for name, new in changed.items():
            setattr(session, name, new)
        session.revision += 1
        session.save(update_fields=[*changed, "pinned_at", "revision"])
        announce_change(session.pk)
        if "title" in changed and by.responsible.kind in ("operator", "command"):
            record(session, AuditAction.RENAME, by, reason)
        if counts := {name: _size_of(new) for name, new in changed.items() if name != "title"}:
            record(session, AuditAction.UPDATE, by, reason, **counts)
        return session


def _size_of(value: object) -> int:
    """Return what the audit records of a new value: its length, its number, or 1; 0 for none."""
    match value:
        case str() | dict():
            return len(value)
        case int():
            return value
    return int(value is not None)


def _pin_time(session: Session) -> datetime:
    """Return the time of a new pin. Raises BadInput if the scope has MAX_PINNED of them."""
    if not rates.can_pin(session.scope):
        message = f"You can pin up to {rates.MAX_PINNED} sessions. Unpin one first."
        raise BadInput(message, code="too_many", field="pinned", limit=rates.MAX_PINNED)
    return database_now(write_connection())


def write_or_open(
    write: Callable[[], T],
    *,
    session_key: str,
    by: Actor,
    scope: str,
    epoch: int | None,
    create: bool,
) -> T:
    """Call a repeatable write; open the session if it is missing and `create` is set.

    An `epoch` implies that the session existed: if it is missing, it is not created, and
    HistoryCleared is raised. Also raises NotFound, MemoryUnavailable.
    """
    try:
        return durably(write, is_repeatable=True)
    except NotFound:
        if epoch is not None:
            raise HistoryCleared from None
        if not create:
            raise
    open_session(session_key=session_key, by=by, scope=scope)
    return durably(write, is_repeatable=True)


def unexplained_refusal(scope: str, key: str) -> MemoryUnavailable:
    """Return the error of a write that was refused `MAX_ATTEMPTS` times for no visible reason."""
    # Rows above the counter refuse each new row. Without them, other writers caused the refusals.
    rows = Message.stored.filter(session__in=Session.objects.at(scope, key))
    above = rows.filter(seq__gt=F("session__last_seq")).values_list("session_id", flat=True)
    session_pk = above.first()
    return MemoryUnavailable() if session_pk is None else report_damage(session_pk)


def read_page(
    *,
    session_key: str,
    by: Actor,
    scope: str | None = None,
    after: int | None = None,
    before: int | None = None,
    limit: int = 50,
) -> Page:
    """Return a session's head and up to `limit` of its rows, ordered by seq, as of one moment.

    With `after` they are the oldest rows above that seq, with `before` the newest below it, else
    the newest of all. `limit` is 1 to 1,000. A missing session is never an empty page, so that a
    wrong key or scope does not look like a new chat. Raises BadInput, NotFound, MemoryUnavailable.
    """
    check_page_limit(limit)
    for field, number in {"after": after, "before": before}.items():
        if number is not None and abs(number) > MAX_SEQ:
            raise BadInput(f"{field} is out of range.", code="bad_number", field=field)
    return _page_of_session(session_key, by, scope, after=after, before=before, limit=limit)


def check_page_limit(limit: int) -> None:
    """Check the size of a page. Raises BadInput."""
    if not 1 <= limit <= MAX_PAGE:
        raise BadInput(f"limit must be 1 to {MAX_PAGE}.", field="limit", limit=MAX_PAGE)


def read_history(
    *, session_key: str, by: Actor, scope: str | None = None, superseded: bool = True
) -> Page:
    """Return a session's head and all of its rows from the floor on, ordered by seq.

    `superseded=False` leaves out the rows that a later turn replaced, and the withdrawn ones.
    Raises BadInput, NotFound, MemoryUnavailable.
    """
    page = _page_of_session(session_key, by, scope, after=0, before=None, limit=None)
    return page if superseded else _without_superseded(page)


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The content of a session's rows in order, without superseded rows."""

    epoch: int
    rows: list[ContentRow]


def read_content(*, session_key: str, by: Actor, scope: str | None = None) -> Content:
    """Read as `read_history` does, but only what a model needs.

    Raises BadInput, NotFound, MemoryUnavailable.
    """
    check_session_key(session_key)
    found = read_content_at(scope_for(by, scope), session_key)
    if not found:
        raise NotFound
    role, _, _, first_seq, epoch, superseded_in = found[0]
    if role is None:
        found = []
    elif superseded_in is not None:
        _, _, _, last_seq, _, _ = found[-1]
        superseded = _seqs_of(_read_superseded(superseded_in, first_seq, last_seq))
        found = [row for row in found if row[3] not in superseded]
    return Content(epoch=epoch, rows=found)


def read_superseded(*, head: Head) -> list[tuple[int, int]]:
    """Return the superseded ranges above the floor, ends included, ordered by their ends.

    One for each turn that superseded rows, up to the head, and for each withdrawal. Raises
    MemoryUnavailable.
    """
    # Note [Superseded ranges] in turns/versions: most sessions need no query.
    if head.superseded_to < head.first_seq:
        return []
    return _read_superseded(head.pk, head.first_seq, head.last_seq)


@retried(is_repeatable=True)
def _read_superseded(pk: int, first_seq: int, last_seq: int) -> list[tuple[int, int]]:
    return superseded_seqs(first_seq, newest=last_seq, session=pk)


def _without_superseded(page: Page) -> Page:
    superseded = _seqs_of(read_superseded(head=page.head))
    return replace(page, rows=[row for row in page.rows if row.seq not in superseded])


def _seqs_of(ranges: list[tuple[int, int]]) -> set[int]:
    return {seq for low, high in ranges for seq in range(low, high + 1)}


def _page_of_session(
    session_key: str,
    by: Actor,
    scope: str | None,
    *,
    after: int | None,
    before: int | None,
    limit: int | None,
) -> Page:
    check_session_key(session_key)
    page = read_page_at(scope_for(by, scope), session_key, after=after, before=before, limit=limit)
    if page is None:
        raise NotFound
    return page


alist_sessions = in_pool(list_sessions)
aget_session = in_pool(get_session)
aopen_session = in_pool(open_session, lane=address_lane)
aupdate_session = in_pool(update_session, lane=address_lane)
aread_page = in_pool(read_page)
aread_history = in_pool(read_history)
aread_content = in_pool(read_content)
