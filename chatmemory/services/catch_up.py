"""Catch up: the rows that a client has missed since its cursor, over websockets and REST."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate, chain, repeat
from typing import Any

from django.db.models import Q

from chatmemory.access.actors import Actor, scope_for
from chatmemory.access.addresses import MAX_SEQ, check_session_key
from chatmemory.database.reads import read_page_at, read_row_digests
from chatmemory.database.retries import retried
from chatmemory.errors import NotFound
from chatmemory.models import AuditEntry, Head, Message, Page, Session, StoredMessage, row_digest_of
from chatmemory.models.paging import MICROSECOND, UNIX_EPOCH
from chatmemory.protocol import Cursor
from chatmemory.services.audit.keys import key_hashes
from chatmemory.services.sessions import check_page_limit

FIRST_ROWS = 50
"""How many rows a client gets that has no cursor, or that must drop its rows."""
MAX_MISSED_ROWS = 500
"""Above this number of missed rows a client is reset instead of catching up."""
MAX_PAGE_CHARS = 1_000_000
"""Characters of all messages in one response of REST, unless a single message has more."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Why a client must drop its messages."""

    reason: str
    lost: int | None = 0
    """How many messages the database has lost; None if the number is unknown."""


class RowCursor:
    """The rows that were sent: new ones by seq, changed ones by revision and seq."""

    def __init__(self) -> None:
        self.seq = 0
        self._row_digest: str | tuple[Any, ...] = ""
        self._stored_at: datetime | int | None = None
        self.lowest = 0
        """The lowest row that was sent: changes of lower rows are not sent."""
        self.first_seq = 1
        """The session's floor."""
        self.seen = (0, 0)
        """Revision and seq up to which changed rows were sent."""
        self.unchecked: dict[int, str] = {}
        """Digests of rows before changes from memory, which the next read checks."""
        self._last_step: tuple[str | None, int] = (None, -1)

    @classmethod
    def resumed(cls, position: Cursor) -> RowCursor:
        """Start at a client's cursor."""
        cursor = cls()
        cursor.seq, cursor._row_digest = position.seq, position.row_digest
        cursor._stored_at = position.stored_at
        changed = MAX_SEQ if position.changed is None else position.changed
        cursor.seen = (position.revision, changed)
        return cursor

    @classmethod
    def before(cls, page: Page) -> RowCursor:
        """Start before the rows of a page, which contain all changes up to its head."""
        cursor = cls()
        cursor.seq = page.rows[0].seq - 1 if page.rows else page.head.last_seq
        cursor.lowest = cursor.seq + 1
        cursor.seen = (page.head.revision, MAX_SEQ)
        return cursor

    @property
    def row_digest(self) -> str:
        """Identifies the row `seq`; empty if it was not sent."""
        # Hashed at its use: most rows are not the last one.
        if not isinstance(self._row_digest, str):
            self._row_digest = row_digest_of(*self._row_digest)
        return self._row_digest

    @property
    def stored_at(self) -> int | None:
        """When the row `seq` was stored, in microseconds since 1970; None if that is unknown."""
        at = self._stored_at
        return _microseconds(at) if isinstance(at, datetime) else at

    def due(
        self,
        page: Page,
        changed: Sequence[StoredMessage],
        *,
        limit: int,
        is_left: Callable[[], bool],
    ) -> Iterator[StoredMessage]:
        """Yield and pass the changed rows, then the new ones, while `is_left` returns true.

        `limit` is the maximum number of changed rows that were read: after fewer none is missing.
        """
        for row in changed:
            if not is_left():
                return
            self.seen = (row.revision, row.seq)
            yield row
        if len(changed) < limit:
            # The maximum: a row that changed after the head was read may have been sent already.
            self.seen = max(self.seen, (page.head.revision, MAX_SEQ))
        for row in page.rows:
            if not is_left():
                return
            self.seq, self._row_digest = row.seq, row.identity
            self._stored_at = row.created_at
            if row.step is not None:
                self._last_step = (row.turn_client_id, row.step)
            yield row
        if not page.rows and self.seq != page.head.last_seq:
            # All missed rows are below the floor. The last one was not sent: its digest is unknown.
            self.seq, self._row_digest, self._stored_at = page.head.last_seq, "", None

    def follow_from_memory(self) -> None:
        """Note the digest of the current row before a change from memory."""
        if self.row_digest:
            self.unchecked[self.seq] = self.row_digest

    def extend_down(self, seq: int) -> None:
        self.lowest = min(self.lowest, seq)

    def has_step(self, turn: str, step: int) -> bool:
        """Whether the row of this step of the newest turn, or of a later step, was sent."""
        last_turn, last_step = self._last_step
        return turn == last_turn and step <= last_step

    def has_changed(self, head: Head) -> bool:
        """Whether rows may have changed since they were sent."""
        return (head.rows_revision, MAX_SEQ) > self.seen

    def is_at_end(self, head: Head) -> bool:
        return self.seq >= head.last_seq and self.seen >= (head.revision, MAX_SEQ)

    def position(self, session_pk: int, epoch: int) -> Cursor:
        revision, changed = self.seen
        return Cursor(
            session_pk,
            epoch,
            self.seq,
            revision,
            self.first_seq,
            self.row_digest,
            None if changed == MAX_SEQ else changed,
            self.stored_at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRows:
    """The rows after a position, or the newest ones."""

    page: Page | None
    """None if the session was removed."""
    reset: Reset | None = None
    """The reset that must precede them."""
    position: Cursor | None = None
    """The position that they follow; None for the newest rows."""


def next_rows(
    scope: str,
    key: str,
    cursor: Cursor | str | None,
    *,
    limit: int,
    newest: int = FIRST_ROWS,
    row_digests: Mapping[int, str] | None = None,
) -> NextRows:
    """Read up to `limit` rows after a cursor, or the `newest` rows without a valid one.

    `row_digests` are of other rows that the client has. Raises MemoryUnavailable.
    """
    position = Cursor.parse(cursor) if isinstance(cursor, str) else cursor
    reset = None
    if position is not None:
        # Note [Commit order]: no lower seq appears later, so a position is one number.
        page = read_page_at(scope, key, after=position.seq, limit=limit)
        if page is None:
            vanished = _vanished(scope, key, position)
            return NextRows(page=None, reset=vanished or Reset("purged"))
        reset = _reset_before(page, position) or _check_row_digests(page.head, row_digests or {})
        if reset is None:
            return NextRows(page=page, position=position)
    elif cursor is not None:
        reset = Reset("other")
    page = read_page_at(scope, key, after=None, limit=newest)
    return NextRows(page=page, reset=Reset("purged") if page is None else reset)


def _reset_before(page: Page, position: Cursor) -> Reset | None:
    """Return the reset that must precede this page of the rows after a position; None without one.

    Seqs and revisions only grow, and no row is replaced. If it seems otherwise, an older database
    was restored. See Note [Floor and epoch].
    """
    head = page.head
    is_same = head.epoch == position.epoch
    if not is_same and head.pk != position.session_pk:
        return _vanished(head.scope, head.key, position) or Reset("other")
    if position.seq > head.last_seq:
        return Reset("ahead", lost=_lost_above(head, position))
    if position.seq < head.first_seq:
        if not is_same:
            return Reset("cleared")
    elif position.row_digest and position.row_digest != page.row_digest:
        return Reset("diverged", lost=None)
    if not is_same or head.first_seq < position.first_seq:
        return Reset("restored")
    if position.revision > head.revision:
        return Reset("ahead")
    missed = head.last_seq - max(position.seq, head.first_seq - 1)
    return Reset("behind") if missed > MAX_MISSED_ROWS else None


@retried(is_repeatable=True)
def _vanished(scope: str, key: str, position: Cursor) -> Reset | None:
    """Return the reset if a restore lost the session of a cursor, with its messages.

    A session that was removed is still stored, or its removal is in the audit.
    """
    lost = position.seq - position.first_seq + 1
    address = Q(key=key) & (Q(scope=scope) | Q(removed_scope=scope))
    stored = Session.objects.filter(address | Q(epoch=position.epoch), pk=position.session_pk)
    if lost <= 0 or stored.exists():
        return None
    entries = AuditEntry.objects.filter(
        session_pk=position.session_pk, key_hash__in=key_hashes(key)
    )
    return None if entries.exists() else Reset("ahead", lost=lost)


@retried(is_repeatable=True)
def _lost_above(head: Head, position: Cursor) -> int | None:
    """Return how many messages up to a position a restore lost.

    None if the newest message is not older than the position's: it was stored after the restore,
    and replaces a lost one.
    """
    newest = Message.stored.filter(seq=head.last_seq, **head.as_session())
    for stored_at in newest.values_list("created_at", flat=True):
        if position.stored_at is None or _microseconds(stored_at) > position.stored_at:
            return None
    return position.seq - head.last_seq


def _microseconds(at: datetime) -> int:
    return (at.astimezone(UTC) - UNIX_EPOCH) // MICROSECOND


def _check_row_digests(head: Head, row_digests: Mapping[int, str]) -> Reset | None:
    """Return a reset if one of these rows was replaced."""
    wanted = {seq: digest for seq, digest in row_digests.items() if seq >= head.first_seq}
    return (
        Reset("diverged", lost=None)
        if wanted and read_row_digests(head, [*wanted]) != wanted
        else None
    )


def changed_rows(head: Head, rows: RowCursor, *, limit: int) -> list[StoredMessage]:
    """Return the sent rows that have changed since. Raises MemoryUnavailable."""
    if not rows.has_changed(head):
        return []
    return _read_changed(head, rows.lowest, rows.seq, rows.seen, limit)


@retried(is_repeatable=True)
def _read_changed(
    head: Head, low: int, high: int, seen: tuple[int, int], limit: int
) -> list[StoredMessage]:
    # No rows if the history was cleared since the head was read.
    rows = Message.objects.filter(seq__gte=low, seq__lte=high, **head.as_session())
    return rows.changed_since(*seen, limit=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """What a client has missed since its cursor."""

    head: Head
    rows: list[StoredMessage]
    """Changed rows in the order of their changes, then new rows in order of seq."""
    reset: str | None
    """Why the client must drop its rows before; None if it keeps them."""
    cursor: str
    """The position after these rows."""
    is_complete: bool
    """Whether these rows lead up to the head."""


def read_missed(
    *,
    session_key: str,
    by: Actor,
    scope: str | None = None,
    cursor: str | None = None,
    limit: int = FIRST_ROWS,
) -> Missed:
    """Return up to `limit` rows that are new or changed since a cursor, by the rules of sockets.

    The cursor is from an earlier call or from a websocket. Without one the newest rows are
    returned. If the client must drop its rows, `reset` is the reason, and the newest 50 are
    returned. The rows have at most a million characters, unless a single one has more.
    Raises BadInput, NotFound, MemoryUnavailable.
    """
    check_session_key(session_key)
    check_page_limit(limit)
    newest = limit if cursor is None else min(limit, FIRST_ROWS)
    found = next_rows(scope_for(by, scope), session_key, cursor, limit=limit, newest=newest)
    page = found.page
    if page is None:
        raise NotFound
    changed: list[StoredMessage] = []
    if found.position is None:
        page = replace(page, rows=newest_that_fit(page.rows))
        passed = RowCursor.before(page)
    else:
        passed = RowCursor.resumed(found.position)
        changed = changed_rows(page.head, passed, limit=limit)
    passed.first_seq = page.head.first_seq
    count = len(oldest_that_fit([*changed, *page.rows][:limit]))
    is_left = chain(repeat(True, count), repeat(False)).__next__
    rows = list(passed.due(page, changed, limit=limit, is_left=is_left))
    return Missed(
        head=page.head,
        rows=rows,
        reset=None if found.reset is None else found.reset.reason,
        cursor=str(passed.position(page.head.pk, page.head.epoch)),
        is_complete=passed.is_at_end(page.head),
    )


def oldest_that_fit(rows: Sequence[StoredMessage]) -> list[StoredMessage]:
    """Return the first rows with at most MAX_PAGE_CHARS together, and at least one row."""
    sizes = accumulate(map(_row_size, rows))
    fitting = [row for row, size in zip(rows, sizes, strict=True) if size <= MAX_PAGE_CHARS]
    return fitting or [*rows[:1]]


def newest_that_fit(rows: Sequence[StoredMessage]) -> list[StoredMessage]:
    """Return the last rows with at most MAX_PAGE_CHARS together, and at least one row."""
    return oldest_that_fit(rows[::-1])[::-1]


def exceeds_page(row: StoredMessage) -> bool:
    """Whether the row alone has more than MAX_PAGE_CHARS."""
    return _row_size(row) > MAX_PAGE_CHARS


def _row_size(row: StoredMessage) -> int:
    return len(row.text) + len(row.body or "")
