"""What a socket has been shown of its session, and what comes next."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from chatmemory import protocol, services
from chatmemory.consumers.credit import Credit
from chatmemory.hub import LiveText, hub
from chatmemory.models import Head, Page, Session, Turn
from chatmemory.protocol import Cursor
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
        self._first_seq = 1
        self._shown: dict[str, object] = {}
        self._synced = ""
        self._superseded: list[tuple[int, int]] = []
        self._superseded_of = (0, 0, 0)
        self._running: str | None = None
        self._last_step: tuple[str | None, int] = (None, -1)
        self._text: LiveText | None = None
        self._piece = self._char = 0
        self._is_fresh = True

    async def frames(self, credit: Credit) -> AsyncIterator[str]:
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
            for row in page.rows:
                if not credit.is_left():
                    break
                self._seq = row.seq
                if row.step is not None:
                    self._last_step = (row.turn_client_id, row.step)
                yield protocol.dump_message(row.public())
            if not page.rows:
                self._seq = page.head.last_seq  # what was missed is below the floor by now
            if self._seq < page.head.last_seq:
                self.has_news = True
                continue
            for frame in await self._head(page.head):
                yield frame
        if self._shown and self._shown["live"] != hub.is_live:
            self._shown = {**self._shown, "live": hub.is_live}
            yield protocol.dump("session", **self._shown)
        for frame in self._new_text(credit):
            yield frame

    async def _pull(self) -> tuple[Page | None, str]:
        """The rows that come next, and the reason for which the client must begin anew, if any."""
        cursor = Cursor.parse(self._resume) if self._resume is not None else None
        if self._is_new and cursor is None:
            page, reset = None, "other" if self._resume is not None else ""
        else:
            after = cursor.seq if self._is_new and cursor else self._seq
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
        self._is_new = False
        self.epoch, self._first_seq = page.head.epoch, page.head.first_seq
        self._running = page.head.running
        return page, reset

    def _reset_reason(self, head: Head, after: int, cursor: Cursor | None) -> str:
        if cursor is not None and cursor.session_pk != self.session_pk:
            return "other"
        if head.epoch != (self.epoch if cursor is None else cursor.epoch):
            return "cleared" if head.first_seq > after else "restored"
        if head.first_seq < self._first_seq and cursor is None:
            return "restored"
        if after > head.last_seq:
            return "ahead"
        return "behind" if head.last_seq - max(after, head.first_seq - 1) > FAR_BEHIND else ""

    async def _head(self, head: Head) -> list[str]:
        """The session if it has changed, and how far the client has seen."""
        waiting = await _awaiting(self.session_pk) if head.waiting else []
        superseded = await self._superseded_in(head)
        more = {"superseded": superseded, "waiting": waiting, "live": hub.is_live}
        shown = {**head.public(), **more}
        frames = []
        if shown != self._shown:
            self._shown = shown
            frames.append(protocol.dump("session", **shown))
        synced = str(Cursor(self.session_pk, head.epoch, self._seq, head.revision))
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
        turn, step = self._last_step
        if text.turn == turn and text.step <= step:
            return  # the finished row was shown
        while credit.is_left() and (chunk := self._take(text.pieces)):
            kind = "snapshot" if self._is_fresh else "delta"
            self._is_fresh = False
            yield protocol.dump(kind, turn=text.turn, step=text.step, text=chunk)

    def _take(self, pieces: Sequence[str]) -> str:
        """The next piece of text for a frame; empty where there is none."""
        taken: list[str] = []
        left = TEXT_CHARS
        while left and self._piece < len(pieces):
            part = pieces[self._piece][self._char : self._char + left]
            taken.append(part)
            left -= len(part)
            self._char += len(part)
            if self._char == len(pieces[self._piece]):
                self._piece, self._char = self._piece + 1, 0
        return "".join(taken)


def _read(session_pk: int, *, after: int | None, limit: int) -> Page | None:
    sessions = Session.objects.living().filter(pk=session_pk)
    return durably(lambda: sessions.page(after=after, limit=limit), is_repeatable=True)


def _waiting(session_pk: int) -> list[dict[str, object]]:
    turns = Turn.objects.filter(session=session_pk).waiting()
    waiting = durably(lambda: list(turns), is_repeatable=True)
    return [{"turn": turn.client_id, "text": turn.asked_text} for turn in waiting]


_aread = in_pool(_read)
_awaiting = in_pool(_waiting)
