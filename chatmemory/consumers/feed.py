"""The position of a socket in its session, and the frames after it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import asdict, dataclass

from chatmemory import protocol
from chatmemory.access.addresses import MAX_SEQ
from chatmemory.consumers.credit import Credit
from chatmemory.consumers.cursors import RowCursor, TextCursor
from chatmemory.consumers.rows import row_frames
from chatmemory.database.pool import in_pool
from chatmemory.database.reads import read_marks, read_page_at
from chatmemory.database.retries import retried
from chatmemory.live.hub import hub
from chatmemory.live.texts import Place
from chatmemory.models import (
    Change,
    Head,
    Message,
    Page,
    Session,
    StoredMessage,
    Turn,
)
from chatmemory.protocol import Cursor

FIRST_ROWS = 50
"""How many rows a client without a cursor is sent."""
PAGE_ROWS = 100
"""The most rows of one read; changed and new rows count separately."""
MAX_CHANGES = 8
"""More changes that wait to be applied are read instead, so that a slow socket keeps few rows."""
MAX_UNCHECKED = 100
"""After this number of changes from memory the next one is read."""
MAX_MISSED_ROWS = 500
"""Above this number of missed rows a client is reset instead of catching up."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Why a client must drop its messages."""

    reason: str
    lost: int | None = 0
    """How many messages the database has lost; None if the number is unknown."""


class Feed:
    """A position in a session's rows and in the text of its run.

    Scope and key identify the session, and the epoch identifies its history. After a restore of the
    database the session may have another primary key, and another session its old one.
    """

    def __init__(self, session: Session, cursor: str | None) -> None:
        self.place = Place(session.pk, session.epoch)
        self.address = (session.scope, session.key)
        self.is_read_due = True
        self.is_removed = False
        self.is_next_ready = False
        """Whether the next frame needs no read."""
        self._client_cursor = cursor
        self._is_new = True
        self._rows = RowCursor()
        self._last_session: dict[str, object] = {}
        self._last_cursor = ""
        self._reread_at_revision = -1
        """The revision for which the waiting turns were already read a second time."""
        self._superseded: list[tuple[int, int]] = []
        self._superseded_state = (0, 0, 0)
        self._head: Head | None = None
        """The head up to which all was sent, if the rows are at its end."""
        self._changes: deque[Change] = deque()
        self._text = TextCursor()

    @property
    def has_changes(self) -> bool:
        """Whether received changes were not applied yet."""
        return bool(self._changes)

    def receive(self, change: Change | None) -> None:
        """Show a change of this process; without one, read. See Note [Rows from memory]."""
        if change is None or len(self._changes) >= MAX_CHANGES:
            self._read_changes()
        else:
            self._changes.append(change)

    def _read_changes(self) -> None:
        self._changes.clear()
        self.is_read_due = True

    async def frames(self, credit: Credit) -> AsyncGenerator[str, None]:
        """Yield the frames that are due while credit is left: rows, the session, then text."""
        # Note [Flow control]: rows are read only when they can be sent, and never queued.
        self.is_next_ready = False
        while (self.is_read_due or self._changes) and not self.is_removed and credit.is_left():
            page, reset = self._apply_change(), None
            if self.is_read_due:
                # Before the read, so that a hint that arrives during it causes another read.
                self.is_read_due = False
                page, reset = await self._next_page()
            elif page is None:
                continue
            if reset is not None:
                # The client drops all of this at a reset, so it must be sent again.
                self._text, self._last_session, self._last_cursor = TextCursor(), {}, ""
                self._superseded_state = (0, 0, 0)
                yield protocol.dump("reset", epoch=self.place.epoch, **asdict(reset))
            if page is None:
                self.is_removed = True
                return
            changed = await self._changed(page.head)
            left = len(changed) + len(page.rows)
            for row in self._due_rows(page, changed, credit):
                left -= 1
                self.is_next_ready = left > 0
                yield self._frame_of(row)
            if not self._rows.is_at_end(page.head):
                self.is_read_due = True
                continue
            head_frames = await self._head_frames(page.head)
            for frame in head_frames:
                self.is_next_ready = frame is not head_frames[-1]
                yield frame
        if self._changes and credit.is_spent():
            self._read_changes()
        if self._last_session and self._last_session["live"] != hub.is_layer_working:
            self._last_session = {**self._last_session, "live": hub.is_layer_working}
            yield protocol.dump("session", **self._last_session)
        for frame in self._new_text(credit):
            yield frame

    def _frame_of(self, row: StoredMessage) -> str:
        if hub.has_several_sockets(self.place.session_pk):
            return row_frames.frame_of(self.place, row)
        return protocol.dump_message(row.public())

    def _due_rows(
        self, page: Page, changed: Sequence[StoredMessage], credit: Credit
    ) -> Iterator[StoredMessage]:
        """Yield changed rows, then new ones, while credit is left."""
        for row in changed:
            if not credit.is_left():
                return
            self._rows.pass_changed(row)
            yield row
        if len(changed) < PAGE_ROWS:
            self._rows.pass_changes(page.head)
        for row in page.rows:
            if not credit.is_left():
                return
            self._rows.pass_new(row)
            yield row
        if not page.rows:
            self._rows.skip_to(page.head.last_seq)  # all missed rows are below the floor

    async def _next_page(self) -> tuple[Page | None, Reset | None]:
        """Read the next rows; return them and the reset to send before them, if any.

        The page is None if the session was removed.
        """
        page, reset, position = None, None, self._position()
        if position is not None:
            # Note [Commit order]: no lower seq appears later, so a position is one number.
            page = await _aread(*self.address, after=position.seq, limit=PAGE_ROWS)
            if page is None:
                return None, Reset("purged")
            reset = _reset(page, position) or await self._check_marks(page.head)
            if self._is_new:
                self._rows = RowCursor.resumed(position)
        elif self._is_new and self._client_cursor is not None:
            reset = Reset("other")
        if page is None or reset is not None:
            page = await _aread(*self.address, after=None, limit=FIRST_ROWS)
            if page is None:
                return None, Reset("purged")
            self._rows = RowCursor.before(page)
        self._is_new = False
        self._follow(page.head)
        return page, reset

    def _apply_change(self) -> Page | None:
        """Return the rows of the next change; None if they were sent or must be read."""
        if self.is_read_due or not self._changes:
            return None
        change, head = self._changes.popleft(), self._head
        page = None
        if head is None or not self._rows.is_at_end(head):
            self.is_read_due = True
        elif not change.is_in(head):
            page = change.page_after(head) if len(self._rows.unchecked) < MAX_UNCHECKED else None
            self.is_read_due = page is None
        if page is not None:
            if page.rows:
                self._rows.follow_from_memory()
            self._follow(page.head)
        return page

    async def _check_marks(self, head: Head) -> Reset | None:
        """Return a reset if a row that preceded a change from memory was replaced."""
        unchecked, self._rows.unchecked = self._rows.unchecked, {}
        wanted = {seq: mark for seq, mark in unchecked.items() if seq >= head.first_seq}
        if wanted and await _amarks(head, list(wanted)) != wanted:
            return Reset("diverged", lost=None)
        return None

    def _follow(self, head: Head) -> None:
        self._head = head
        self.place = Place(head.pk, head.epoch)
        self._rows.first_seq = head.first_seq

    def _position(self) -> Cursor | None:
        """Return the client's position; None if it starts with the newest rows."""
        if self._is_new:
            return None if self._client_cursor is None else Cursor.parse(self._client_cursor)
        return self._rows.position(self.place)

    def extend_down(self, low: int) -> None:
        """Also send changes of the rows from this seq on, which the client fetches."""
        self._rows.extend_down(low)

    async def _changed(self, head: Head) -> list[StoredMessage]:
        """Return the sent rows that have changed since."""
        rows = self._rows
        if (head.rows_revision, MAX_SEQ) <= rows.seen:
            return []
        return await _achanged(head, rows.lowest, rows.seq, rows.seen)

    async def _head_frames(self, head: Head) -> list[str]:
        """Return the session frame if it has changed, and a cursor of what was sent."""
        waiting = await _awaiting(head) if head.waiting else []
        if head.waiting and not waiting and self._reread_at_revision != head.revision:
            # The session has changed since the head was read, so read it again. Only once for a
            # revision: with a wrong number of waiting turns in the row this would never end.
            self._reread_at_revision, self.is_read_due = head.revision, True
            return []
        superseded = await self._superseded_in(head)
        more = {"superseded": superseded, "waiting": waiting, "live": hub.is_layer_working}
        session = {**head.public(), **more}
        frames = []
        if session != self._last_session:
            self._last_session = session
            frames.append(protocol.dump("session", **session))
        cursor_text = str(
            Cursor(
                head.pk, head.epoch, self._rows.seq, head.revision, head.first_seq, self._rows.mark
            )
        )
        if cursor_text != self._last_cursor:
            self._last_cursor = cursor_text
            frames.append(protocol.dump("synced", cursor=cursor_text))
        return frames

    async def _superseded_in(self, head: Head) -> list[tuple[int, int]]:
        """Return the superseded ranges. Reads them only if they may have changed."""
        state = (head.epoch, head.first_seq, head.superseded_to)
        if state != self._superseded_state:
            has_any = head.superseded_to >= head.first_seq
            self._superseded = await _asuperseded(head) if has_any else []
            self._superseded_state = state
        return self._superseded

    def _new_text(self, credit: Credit) -> Iterator[str]:
        """Yield frames with the text of the run after this socket's position."""
        text = hub.text_of(self.place)
        running = self._head.running if self._head is not None else None
        if text is None or text.turn != running:
            # A mirror can exist longer than its turn. An idle socket keeps no text in memory.
            self._text = TextCursor()
            return
        self._text.follow(text)
        if self._rows.has_step(text.turn, text.step):
            return  # the finished row, which contains the text, was sent
        while credit.is_left() and (frame := self._text.next_frame()) is not None:
            if frame:
                yield frame


def _reset(page: Page, position: Cursor) -> Reset | None:
    """Return the reset that must precede this page of the rows after a position; None without one.

    Seqs and revisions only grow, and no row is replaced. If it seems otherwise, an older database
    was restored. See Note [Floor and epoch].
    """
    head = page.head
    is_same = head.epoch == position.epoch
    if not is_same and head.pk != position.session_pk:
        return Reset("other")
    if position.seq > head.last_seq:
        return Reset("ahead", lost=position.seq - head.last_seq)
    if position.seq < head.first_seq:
        if not is_same:
            return Reset("cleared")
    elif position.mark and position.mark != page.mark:
        return Reset("diverged", lost=None)
    if not is_same or head.first_seq < position.first_seq:
        return Reset("restored")
    if position.revision > head.revision:
        return Reset("ahead")
    missed = head.last_seq - max(position.seq, head.first_seq - 1)
    return Reset("behind") if missed > MAX_MISSED_ROWS else None


@retried(is_repeatable=True)
def _changed(head: Head, low: int, high: int, seen: tuple[int, int]) -> list[StoredMessage]:
    # No rows if the history was cleared since the head was read.
    rows = Message.objects.filter(seq__gte=low, seq__lte=high, **head.as_session())
    return rows.changed_since(*seen, limit=PAGE_ROWS)


@retried(is_repeatable=True)
def _waiting(head: Head) -> list[dict[str, object]]:
    """Return the turns that waited when the head was read; none if the session has changed."""
    # The turns must be as old as the head: a turn that started in between would appear neither as
    # waiting nor as running. Each change of a turn's state increments the revision.
    turns = Turn.objects.filter(**head.as_session(), session__revision=head.revision).waiting()
    return [{"turn": turn.client_id, "text": turn.asked_text} for turn in turns]


@retried(is_repeatable=True)
def _superseded(head: Head) -> list[tuple[int, int]]:
    """Return the ranges of seqs above the floor that were superseded when the head was read."""
    turns = Turn.objects.filter(**head.as_session(), user_seq__lte=head.last_seq)
    return turns.superseded(head.first_seq)


_aread = in_pool(read_page_at)
_asuperseded = in_pool(_superseded)
_achanged = in_pool(_changed)
_amarks = in_pool(read_marks)
_awaiting = in_pool(_waiting)
