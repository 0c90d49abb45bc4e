"""What a socket has been shown of its session, and what comes next."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import asdict, dataclass

from chatmemory import protocol
from chatmemory.consumers.credit import Credit
from chatmemory.hub import LiveText, Place, hub
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


@dataclass(frozen=True, slots=True)
class Reset:
    """Why a client must drop its messages."""

    reason: str
    lost: int | None = 0
    """How many of them the database has lost; None if it lost some and their number is unknown."""


class Feed:
    """A position in a session's rows and in the text of its run.

    The address identifies the session, and the epoch its history. After a restore of the database
    the session may have another primary key, and another session may have its old one.
    """

    def __init__(self, session: Session, cursor: str | None) -> None:
        self.place = Place(session.pk, session.epoch)
        self._address = (session.scope, session.key)
        self.has_news = True
        self.is_gone = False
        self._resume = cursor
        self._is_new = True
        self._seq = 0
        self._mark = ""
        """Identifies the row `_seq`; empty if it was not shown."""
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
            if reset is not None:
                # The client drops what these say, so all of it is sent again.
                self._text, self._shown, self._synced = None, {}, ""
                self._superseded_of = (0, 0, 0)
                yield protocol.dump("reset", epoch=self.place.epoch, **asdict(reset))
            if page is None:
                self.is_gone = True
                return
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
            self._seq, self._mark = row.seq, row.mark
            if row.step is not None:
                self._last_step = (row.turn_client_id, row.step)
            yield row
        if not page.rows and self._seq != page.head.last_seq:
            self._seq, self._mark = page.head.last_seq, ""  # the missed rows are below the floor

    async def _pull(self) -> tuple[Page | None, Reset | None]:
        """The rows to show next, and the reset to send before them, if any.

        There is no page if the session is gone.
        """
        page, reset, position = None, None, self._position()
        if position is not None:
            page = await _aread(*self._address, after=position.seq, limit=PULL)
            if page is None:
                return None, Reset("purged")
            reset = _reset(page, position)
            self._seq, self._mark = position.seq, position.mark
            if self._is_new:
                self._seen = (position.revision, MAX_SEQ)
        elif self._is_new and self._resume is not None:
            reset = Reset("other")
        if page is None or reset is not None:
            page = await _aread(*self._address, after=None, limit=NEWEST)
            if page is None:
                return None, Reset("purged")
            self._seq = page.head.last_seq if not page.rows else page.rows[0].seq - 1
            self._mark = ""
            self._lowest = self._seq + 1
            self._seen = (page.head.revision, MAX_SEQ)
        self._is_new = False
        self.place, self._first_seq = Place(page.head.pk, page.head.epoch), page.head.first_seq
        self._running = page.head.running
        return page, reset

    def _position(self) -> Cursor | None:
        """What the client has been shown; None if it begins with the newest rows."""
        if self._is_new:
            return None if self._resume is None else Cursor.parse(self._resume)
        return Cursor(*self.place, self._seq, self._seen[0], self._first_seq, self._mark)

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
        synced = str(
            Cursor(head.pk, head.epoch, self._seq, head.revision, head.first_seq, self._mark)
        )
        if synced != self._synced:
            self._synced = synced
            frames.append(protocol.dump("synced", cursor=synced))
        return frames

    async def _superseded_in(self, head: Head) -> list[tuple[int, int]]:
        """The ranges that later turns superseded, read again only where there are others."""
        state = (head.epoch, head.first_seq, head.superseded_to)
        if state != self._superseded_of:
            self._superseded = await _asuperseded(head)
            self._superseded_of = state
        return self._superseded

    def _new_text(self, credit: Credit) -> Iterator[str]:
        """Text of the run past this socket's place in it."""
        text = hub.text_of(self.place)
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


def _reset(page: Page, position: Cursor) -> Reset | None:
    """The reset that a client needs before it is sent this page, which begins after its position.

    Numbers only grow, and no row is replaced. Where they do not, the database went back in time.
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
    return Reset("behind") if missed > FAR_BEHIND else None


def _read(scope: str, key: str, *, after: int | None, limit: int) -> Page | None:
    sessions = Session.objects.at(scope, key)
    return durably(lambda: sessions.page(after=after, limit=limit), is_repeatable=True)


def _changed(head: Head, low: int, high: int, seen: tuple[int, int]) -> list[StoredMessage]:
    # Empty if the history was cleared since the head was read.
    rows = Message.objects.filter(seq__gte=low, seq__lte=high, **head.as_session())
    return durably(lambda: rows.changed_since(*seen, limit=PULL), is_repeatable=True)


def _waiting(head: Head) -> list[dict[str, object]]:
    """The turns that waited when the head was read; none, if the session has changed since."""
    # Of another moment, one that began in between would be shown nowhere.
    turns = Turn.objects.filter(**head.as_session(), session__revision=head.revision).waiting()
    waiting = durably(lambda: list(turns), is_repeatable=True)
    return [{"turn": turn.client_id, "text": turn.asked_text} for turn in waiting]


def _superseded(head: Head) -> list[tuple[int, int]]:
    """The ranges of numbers above the floor that were superseded when the head was read."""
    if head.superseded_to < head.first_seq:
        return []
    turns = Turn.objects.filter(**head.as_session(), user_seq__lte=head.last_seq)
    return durably(lambda: turns.superseded(head.first_seq), is_repeatable=True)


_aread = in_pool(_read)
_asuperseded = in_pool(_superseded)
_achanged = in_pool(_changed)
_awaiting = in_pool(_waiting)
