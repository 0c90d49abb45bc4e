"""What a stream reads of its turn: one read for all streams that show it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from chatmemory.database.pool import in_pool
from chatmemory.database.retries import retried
from chatmemory.errors import HistoryCleared
from chatmemory.live.texts import SessionRef
from chatmemory.models import (
    Head,
    Message,
    Session,
    StoredMessage,
    SupersededRange,
    Turn,
    superseded,
)
from chatmemory.models.fields import DatabaseNow
from chatmemory.models.values import STORED_COLUMNS
from chatmemory.services import Actor, LiveTurn, read_page
from chatmemory.services.audit.readings import record_view
from chatmemory.services.sessions import get_head
from chatmemory.services.turns.states import live_turns

T = TypeVar("T")

MAX_ROWS = 200
"""The most rows of one read."""
MAX_READS = 4
"""How many results of a session are kept: streams may be at different rows."""

# Note [News]
#
# Each notification of a session gets a number from one counter, in the thread that notifies: an
# event loop may learn of it later, after it has read newer text. A read of rows gets a number from
# the same counter when it begins. So a stream needs a read only if the last one has a lower number
# than the last notification, and the streams that one notification wakes share a read.
numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRows:
    """A turn, and its rows after a seq."""

    status: str
    error: str
    model: str
    usage: str
    user_seq: int | None
    """None while the turn waits."""
    rows: list[StoredMessage]
    is_complete: bool
    """Whether no row is missing that was stored before the turn was read."""
    queue: list[LiveTurn]
    """While the turn waits: the running turn, then the waiting turns in order; else empty."""

    @property
    def has_ended(self) -> bool:
        return self.is_complete and self.status not in Turn.ACTIVE_STATUSES


@retried(is_repeatable=True)
def read_turn_rows(ref: SessionRef, turn: str, after: int) -> TurnRows | None:
    """Read a turn, then its rows after a seq; None if the turn is hidden or erased.

    In this order the rows of an ended turn are complete. Raises MemoryUnavailable.
    """
    turns = Turn.objects.filter(
        session=ref.session_pk,
        session__epoch=ref.epoch,
        session__removed_at=None,
        client_id=turn,
        epoch=ref.epoch,
    )
    found = turns.select_related("session").first()
    if found is None or 0 < (found.user_seq or 0) < found.session.first_seq:
        return None
    rows: list[StoredMessage] = []
    if found.user_seq is not None:
        low = max(after, found.user_seq)
        stored = Message.objects.filter(session=ref.session_pk, turn=found.user_seq, seq__gt=low)
        columns = stored.in_order().values_list(*STORED_COLUMNS)[:MAX_ROWS]
        rows = [StoredMessage(*(*each, turn)) for each in columns]
    return TurnRows(
        status=found.status,
        error=found.error,
        model=found.model,
        usage=found.usage,
        user_seq=found.user_seq,
        rows=rows,
        is_complete=len(rows) < MAX_ROWS,
        queue=live_turns(found.session) if found.status == Turn.Status.WAITING else [],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Whole turns of a session, without superseded rows."""

    ref: SessionRef
    rows: list[StoredMessage]
    """In order of seq."""
    turns: Mapping[int, TurnRows]
    """The turns of these rows, without rows, by the seq of their user row."""
    first_versions: Mapping[int, tuple[int, str | None]]
    """The seq and the client_id of the first version of a message that was edited, by its seq."""
    waiting: list[LiveTurn]
    """Turns that have no row yet, in order."""
    has_older: bool
    """Whether older rows are left."""


def read_turns(*, session_key: str, by: Actor, before: int | None, limit: int) -> History:
    """Return the newest turns whose rows are below `before`, of about `limit` rows; at least one.

    A whole turn more is read if the page would begin inside one. Raises BadInput, NotFound,
    HistoryCleared, MemoryUnavailable.
    """
    rows: list[StoredMessage] = []
    head, ranges, has_older = None, [], False
    queue: list[LiveTurn] = []
    lowest = before
    while True:
        page = read_page(session_key=session_key, by=by, before=lowest, limit=limit)
        if by.real is not None:
            record_view(page, by.real)
        if head is None:
            head = page.head
            ranges = _superseded_until(head)
            if before is None and head.waiting and not queue:
                # Before the rows: a turn that begins in between has its row in the second page.
                queue, head = _queue_of(head), None
                if queue:
                    continue
                head = page.head
        elif head.epoch != page.head.epoch:
            raise HistoryCleared
        rows = [row for row in page.rows if not any(row.seq in each for each in ranges)] + rows
        if not page.rows or page.rows[0].seq <= head.first_seq:
            break
        lowest = page.rows[0].seq
        begin = next((at for at, row in enumerate(rows) if _starts_turn(row)), None)
        if len(rows) >= limit and begin is not None:
            rows, has_older = rows[begin:], True
            break
    return _history_of(head, rows, ranges, queue=queue, has_older=has_older)


def _starts_turn(row: StoredMessage) -> bool:
    return row.role == Message.Role.USER and row.turn in (None, row.seq)


@retried(is_repeatable=True)
def _superseded_until(head: Head) -> list[SupersededRange]:
    # Note [Superseded ranges] in turns/versions: most sessions need no query.
    if head.superseded_to < head.first_seq:
        return []
    return superseded(head.first_seq, newest=head.last_seq, **head.as_session())


@retried(is_repeatable=True)
def _queue_of(head: Head) -> list[LiveTurn]:
    return live_turns(Session.objects.get(pk=head.pk))


@retried(is_repeatable=True)
def _history_of(
    head: Head,
    rows: list[StoredMessage],
    ranges: list[SupersededRange],
    *,
    queue: list[LiveTurn],
    has_older: bool,
) -> History:
    numbers_of_turns = {row.turn for row in rows if row.turn is not None}
    found = Turn.objects.filter(session=head.pk, user_seq__in=numbers_of_turns)
    older_of = {each.user_seq: each.low for each in ranges if each.user_seq is not None}
    firsts = {}
    for row in rows:
        first = row.seq
        while (older := older_of.get(first, 0)) >= head.first_seq:
            first = older
        if first != row.seq:
            firsts[row.seq] = first
    edited = Message.objects.filter(session=head.pk, seq__in=firsts.values())
    names = dict(edited.values_list("seq", "client_id")) if firsts else {}
    shown = {head.running, *(row.turn_client_id for row in rows)}
    return History(
        ref=SessionRef(head.pk, head.epoch),
        rows=rows,
        turns={turn.user_seq or 0: _without_rows(turn) for turn in found},
        first_versions={seq: (first, names.get(first)) for seq, first in firsts.items()},
        waiting=[each for each in queue if each.status == "waiting" and each.turn not in shown],
        has_older=has_older,
    )


def _without_rows(turn: Turn) -> TurnRows:
    return TurnRows(
        status=turn.status,
        error=turn.error,
        model=turn.model,
        usage=turn.usage,
        user_seq=turn.user_seq,
        rows=[],
        is_complete=False,
        queue=[],
    )


REPLAY_SECONDS = 60
"""A turn that ended in this time is shown again: it may have ended before its page reconnected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTurn:
    """The turn that a page resumes."""

    ref: SessionRef
    turn: str
    has_ended: bool


def find_turn_to_resume(*, session_key: str, by: Actor) -> ShownTurn | None:
    """Return the running turn, else the first waiting one, else one that has just ended.

    Raises BadInput, NotFound, MemoryUnavailable.
    """
    return _find_turn(get_head(session_key=session_key, by=by))


@retried(is_repeatable=True)
def _find_turn(head: Head) -> ShownTurn | None:
    turns = Turn.objects.filter(session=head.pk, epoch=head.epoch).undeferred()
    active = turns.filter(client_id=head.running) if head.running else turns.waiting()
    since = DatabaseNow() - timedelta(seconds=REPLAY_SECONDS)
    ended = turns.filter(ended_at__gte=since, user_seq__gte=head.first_seq).order_by("-ended_at")
    found = active.first() or ended.first()
    if found is None:
        return None
    return ShownTurn(
        ref=SessionRef(head.pk, head.epoch),
        turn=found.client_id,
        has_ended=found.status not in Turn.ACTIVE_STATUSES,
    )


class Read(Generic[T]):
    """One read, and its result for each stream that awaits it."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._number: int | None = None
        """The number of its beginning; None before it."""
        self.result = asyncio.ensure_future(_abegin(self))

    def begin(self) -> T:
        self._number = next(numbers)
        return self._call()

    def contains(self, news: int) -> bool:
        """Whether it began after this notification, or will begin. A failed one has nothing."""
        if self.result.done() and (self.result.cancelled() or self.result.exception()):
            return False
        return self._number is None or self._number > news


class SharedReads:
    """The last reads of a session, for all streams of one event loop."""

    def __init__(self) -> None:
        self._reads: dict[Hashable, Read[Any]] = {}
        self._first_texts: dict[tuple[str, int], int] = {}

    def number_of_text(self, turn: str, step: int) -> int:
        """Return the number of the moment when a stream of the session first saw this text."""
        if (turn, step) not in self._first_texts:
            self._first_texts = {(turn, step): next(numbers)}  # a session streams one at a time
        return self._first_texts[turn, step]

    async def read(self, key: Hashable, news: int, call: Callable[[], T]) -> T:
        """Return the result of a read that contains what was notified up to `news`.

        The key identifies what is read. Raises the errors of the call.
        """
        read = self._reads.get(key)
        if read is None or not read.contains(news):
            read = self._reads[key] = Read(call)
            for oldest in list(self._reads)[:-MAX_READS]:
                del self._reads[oldest]
        found: T = await asyncio.shield(read.result)
        return found


def _begin(read: Read[T]) -> T:
    return read.begin()


_abegin = in_pool(_begin)
