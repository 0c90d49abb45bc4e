"""The list of sessions: what its columns show, read for a whole page at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.db.models import Count
from django.http import HttpRequest

from chatmemory.admin.keyset import KeysetChangeList
from chatmemory.admin.privacy import names_of, title_of
from chatmemory.admin.readonly import has_templates_of_django
from chatmemory.admin.sections import filter_links
from chatmemory.admin.sessions.presets import presets_of
from chatmemory.admin.states import State, last_turns, state_of
from chatmemory.admin.text import visible
from chatmemory.models import Feedback, Session, SessionTag, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What the list shows of a session beside its own columns."""

    name: str
    """See `names_of`."""
    state: State
    since: datetime | None
    """Since when the session is in that state; None if that is unknown."""
    model: str = ""
    tags: list[str] = field(default_factory=list)
    good: int = 0
    bad: int = 0
    """How many replies were rated good, and bad."""


class SessionChangeList(KeysetChangeList):
    """The list of sessions. Each session of the page has its `Listed` as `listed`.

    Without a search or a filter, it omits sessions that never had a message and have no turn.
    """

    model_admin: Any
    filter_specs: Any

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        found = super().get_queryset(request, exclude_parameters)
        is_chosen = self.query or self.chosen
        return found if is_chosen else found.exclude(last_seq=0, running=None, waiting=0)

    @property
    def is_selective(self) -> bool:
        """Whether a search or a filter with a known value selects sessions."""
        return bool(self.query.strip() or next(self.chips(), None))

    @property
    def chosen(self) -> str:
        """The parameters of the filters that select, as a query string."""
        names = [name for spec in self.filter_specs for name in spec.expected_parameters()]
        return urlencode({name: value for name in names if (value := self.params.get(name))})

    def chips(self) -> Iterator[tuple[str, str]]:
        """Yield the text of each active filter, and the address of the list without it."""
        for spec in self.filter_specs:
            names = spec.expected_parameters()
            for choice in spec.choices(self) if any(map(self.params.get, names)) else ():
                if choice.get("selected"):  # a host's own filter may have other keys
                    text = f"{spec.title}: {choice.get('display', '')}"
                    yield text, self.get_query_string(remove=names)

    def folds_filters(self) -> bool:
        """Whether the filters fold above the table; a theme has a place of its own for them."""
        return has_templates_of_django("change_list")

    def get_results(self, request: HttpRequest) -> None:
        """Read the rows of the page, and in five more statements what the columns show."""
        self.presets = partial(presets_of, self, request)
        query = self.get_query_string().removeprefix("?") if self.is_selective else ""
        self.links = filter_links(self.model_admin.admin_site, request, query)
        super().get_results(request)
        self.add_listed(request, self.result_list)

    def add_listed(self, request: HttpRequest, sessions: list[Session]) -> None:
        """Set `listed` of each session."""
        pks = [session.pk for session in sessions]
        turns, tags, ratings = last_turns(pks), _tags_of(pks), _ratings_of(pks)
        names = names_of(self.model_admin, request, sessions)
        for session in sessions:
            # Django names each row in the labels of the list.
            session.title = title_of(request, session) or visible(session.key)
            last, live = turns.get(session.pk, (None, None))
            state = state_of(session, last)
            listed = Listed(
                name=names[session.pk],
                state=state,
                since=_since(session, state, last, live),
                model=visible(last.model) if last else "",
                tags=tags[session.pk],
                good=ratings[session.pk, Feedback.Value.GOOD],
                bad=ratings[session.pk, Feedback.Value.BAD],
            )
            session.__dict__["listed"] = listed


def listed(session: Session) -> Listed:
    """Return what the list shows of a session that `SessionChangeList` read."""
    found: Listed = session.__dict__["listed"]
    return found


def _since(session: Session, state: State, last: Turn | None, live: Turn | None) -> datetime | None:
    times: dict[State, datetime | None] = {
        State.PURGED: session.removed_at,
        State.EXPIRED: session.ends_at,
        State.HELD: session.held_at,
        State.ARCHIVED: session.archived_at,
        State.RUNNING: (live.started_at or live.created_at) if live else None,
        State.WAITING: live.created_at if live else None,
        State.FAILED: last.ended_at if last else None,
        State.INTERRUPTED: last.ended_at if last else None,
    }
    return times.get(state)


def _tags_of(pks: Collection[int]) -> defaultdict[int, list[str]]:
    found: defaultdict[int, list[str]] = defaultdict(list)
    rows = SessionTag.objects.filter(session__in=pks).order_by("tag")
    for pk, tag in rows.values_list("session_id", "tag"):
        found[pk].append(visible(tag))
    return found


def _ratings_of(pks: Collection[int]) -> Counter[tuple[int, int]]:
    """Count the replies by session and value of their feedback."""
    rows = Feedback.objects.filter(session__in=pks).order_by().values_list("session_id", "value")
    return Counter({(pk, value): count for pk, value, count in rows.annotate(Count("pk"))})
