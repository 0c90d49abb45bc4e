"""The list of a person's chats: pages of it, groups by date, and the search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import groupby

from django.db.models import F, OuterRef, Q
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from chatmemory import codec, services
from chatmemory.models import Session, SessionQuerySet, session_page, start_of, starts_of
from chatmemory.rendering.text import first_words, visible
from chatmemory.services import Actor

CHATS_PER_PAGE = 40
MAX_CHATS = 200
"""Maximum chats in one answer, besides the pinned ones."""

SEARCHED_CHATS = 1_000
"""The newest chats without a title whose first words a search reads; their number has no limit."""

WEEK_DAYS, MONTH_DAYS = 7, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A session, as lists show it."""

    key: str
    title: str
    """The title, or the first words; empty for neither."""
    has_title: bool
    at: datetime | None
    """The time of the last message in the current time zone."""
    last_seq: int
    is_pinned: bool
    is_archived: bool
    is_running: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Consecutive chats of a list under one heading."""

    id: str
    name: str
    chats: list[Chat]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatList:
    """A page of chats, the last active first, and the cursor of the next page."""

    groups: list[Group]
    next: str | None


def list_chats(
    by: Actor,
    *,
    archived: bool = False,
    text: str = "",
    cursor: str | None = None,
    limit: int = CHATS_PER_PAGE,
) -> ChatList:
    """Return a page of the chats that contain a text, or of all; the first has all pinned chats.

    The text is searched in all titles, and in the first words of the newest SEARCHED_CHATS chats
    that have no title. Raises BadInput.
    """
    sessions = _listed_sessions(by).having(archived=archived)
    if text:
        sessions = _containing(sessions, text)
    pinned: list[Session] = []
    if cursor is not None and not archived:
        sessions = sessions.having(pinned=False)
    elif not archived:
        pinned = list(sessions.having(pinned=True).most_recent_first())
        # Not by their pins: a chat whose pin changes now must be in one of both.
        sessions = sessions.exclude(pk__in=[session.pk for session in pinned])
    page = session_page(sessions, limit=limit, cursor=cursor)
    chats = chats_of([*pinned, *page.sessions])
    groups = _groups(chats[len(pinned) :])
    if pinned:
        groups.insert(0, Group(id="pinned", name=_("Pinned"), chats=chats[: len(pinned)]))
    return ChatList(groups=groups, next=page.next)


def chats_of(sessions: Sequence[Session]) -> list[Chat]:
    """Convert sessions for a list."""
    starts = starts_of(session.pk for session in sessions if not session.title)
    return [
        Chat(
            key=session.key,
            title=title_of(session.title, starts.get(session.pk)),
            has_title=bool(session.title),
            at=_local(session.last_message_at),
            last_seq=session.last_seq,
            is_pinned=session.pinned_at is not None,
            is_archived=session.archived_at is not None,
            is_running=session.running is not None or session.waiting > 0,
        )
        for session in sessions
    ]


def title_of(title: str, first_text: str | None) -> str:
    """Return the title that lists show: the stored one, or the first words."""
    return visible(title or first_words(first_text or ""))


def _listed_sessions(by: Actor) -> SessionQuerySet:
    """Select the sessions whose pages have an address, without those that are empty."""
    # Server code can create sessions whose key cannot be part of a URL.
    sessions = services.sessions_of(by).exclude(key__regex=codec.NOT_IN_KEYS)
    is_used = Q(last_seq__gte=F("first_seq")) | Q(waiting__gt=0) | ~Q(title="")
    return sessions.filter(is_used).defer("instructions", "metadata")


def _containing(sessions: SessionQuerySet, text: str) -> SessionQuerySet:
    # Two statements: MariaDB has no LIMIT in a subquery. Without it the search would read a message
    # of each chat.
    untitled = sessions.filter(title="").most_recent_first().values_list("pk", flat=True)
    newest = list(untitled[:SEARCHED_CHATS])
    start = start_of(OuterRef("pk"), OuterRef("first_seq"))
    found = Session.objects.filter(pk__in=newest).annotate(start=start)
    pks = list(found.filter(start__icontains=text).values_list("pk", flat=True))
    return sessions.filter(Q(title__icontains=text) | Q(pk__in=pks))


def _groups(chats: Iterable[Chat]) -> list[Group]:
    today = timezone.localdate(datetime.now(UTC))
    return [
        Group(id=group_id, name=name, chats=list(found))
        for (group_id, name), found in groupby(chats, lambda chat: _group_of(chat.at, today))
    ]


def _group_of(at: datetime | None, today: date) -> tuple[str, str]:
    """Return id and name of the group of a time."""
    if at is None:
        return "none", _("Without messages")
    day = at.date()
    age = (today - day).days
    if age <= 0:  # an imported time may be in the future
        return "today", _("Today")
    if age == 1:
        return "yesterday", _("Yesterday")
    if age <= WEEK_DAYS:
        return "week", _("Previous 7 days")
    if age <= MONTH_DAYS:
        return "month", _("Previous 30 days")
    return f"{day:%Y-%m}", date_format(day, "YEAR_MONTH_FORMAT")


def _local(at: datetime | None) -> datetime | None:
    try:
        return at and timezone.localtime(at)
    except OverflowError:  # an imported time, on the first or the last day of the calendar
        return at and at.replace(tzinfo=None)  # templates convert only aware times
