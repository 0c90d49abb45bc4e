"""Which messages a page shows, and where a date is among them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time

from django.http import HttpRequest
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from chatmemory.admin.text import number_of
from chatmemory.models import Message, Session

PAGE_ROWS = 50
ROWS_ABOVE = 5
"""Messages that a page shows above the one to which the operator jumps."""

PROBES = 100
"""Messages whose times one statement reads in the search for a date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The seqs of the messages that an operator can read; empty if `low` is above `high`."""

    low: int
    high: int

    def page(self, request: HttpRequest) -> Span:
        """Return the span of the page that the query names, by default the newest one."""
        after, before = number(request, "after"), number(request, "before")
        target = number(request, "seq")
        if target is not None:
            after = min(target - ROWS_ABOVE - 1, self.high - PAGE_ROWS)
        if after is not None:
            low = max(self.low, after + 1)
            return Span(low=low, high=min(self.high, low + PAGE_ROWS - 1))
        high = self.high if before is None else min(self.high, before - 1)
        return Span(low=max(self.low, high - PAGE_ROWS + 1), high=high)

    def rows(self, session: Session) -> list[Message]:
        """Return the messages of this span, ordered by seq."""
        # Seqs have no gaps, so a span costs the same in a session of any length. The limit changes
        # no result: without it, PostgreSQL expects that a session with a tenth of all messages has
        # a tenth of those with low seqs, and scans the table.
        count = self.high - self.low + 1
        if count < 1:
            return []
        of_session = Message.stored.filter(session=session, seq__gte=self.low, seq__lte=self.high)
        return list(of_session.order_by("seq")[:count])


def number(request: HttpRequest, name: str) -> int | None:
    """Return a seq from the query; None if it is missing or invalid."""
    return number_of(request.GET.get(name, ""))


def moment(text: str) -> datetime | None:
    """Read a date or a time such as 2026-05-04 or 2026-05-04 13:30, in the current time zone."""
    try:
        found = parse_datetime(text) or _midnight(parse_date(text))
    except ValueError:
        return None
    if found is None or found.tzinfo is not None:
        return found
    return timezone.make_aware(found)


def first_since(session: Session, span: Span, since: datetime) -> int | None:
    """Return the seq of the first message that is not older than a time; None if all are.

    A search in the order of seq, which assumes that times ascend: few statements, whatever the
    number of messages.
    """
    low, high = span.low, span.high + 1  # the result is in low..high; high: all are older
    while low < high:
        step = max(1, (high - low) // PROBES)
        times = Message.stored.filter(session=session, seq__in=range(low, high, step))
        is_older = {seq: at < since for seq, at in times.values_list("seq", "created_at")}
        newer = [seq for seq, older in is_older.items() if not older]
        older = [seq for seq, older in is_older.items() if older]
        if not is_older:
            return None
        high = min(newer, default=high)
        low = max([seq for seq in older if seq < high], default=low - 1) + 1
    return low if low <= span.high else None


def _midnight(day: date | None) -> datetime | None:
    return None if day is None else datetime.combine(day, time.min)  # made aware later
