"""The heading of the page of a session: its states, and what an operator looks for first."""

from __future__ import annotations

from collections.abc import Iterator

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import ngettext

from chatmemory.access.actors import person_of
from chatmemory.admin.people.finding import is_person, person
from chatmemory.admin.people.pages import person_url
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.sessions.conversation.turns import Turns, age_of
from chatmemory.admin.states import State, states_of
from chatmemory.admin.text import ago, grouped, visible
from chatmemory.models import Session


def chips(session: Session, turns: Turns) -> list[tuple[State, str]]:
    """Return the states with their labels, and the age of a reply that runs or waits."""
    live = turns.running or next(iter(turns.queued), None)
    ages = {state: f", {age_of(live)}" for state in (State.RUNNING, State.WAITING) if live}
    return [
        (state, f"{state.label}{ages.get(state, '')}")
        for state in states_of(session, turns.last)
        if state is not State.IDLE
    ]


def summary(model_admin: ReadOnlyAdmin, session: Session, turns: Turns) -> SafeString:
    """Return one line: the person, the number of messages, the last one, the model."""
    return format_html_join(" · ", "{}", ((part,) for part in _parts(model_admin, session, turns)))


def _parts(model_admin: ReadOnlyAdmin, session: Session, turns: Turns) -> Iterator[str]:
    scope = person_of(session.removed_scope or session.scope)
    if is_person(scope):
        label = person(scope, session.owner).label
        yield format_html('<a href="{}">{}</a>', person_url(model_admin, scope), label)
    count = session.message_count
    text = ngettext("%(n)s message", "%(n)s messages", count) % {"n": grouped(count)}
    yield text
    if session.last_message_at is not None:
        yield ago(session.last_message_at)
    if turns.last is not None and turns.last.model:
        yield visible(turns.last.model)
