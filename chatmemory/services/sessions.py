"""Sessions: found, opened and written to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from django.utils import timezone
from django.utils.timezone import is_naive

from chatmemory.codec import check_value, dump_json
from chatmemory.errors import BadInput, HistoryCleared, MemoryUnavailable, NotFound
from chatmemory.models import Head, Page, Session, SessionQuerySet, Turn
from chatmemory.services.actors import NOBODYS, Actor, owner_of, scope_for
from chatmemory.services.addresses import MAX_SEQ, check_length, check_session_key
from chatmemory.services.faults import durably
from chatmemory.services.limits import check_sessions
from chatmemory.services.locks import unit
from chatmemory.services.pool import address_lane, in_pool
from chatmemory.services.refusals import damaged
from chatmemory.services.removal import purge_expired

T = TypeVar("T")

TRIES = 3
"""How often a refusal that nothing explains is tried again: what refused it has just gone."""

MAX_TITLE_CHARS = 200
MAX_PAGE = 1_000
MAX_METADATA_BYTES = 8_192
"""As JSON. Each list of sessions has the metadata of all."""


def sessions_of(by: Actor, scope: str | None = None) -> SessionQuerySet:
    """The living sessions that `by` can reach, in no order."""
    return Session.objects.living().filter(scope=scope_for(by, scope))


def get_session(*, session_key: str, by: Actor, scope: str | None = None) -> Session:
    """The living session under this key.

    Raises BadInput, and NotFound for an unknown session and for another's alike.
    """
    check_session_key(session_key)
    found = sessions_of(by, scope).filter(key=session_key)
    session = durably(found.first, is_repeatable=True)
    if session is None:
        raise NotFound
    return session


def open_session(
    *,
    session_key: str,
    by: Actor,
    scope: str | None = None,
    title: str = "",
    instructions: str = "",
    metadata: Mapping[str, object] | None = None,
    expires_at: datetime | None = None,
) -> Session:
    """The session under this key, made if there is none.

    `title`, `instructions`, `metadata` and `expires_at` (its end, an aware time, instead of
    `SESSION_TTL`) are those of a new one; an existing one keeps its own. A key is text of 1 to
    200 characters, a title up to 200; metadata has up to 8 kB as JSON. Raises BadInput, also if a
    person has MAX_SESSIONS_PER_USER.
    """
    scope = scope_for(by, scope)
    check_session_key(session_key)
    if scope.startswith(NOBODYS):
        raise BadInput("No session can be opened in this scope.", field="scope")
    check_length("title", title, 0, MAX_TITLE_CHARS)
    check_value(title, "title")
    check_value(instructions, "instructions")
    _check_metadata(dict(metadata or {}))
    if expires_at is not None and (is_naive(expires_at) or expires_at <= timezone.now()):
        raise BadInput("expires_at must be to come, with a time zone.", field="expires_at")
    new = Session(
        scope=scope,
        key=session_key,
        owner_id=owner_of(scope),
        title=title,
        instructions=instructions,
        metadata=dict(metadata or {}),
        expires_at=expires_at,
    )

    def work() -> Session:
        session = Session.objects.at(scope, session_key).first()
        if session is None:
            check_sessions(by)
            with unit():
                purge_expired(scope, session_key)
                Session.objects.bulk_create([new], ignore_conflicts=True)
            session = Session.objects.at(scope, session_key).first()
        if session is None:
            raise MemoryUnavailable("The session was purged while it was opened.")
        return session

    return durably(work, is_repeatable=True)


def _check_metadata(metadata: dict[str, object]) -> None:
    check_value(metadata, "metadata")
    if len(dump_json(metadata).encode()) > MAX_METADATA_BYTES:
        raise BadInput(
            f"metadata has more than {MAX_METADATA_BYTES} bytes.",
            code="too_large",
            field="metadata",
            limit=MAX_METADATA_BYTES,
        )


def write_at(
    write: Callable[[], T | None],
    *,
    session_key: str,
    by: Actor,
    scope: str,
    epoch: int | None,
    create: bool,
) -> T:
    """Return what `write` does to the session under this key, made first with `create`.

    None from it says that nothing stands in its way any more: it is called again, three times at
    most. With an `epoch` there was a session once, so none is made. Raises HistoryCleared if that
    is gone, and MemoryUnavailable.
    """

    def work() -> T:
        for _ in range(TRIES):
            done = write()
            if done is not None:
                return done
        for session_pk in Session.objects.at(scope, session_key).values_list("pk", flat=True):
            raise damaged(session_pk)
        raise MemoryUnavailable

    try:
        return durably(work, is_repeatable=True)
    except NotFound:
        if epoch is not None:
            raise HistoryCleared from None
        if not create:
            raise
    open_session(session_key=session_key, by=by, scope=scope)
    return durably(work, is_repeatable=True)


def read_page(
    *,
    session_key: str,
    by: Actor,
    scope: str | None = None,
    after: int | None = None,
    before: int | None = None,
    limit: int = 50,
) -> Page:
    """A session's head and some of its rows, in order of seq, as of one moment.

    `after` gives the oldest rows above that number, `before` the newest below it, neither the
    newest of all; 1 to 1,000 of them. A missing session is NotFound, never an empty page: a wrong
    key or scope must not look like a new chat. Raises BadInput, NotFound.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise BadInput("A page has 1 to 1,000 messages.", field="limit", limit=MAX_PAGE)
    for field, number in {"after": after, "before": before}.items():
        if number is not None and abs(number) > MAX_SEQ:
            raise BadInput(f"{field} is no number of a message.", code="bad_number", field=field)
    return _page(session_key, by, scope, after=after, before=before, limit=limit)


def read_history(
    *, session_key: str, by: Actor, scope: str | None = None, superseded: bool = True
) -> Page:
    """A session's head and all of its rows from the floor on, in order of seq.

    Without `superseded` those are left out that a later turn superseded. A missing session is
    NotFound, as for `read_page`. Raises BadInput, NotFound.
    """
    page = _page(session_key, by, scope, after=0, before=None, limit=None)
    return page if superseded else _without_superseded(page)


def read_superseded(*, head: Head) -> list[tuple[int, int]]:
    """The ranges of a session's numbers above the floor, ends included, that were superseded.

    One for each turn that did, in order of their ends; no later than the head.
    """
    if head.superseded_to < head.first_seq:
        return []
    turns = Turn.objects.filter(session=head.pk, user_seq__lte=head.last_seq)
    return durably(lambda: turns.superseded(head.first_seq), is_repeatable=True)


def _without_superseded(page: Page) -> Page:
    ranges = read_superseded(head=page.head)
    gone = {seq for low, high in ranges for seq in range(low, high + 1)}
    return replace(page, rows=[row for row in page.rows if row.seq not in gone])


def _page(
    session_key: str,
    by: Actor,
    scope: str | None,
    *,
    after: int | None,
    before: int | None,
    limit: int | None,
) -> Page:
    check_session_key(session_key)
    found = sessions_of(by, scope).filter(key=session_key)
    page = durably(lambda: found.page(after=after, before=before, limit=limit), is_repeatable=True)
    if page is None:
        raise NotFound
    return page


aget_session = in_pool(get_session)
aopen_session = in_pool(open_session, lane=address_lane)
aread_page = in_pool(read_page)
aread_history = in_pool(read_history)
aread_superseded = in_pool(read_superseded)
