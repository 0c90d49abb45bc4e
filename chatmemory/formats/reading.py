"""Read sessions for an export, page by page: memory does not grow with their length."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterator
from functools import partial
from itertools import chain
from typing import TypeVar

from django.db.models import Model, Q, QuerySet

from chatmemory.database.batches import in_batches
from chatmemory.database.retries import durably
from chatmemory.models import (
    Feedback,
    Message,
    Session,
    SessionNote,
    SessionQuerySet,
    SupersededRange,
    Turn,
    WithdrawnRange,
    superseded,
)
from chatmemory.services.tags import tags_of

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Model)

PAGE = 200
"""Rows per query."""


def read_sessions(sessions: SessionQuerySet) -> Iterator[Reading]:
    """Read the sessions one after another, by primary key."""
    for pk in in_batches(sessions):
        reading = durably(partial(_read_dialogue, pk), is_repeatable=True)
        if reading is not None:
            yield reading


def _read_dialogue(pk: int) -> Reading | None:
    # The waiting turns are read before the head. A turn that starts between the two reads then
    # appears as its row; read in the other order, it could be missing from both.
    waiting = list(
        # Deferred messages too.
        Turn.objects.filter(session=pk, user_seq__isnull=True, status=Turn.Status.WAITING).order_by(
            "position", "pk"
        )
    )
    session = Session.objects.filter(pk=pk).first()
    if session is None:
        return None
    notes = list(session.notes.order_by("pk"))
    return Reading(session, waiting, tags_of(session), notes)


class Reading:
    """A session up to its `last_seq` when it was read."""

    def __init__(
        self,
        session: Session,
        waiting: list[Turn],
        tags: Collection[str] = (),
        notes: Collection[SessionNote] = (),
    ) -> None:
        self.session = session
        self.tags = tags
        self.notes = notes
        self.waiting = waiting
        self.turns = Turn.objects.filter(session=session.pk)
        self.missing = 0
        """The number of missing rows in the range; counted while the rows are read."""

    def rows(self, *, start: int | None = None) -> Iterator[Message]:
        """Yield the stored messages by seq, from `start` or from the first stored one on."""
        return chain.from_iterable(self._message_pages(start or self.session.stored_from))

    def turns_and_rows(self) -> Iterator[Turn | Message]:
        """Yield the turns without a row, then the messages, each turn before its user message."""
        yield from self._without_row()
        waiting = {turn.client_id for turn in self.waiting}
        for page in self._message_pages(self.session.stored_from):
            own = {row.client_id for row in page if row.client_id and row.turn == row.seq}
            turns = self.turns.filter(client_id__in=own - waiting)
            turn_at = {turn.user_seq: turn for turn in _all(turns)} if own else {}
            for row in page:
                if row.seq in turn_at:
                    yield turn_at[row.seq]
                yield row

    def marked_rows(
        self, *, start: int | None = None
    ) -> Iterator[tuple[Message, SupersededRange | None]]:
        """Yield the rows by seq, each with the range by which it is superseded."""
        ranges = self._superseded()
        for row in self.rows(start=start):
            while ranges and ranges[0].high < row.seq:
                ranges.popleft()
            yield row, ranges[0] if ranges and row.seq in ranges[0] else None

    def withdrawn(self) -> list[WithdrawnRange]:
        """Return the withdrawn ranges of the rows that were read, in order."""
        if not self.session.superseded_to:
            return []
        found = self.session.withdrawn.filter(high__lte=self.session.last_seq)
        return _all(found.order_by("high", "low"))

    def feedback(self) -> Iterator[Feedback]:
        """Yield the feedback on the turns that were read, also on turns that a vacuum deleted."""
        given = Feedback.objects.filter(session=self.session.pk).order_by("user_seq")
        after, last = 0, self.session.last_seq
        while page := _all(given.filter(user_seq__gt=after, user_seq__lte=last)[:PAGE]):
            yield from page
            after = page[-1].user_seq

    def running(self) -> Turn | None:
        """Return the running turn with its partial text."""
        found = _all(self.turns.filter(status=Turn.Status.RUNNING))
        return found[0] if found else None

    def _superseded(self) -> deque[SupersededRange]:
        """Return the superseded ranges, ascending and not nested. See Note [Superseded ranges]."""
        read = partial(superseded, 1, session=self.session.pk)
        ranges: deque[SupersededRange] = deque()
        for found in durably(read, is_repeatable=True):
            while ranges and ranges[-1].low >= found.low:
                ranges.pop()
            ranges.append(found)
        return ranges

    def _message_pages(self, start: int) -> Iterator[list[Message]]:
        after = start - 1
        while page := self._next_page(after):
            self.missing += page[-1].seq - after - len(page)
            after = page[-1].seq
            yield page
        self.missing += self.session.last_seq - after
        if self.missing:
            logger.warning("Session %s: %s of its rows are missing.", self.session.pk, self.missing)

    def _next_page(self, after: int) -> list[Message]:
        if after >= self.session.last_seq:
            return []
        numbers = Q(seq__gt=after, seq__lte=self.session.last_seq)
        found = Message.stored.filter(numbers, session=self.session.pk).order_by("seq")
        return _all(found[:PAGE])

    def _without_row(self) -> Iterator[Turn]:
        """Yield the waiting turns, then ended turns without a row or with a deleted row."""
        yield from self.waiting
        no_row = Q(user_seq__isnull=True) | Q(user_seq__lt=self.session.stored_from)
        others = self.turns.filter(no_row).exclude(pk__in=[turn.pk for turn in self.waiting])
        after = 0
        while page := _all(others.filter(pk__gt=after).order_by("pk")[:PAGE]):
            yield from page
            after = page[-1].pk


def _all(found: QuerySet[M]) -> list[M]:
    return durably(lambda: list(found), is_repeatable=True)
