"""What a socket has been shown of its session, and what comes next."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import asdict

from chatmemory import protocol, services
from chatmemory.consumers.credit import Credit
from chatmemory.hub import LiveText, hub
from chatmemory.models import Head, Message, Page, Session, StoredMessage, Turn
from chatmemory.protocol import Cursor
from chatmemory.responders import Progress
from chatmemory.services.addresses import MAX_SEQ
from chatmemory.services.faults import durably
from chatmemory.services.pool import in_pool

NEWEST = 50
"""Rows that a client begins with."""
PULL = 100
FAR_BEHIND = 500
"""From how many missed rows on a client begins anew instead of catching up."""
TEXT_CHARS = 32 * 1024
"""Longest piece of streamed text in one frame."""


class Feed:
    """A place in a session's rows and in the text of its run."""

    def __init__(self, session: Session, cursor: str | None) -> None:
        self.session_pk = session.pk
        self.epoch = session.epoch
        self.has_news = True
        self.is_gone = False
        self._resume = cursor
        self._is_new = True
        self._seq = 0
        self._lowest = 0
        self._first_seq = 1
        self._seen = (0, 0)
        """Revision and number up to which changed rows were shown."""
        self._shown: dict[str, object] = {}
        self._synced = ""
        self._torn = -1
        """The revision at which the session had changed before all of it was read."""
        self._superseded: list[tuple[int, int]] = []
        self._superseded_of = (0, 0, 0)
        self._running: str | None = None
        self._last_step: tuple[str | None, int] = (None, -1)
        self._text: LiveText | None = None
        self._piece = self._char = 0
        self._missed = 0
        """Pieces said before this socket came to the text; of their events only the last counts."""
        self._is_fresh = True

    async def frames(self, credit: Credit) -> AsyncGenerator[str, None]:
        """The frames that are due while there is credit: rows, then the session, then text."""
        while self.has_news and not self.is_gone and credit.is_left():
            self.has_news = False
            page, reset = await self._pull()
            if page is None:
                self.is_gone = True
                yield protocol.dump("reset", reason="purged", epoch=self.epoch)
                return
            if reset:
                self._text = None
                yield protocol.dump("reset", reason=reset, epoch=self.epoch)
            for row in self._rows(page, await self._changed(page.head), credit):
                yield protocol.dump_message(row.public())
            if self._seq < page.head.last_seq or self._seen < (page.head.revision, MAX_SEQ):
                self.has_news = True
                continue
            for frame in await self._head(page.head):
                yield frame
        if self._shown and self._shown["live"] != hub.is_live:
            self._shown = {**self._shown, "live": hub.is_live}
            yield protocol.dump("session", **self._shown)
        for frame in self._new_text(credit):
            yield frame

    def _rows(
        self, page: Page, changed: Sequence[StoredMessage], credit: Credit
    ) -> Iterator[StoredMessage]:
        """Those that changed and those that are new, while there is credit."""
        for row in changed:
            if not credit.is_left():
                return
            self._seen = (row.revision, row.seq)
            yield row
        if len(changed) < PULL:
            # What changed after the head was read may have been among them.
            self._seen = max(self._seen, (page.head.revision, MAX_SEQ))
        for row in page.rows:
            if not credit.is_left():
                return
            self._seq = row.seq
            if row.step is not None:
                self._last_step = (row.turn_client_id, row.step)
            yield row
        if not page.rows:
            self._seq = page.head.last_seq  # what was missed is below the floor by now

    async def _pull(self) -> tuple[Page | None, str]:
        """The rows that come next, and the reason for which the client must begin anew, if any."""
        cursor = Cursor.parse(self._resume) if self._resume is not None else None
        if self._is_new and cursor is None:
            page, reset = None, "other" if self._resume is not None else ""
        else:
            after = self._seq
            if self._is_new and cursor:
                after, self._seen = cursor.seq, (cursor.revision, MAX_SEQ)
            page = await _aread(self.session_pk, after=after, limit=PULL)
            if page is None:
                return None, ""
            reset = self._reset_reason(page.head, after, cursor if self._is_new else None)
            self._seq = min(after, page.head.last_seq)
        if page is None or reset:
            page = await _aread(self.session_pk, after=None, limit=NEWEST)
            if page is None:
                return None, ""
            self._seq = page.head.last_seq if not page.rows else page.rows[0].seq - 1
            self._lowest = self._seq + 1
            self._seen = (page.head.revision, MAX_SEQ)
        self._is_new = False
        self.epoch, self._first_seq = page.head.epoch, page.head.first_seq
        self._running = page.head.running
        return page, reset

    def _reset_reason(self, head: Head, after: int, cursor: Cursor | None) -> str:
        if cursor is not None and cursor.session_pk != self.session_pk:
            return "other"
        if head.epoch != (self.epoch if cursor is None else cursor.epoch):
            return "cleared" if head.first_seq > after else "restored"
        if head.first_seq < (self._first_seq if cursor is None else cursor.first_seq):
            return "restored"
        if after > head.last_seq or (cursor is not None and cursor.revision > head.revision):
            return "ahead"
        return "behind" if head.last_seq - max(after, head.first_seq - 1) > FAR_BEHIND else ""

    def fetches(self, low: int) -> None:
        """Rows from this number on are about to be shown; from now on, their changes too."""
        self._lowest = min(self._lowest, low)

    async def _changed(self, head: Head) -> list[StoredMessage]:
        """Rows that were shown, and have changed since."""
        if (head.rows_revision, MAX_SEQ) <= self._seen:
            return []
        return await _achanged(head, self._lowest, self._seq, self._seen)

    async def _head(self, head: Head) -> list[str]:
        """The session if it has changed, and how far the client has seen."""
        waiting = await _awaiting(head) if head.waiting else []
        if head.waiting and not waiting and self._torn != head.revision:
            # It has changed by now. Only once: the number may be damaged.
            self._torn, self.has_news = head.revision, True
            return []
        superseded = await self._superseded_in(head)
        more = {"superseded": superseded, "waiting": waiting, "live": hub.is_live}
        shown = {**head.public(), **more}
        frames = []
        if shown != self._shown:
            self._shown = shown
            frames.append(protocol.dump("session", **shown))
        synced = str(Cursor(self.session_pk, head.epoch, self._seq, head.revision, head.first_seq))
        if synced != self._synced:
            self._synced = synced
            frames.append(protocol.dump("synced", cursor=synced))
        return frames

    async def _superseded_in(self, head: Head) -> list[tuple[int, int]]:
        """The ranges that later turns superseded, read again only where there are others."""
        state = (head.epoch, head.first_seq, head.superseded_to)
        if state != self._superseded_of:
            self._superseded = await services.aread_superseded(head=head)
            self._superseded_of = state
        return self._superseded

    def _new_text(self, credit: Credit) -> Iterator[str]:
        """Text of the run past this socket's place in it."""
        text = hub.text_of(self.session_pk)
        if text is None or text.turn != self._running:
            return  # a mirror outlives its turn
        if text is not self._text:
            self._text, self._piece, self._char, self._is_fresh = text, 0, 0, True
            self._missed = len(text.pieces)
        turn, step = self._last_step
        if text.turn == turn and text.step <= step:
            return  # the finished row was shown
        while credit.is_left() and self._piece < len(text.pieces):
            kind = "snapshot" if self._is_fresh else "delta"
            said = self._take(text.pieces)
            self._is_fresh = False
            if said:
                yield protocol.dump(kind, turn=text.turn, step=text.step, **said)

    def _take(self, pieces: Sequence[str | Progress]) -> dict[str, object]:
        """What the next frame says: a piece of text, or an event; a snapshot may say both."""
        if self._is_fresh:
            events = [piece for piece in pieces[: self._missed] if isinstance(piece, Progress)]
            said = {"event": asdict(events[-1])} if events else {}
            return {"text": self._take_text(pieces), **said}
        piece = pieces[self._piece]
        if isinstance(piece, Progress) and self._piece >= self._missed:
            self._piece += 1
            return {"event": asdict(piece)}
        text = self._take_text(pieces)
        return {"text": text} if text else {}

    def _take_text(self, pieces: Sequence[str | Progress]) -> str:
        taken: list[str] = []
        left = TEXT_CHARS
        while left and self._piece < len(pieces):
            piece = pieces[self._piece]
            if isinstance(piece, Progress):
                if self._piece >= self._missed:
                    break
                self._piece += 1
                continue
            part = piece[self._char : self._char + left]
            taken.append(part)
            left -= len(part)
            self._char += len(part)
            if self._char == len(piece):
                self._piece, self._char = self._piece + 1, 0
        return "".join(taken)


def _read(session_pk: int, *, after: int | None, limit: int) -> Page | None:
    sessions = Session.objects.living().filter(pk=session_pk)
    return durably(lambda: sessions.page(after=after, limit=limit), is_repeatable=True)


def _changed(head: Head, low: int, high: int, seen: tuple[int, int]) -> list[StoredMessage]:
    # If the history was cleared since the head was read, this is empty.
    shown = Message.objects.filter(session=head.pk, session__epoch=head.epoch)
    rows = shown.filter(seq__gte=low, seq__lte=high)
    return durably(lambda: rows.changed_since(*seen, limit=PULL), is_repeatable=True)


def _waiting(head: Head) -> list[dict[str, object]]:
    """The turns that waited when the head was read; none, if the session has changed since."""
    # Of another moment, one that began in between would be shown nowhere.
    turns = Turn.objects.filter(session=head.pk, session__revision=head.revision).waiting()
    waiting = durably(lambda: list(turns), is_repeatable=True)
    return [{"turn": turn.client_id, "text": turn.asked_text} for turn in waiting]


_aread = in_pool(_read)
_achanged = in_pool(_changed)
_awaiting = in_pool(_waiting)
