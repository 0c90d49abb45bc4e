"""The list of sessions: what its columns show, read for a whole page at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.http import HttpRequest

from chatmemory.admin.keyset import KeysetChangeList
from chatmemory.admin.privacy import names_of, title_of
from chatmemory.admin.states import State, last_turns, state_of
from chatmemory.admin.text import visible
from chatmemory.models import Session, SessionTag, Turn


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


class SessionChangeList(KeysetChangeList):
    """The list of sessions. Each session of the page has its `Listed` as `listed`."""

    model_admin: Any

    def get_results(self, request: HttpRequest) -> None:
        """Read the rows of the page, and in four more statements what the columns show."""
        super().get_results(request)
        self.add_listed(request, self.result_list)

    def add_listed(self, request: HttpRequest, sessions: list[Session]) -> None:
        """Set `listed` of each session."""
        pks = [session.pk for session in sessions]
        turns, tags = last_turns(pks), _tags(pks)
        names = names_of(self.model_admin, request, sessions)
        for session in sessions:
            # Django names each row in the labels of the list.
            session.title = title_of(request, session)
            last, live = turns.get(session.pk, (None, None))
            state = state_of(session, last)
            listed = Listed(
                name=names[session.pk],
                state=state,
                since=_since(session, state, last, live),
                model=last.model if last else "",
                tags=tags[session.pk],
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


def _tags(pks: Collection[int]) -> defaultdict[int, list[str]]:
    found: defaultdict[int, list[str]] = defaultdict(list)
    rows = SessionTag.objects.filter(session__in=pks).order_by("tag")
    for pk, tag in rows.values_list("session_id", "tag"):
        found[pk].append(visible(tag))
    return found
