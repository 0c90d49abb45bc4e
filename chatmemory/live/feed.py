"""The position of a socket in its session, and the frames after it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import asdict

from chatmemory import protocol
from chatmemory.database.pool import in_pool
from chatmemory.database.retries import retried
from chatmemory.live.credit import Credit
from chatmemory.live.cursors import BlockCursor, TextCursor
from chatmemory.live.hub import hub
from chatmemory.live.rows import row_frames
from chatmemory.live.texts import LiveText, SessionRef
from chatmemory.models import Change, Head, Page, Session, StoredMessage, Turn, superseded_seqs
from chatmemory.protocol import Cursor
from chatmemory.rendering.rows import person_of
from chatmemory.services.catch_up import NextRows, Reset, RowCursor, changed_rows, next_rows

PAGE_ROWS = 100
"""The most rows of one read; changed and new rows count separately."""
MAX_CHANGES = 8
"""More changes that wait to be applied are read instead, so that a slow socket keeps few rows."""
MAX_UNCHECKED = 100
"""After this number of changes from memory the next one is read."""


class Feed:
    """A position in a session's rows and in the text of its run.

    Scope and key identify the session, and the epoch identifies its history. After a restore of the
    database the session may have another primary key, and another session its old one.
    """

    is_shared = False
    """Whether several feeds belong to one socket of the hub."""

    def __init__(self, session: Session, cursor: str | None, language: str | None = None) -> None:
        """With a `language`, finished blocks of streamed text are also sent as HTML."""
        self.ref = SessionRef(session.pk, session.epoch)
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
        self._superseded_state = (0, 0, 0, 0)
        self._head: Head | None = None
        """The head up to which all was sent, if the rows are at its end."""
        self._changes: deque[Change] = deque()
        self._text = TextCursor()
        self._blocks = BlockCursor()
        self._language = language

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
                # Before the read, so that a notification during it causes another read.
                self.is_read_due = False
                page, reset = await self._next_page()
            elif page is None:
                continue
            if reset is not None:
                # The client drops all of this at a reset, so it must be sent again.
                self._forget_text()
                self._last_session, self._last_cursor = {}, ""
                self._superseded_state = (0, 0, 0, 0)
                yield protocol.dump("reset", epoch=self.ref.epoch, **asdict(reset))
            if page is None:
                self.is_removed = True
                return
            changed: list[StoredMessage] = []
            if self._rows.has_changed(page.head):
                changed = await _achanged(page.head, self._rows, limit=PAGE_ROWS)
            ends = await self._block_ends([*changed, *page.rows])
            left = len(changed) + len(page.rows)
            for row in self._rows.due(page, changed, limit=PAGE_ROWS, is_left=credit.is_left):
                left -= 1
                if frame := ends.get(row.seq):
                    self.is_next_ready = True
                    yield frame
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
        if self.is_shared or hub.has_several_sockets(self.ref.session_pk):
            return row_frames.frame_of(self.ref, row)
        return protocol.dump_message(row.public())

    async def _block_ends(self, rows: Iterable[StoredMessage]) -> dict[int, str]:
        """Return the frame with the last blocks of a streamed text, by the seq of its row."""
        for row in rows:
            blocks = self._blocks.blocks_of(row.turn_client_id, row.step)
            if blocks is not None:
                is_complete = await blocks.acomplete(row.text)
                frame = self._blocks.last_frame() if is_complete else None
                self._blocks = BlockCursor()
                return {} if frame is None else {row.seq: frame}
        return {}

    async def _next_page(self) -> tuple[Page | None, Reset | None]:
        """Read the next rows; return them and the reset to send before them, if any.

        The page is None if the session was removed.
        """
        is_new, rows = self._is_new, self._rows
        cursor = self._client_cursor if is_new else rows.position(*self.ref)
        found = await self.read_rows(cursor, rows.unchecked)
        if found.page is None:
            return None, found.reset
        if found.position is None:
            self._rows = RowCursor.before(found.page)
        elif is_new:
            self._rows = RowCursor.resumed(found.position)
        self._rows.unchecked = {}
        self._is_new = False
        self._follow(found.page.head)
        return found.page, found.reset

    async def read_rows(
        self, cursor: Cursor | str | None, row_digests: Mapping[int, str]
    ) -> NextRows:
        """Read the rows after a cursor."""
        return await anext_rows(*self.address, cursor, limit=PAGE_ROWS, row_digests=row_digests)

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

    def _follow(self, head: Head) -> None:
        self._head = head
        self.ref = SessionRef(head.pk, head.epoch)
        self._rows.first_seq = head.first_seq

    def extend_down(self, low: int) -> None:
        """Send changes of the rows from this seq on too, since the client fetches them."""
        self._rows.extend_down(low)

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
        rows = self._rows
        cursor_text = str(
            Cursor(
                head.pk,
                head.epoch,
                rows.seq,
                head.revision,
                head.first_seq,
                rows.row_digest,
                stored_at=rows.stored_at,
            )
        )
        if cursor_text != self._last_cursor:
            self._last_cursor = cursor_text
            frames.append(protocol.dump("synced", cursor=cursor_text))
        return frames

    async def _superseded_in(self, head: Head) -> list[tuple[int, int]]:
        """Return the superseded ranges. Reads them only if they may have changed."""
        # A withdrawal and its restore move `rows_revision`.
        state = (head.epoch, head.first_seq, head.superseded_to, head.rows_revision)
        if state != self._superseded_state:
            has_any = head.superseded_to >= head.first_seq
            self._superseded = await _asuperseded(head) if has_any else []
            self._superseded_state = state
        return self._superseded

    def _new_text(self, credit: Credit) -> Iterator[str]:
        """Yield frames with the text of the run after this socket's position."""
        text = hub.text_of(self.ref)
        running = self._head.running if self._head is not None else None
        if text is None or text.turn != running:
            # A mirror can exist longer than its turn. An idle socket keeps no text in memory.
            self._forget_text()
            return
        self._text.follow(text)
        if self._rows.has_step(text.turn, text.step):
            return  # the finished row, which contains the text, was sent
        while credit.is_left() and (frame := self._text.next_frame()) is not None:
            if frame:
                yield frame
        if self._language is not None:
            yield from self._new_blocks(text, self._language, credit)

    def _new_blocks(self, text: LiveText, language: str, credit: Credit) -> Iterator[str]:
        """Yield frames with the blocks of the text that was sent."""
        person = person_of(self.address[0], self.ref.session_pk)
        blocks = hub.blocks_of(self.ref, text, language, person=person)
        blocks.update()
        self._blocks.follow(text, blocks)
        while credit.is_left() and (frame := self._blocks.next_frame(self._text.chars)) is not None:
            yield frame

    def _forget_text(self) -> None:
        self._text, self._blocks = TextCursor(), BlockCursor()


@retried(is_repeatable=True)
def _waiting_turns(head: Head) -> list[dict[str, object]]:
    """Return the turns that waited when the head was read; none if the session has changed."""
    # The turns must be as old as the head: a turn that started in between would appear neither as
    # waiting nor as running. Each change of a turn's state increments the revision.
    turns = Turn.objects.filter(**head.as_session(), session__revision=head.revision).waiting()
    return [{"turn": turn.client_id, "text": turn.asked_text} for turn in turns]


@retried(is_repeatable=True)
def _superseded(head: Head) -> list[tuple[int, int]]:
    """Return the ranges of seqs above the floor that were superseded when the head was read."""
    return superseded_seqs(head.first_seq, newest=head.last_seq, **head.as_session())


anext_rows = in_pool(next_rows)
_asuperseded = in_pool(_superseded)
_achanged = in_pool(changed_rows)
_awaiting = in_pool(_waiting_turns)
