"""Sessions read for an export: page by page, so that memory doesn't grow with their length."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterator
from functools import partial
from itertools import chain
from typing import TypeVar

from django.db.models import Model, Q, QuerySet

from chatmemory.models import Message, Session, SessionQuerySet, Turn
from chatmemory.services.faults import durably
from chatmemory.services.tags import tags_of
from chatmemory.services.walk import walk

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Model)

PAGE = 200
"""Rows read at a time."""


def read_sessions(sessions: SessionQuerySet) -> Iterator[Reading]:
    """Each of the sessions by primary key, as it is when its turn comes."""
    for pk in walk(sessions):
        reading = durably(partial(_read, pk), is_repeatable=True)
        if reading is not None:
            yield reading


def _read(pk: int) -> Reading | None:
    # What waits is read before the head: a turn begun in between is then there as its row.
    waiting = list(Turn.objects.filter(session=pk, user_seq__isnull=True).waiting())
    session = Session.objects.filter(pk=pk).first()
    return None if session is None else Reading(session, waiting, tags_of(session))


class Reading:
    """A session up to the last number that it had when it was read."""

    def __init__(self, session: Session, waiting: list[Turn], tags: Collection[str] = ()) -> None:
        self.session = session
        self.tags = tags
        self.waiting = waiting
        self.turns = Turn.objects.filter(session=session.pk)
        self.missing = 0
        """How many rows that should have been there were not; counted while they are read."""

    def rows(self, *, start: int | None = None) -> Iterator[Message]:
        """The stored messages in order of seq, those below the floor too, or from `start` on."""
        return chain.from_iterable(self._pages(start or self.session.stored_from))

    def turns_and_rows(self) -> Iterator[Turn | Message]:
        """The turns without a row, then the messages, each turn before its user's."""
        yield from self._without_row()
        waiting = {turn.client_id for turn in self.waiting}
        for page in self._pages(self.session.stored_from):
            own = {row.client_id for row in page if row.client_id and row.turn == row.seq}
            turns = self.turns.filter(client_id__in=own - waiting)
            of = {turn.user_seq: turn for turn in _all(turns)} if own else {}
            for row in page:
                if row.seq in of:
                    yield of[row.seq]
                yield row

    def marked_rows(self, *, start: int | None = None) -> Iterator[tuple[Message, bool]]:
        """The rows, each with whether a later turn replaced it."""
        replaced = self._replaced()
        for row in self.rows(start=start):
            while replaced and replaced[0].stop <= row.seq:
                replaced.popleft()
            yield row, bool(replaced) and row.seq in replaced[0]

    def running(self) -> Turn | None:
        """The turn that runs now, with the text so far."""
        found = _all(self.turns.filter(status=Turn.Status.RUNNING))
        return found[0] if found else None

    def _replaced(self) -> deque[range]:
        """Numbers of rows that later turns replaced, in order; none lies within another."""
        found: deque[range] = deque()
        for first, last in durably(self.turns.superseded, is_repeatable=True):
            while found and found[-1].start >= first:
                found.pop()
            found.append(range(first, last + 1))
        return found

    def _pages(self, start: int) -> Iterator[list[Message]]:
        after = start - 1
        while page := self._page(after):
            self.missing += page[-1].seq - after - len(page)
            after = page[-1].seq
            yield page
        self.missing += self.session.last_seq - after
        if self.missing:
            logger.warning("%s rows of session %s are gone.", self.missing, self.session.pk)

    def _page(self, after: int) -> list[Message]:
        if after >= self.session.last_seq:
            return []
        numbers = Q(seq__gt=after, seq__lte=self.session.last_seq)
        found = Message.stored.filter(numbers, session=self.session.pk).order_by("seq")
        return _all(found[:PAGE])

    def _without_row(self) -> Iterator[Turn]:
        """Waiting ones, then those that ended without a row or whose row was deleted."""
        yield from self.waiting
        no_row = Q(user_seq__isnull=True) | Q(user_seq__lt=self.session.stored_from)
        others = self.turns.filter(no_row).exclude(pk__in=[turn.pk for turn in self.waiting])
        after = 0
        while page := _all(others.filter(pk__gt=after).order_by("pk")[:PAGE]):
            yield from page
            after = page[-1].pk


def _all(found: QuerySet[M]) -> list[M]:
    return durably(lambda: list(found), is_repeatable=True)
