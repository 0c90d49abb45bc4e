"""The facts beside a conversation: state, owner, counts, times, tags, hold, retention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import Count, Exists, OuterRef, Subquery, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from chatmemory.access.actors import person_of
from chatmemory.admin.people.finding import is_person
from chatmemory.admin.people.pages import person_url
from chatmemory.admin.privacy import title_of
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.sessions.conversation.history import Act, History
from chatmemory.admin.sessions.conversation.turns import Turns
from chatmemory.admin.states import State, state_of
from chatmemory.admin.text import duration, visible
from chatmemory.conf import settings
from chatmemory.models import AuditAction, Feedback, Message, Session, SessionNote, Turn, start_of
from chatmemory.services.removal.retention_plan import Deadline, RetentionPlan, retention_plan
from chatmemory.services.removal.retention_rules import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A label with a value."""

    label: str
    value: str
    url: str = ""
    act: Act | None = None
    """The audit entry that explains the value."""


_NOTHING = (None, 0, 0, None, "", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Related:
    """What other tables store about a session, read in one statement."""

    tags: list[str]
    good: int
    bad: int
    oldest_at: datetime | None
    """The time of the oldest visible message."""
    first_text: str
    """The beginning of the first user message; empty if there is none."""
    has_notes: bool

    @classmethod
    def of(cls, session: Session) -> Related:
        feedback = Feedback.objects.filter(session=session.pk).order_by().values("session")
        oldest = Message.stored.filter(session=session.pk, seq=session.first_seq)
        rows = Session.objects.filter(pk=session.pk).values_list(
            "tags__tag",
            _count(feedback, Feedback.Value.GOOD),
            _count(feedback, Feedback.Value.BAD),
            Subquery(oldest.values("created_at")[:1]),
            start_of(OuterRef("pk"), OuterRef("first_seq")),
            Exists(SessionNote.objects.filter(session=session.pk)),
        )
        found = list(rows)
        _tag, good, bad, oldest_at, text, has_notes = found[0] if found else _NOTHING
        return cls(
            tags=sorted(row[0] for row in found if row[0] is not None),
            good=good,
            bad=bad,
            oldest_at=oldest_at,
            first_text=text or "",
            has_notes=has_notes,
        )


def _count(feedback: Any, value: Feedback.Value) -> Coalesce:
    counted = feedback.filter(value=value).annotate(n=Count("pk")).values("n")
    return Coalesce(Subquery(counted), Value(0))


class Facts:
    """The facts about one session, in groups."""

    def __init__(
        self, model_admin: ReadOnlyAdmin, request: HttpRequest, session: Session, history: History
    ) -> None:
        self._admin = model_admin
        self._request = request
        self._session = session
        self._history = history
        self.related = Related.of(session)

    def groups(self, turns: Turns) -> list[tuple[str, list[Fact]]]:
        """Return the titles of the groups with their facts."""
        return [
            (_("State"), [*self._states(turns)]),
            (_("Session"), [*self._identity()]),
            (_("Messages"), [*self._counts()]),
            (_("Times"), [*self._times()]),
            (_("Retention"), [*self._retention()]),
        ]

    def _states(self, turns: Turns) -> Iterator[Fact]:
        session = self._session
        state = state_of(session, turns.last)
        yield Fact(
            label=_("State"), value=_with_age(str(state.label), _since(session, state, turns))
        )
        others = {
            State.HELD: (session.held_at, AuditAction.HOLD),
            State.ARCHIVED: (session.archived_at, AuditAction.ARCHIVE),
            State.PURGED: (session.removed_at, AuditAction.PURGE),
        }
        for other, (at, action) in others.items():
            if at is not None:
                act = self._history.newest(action)
                label = str(other.label).capitalize()
                yield Fact(label=label, value=_("since %(time)s") % {"time": _moment(at)}, act=act)
        if session.running is not None and turns.running is not None:
            status = str(Turn.Status(turns.running.status).label)
            since = turns.running.started_at or turns.running.created_at
            yield Fact(label=_("Running turn"), value=_with_age(status, since))
        if session.waiting:
            yield Fact(label=_("Waiting messages"), value=number_format(session.waiting))

    def _identity(self) -> Iterator[Fact]:
        session = self._session
        if title := title_of(self._request, session):
            yield Fact(label=_("Title"), value=title)
        yield self._owner()
        yield self._scope()
        yield Fact(label=_("Key"), value=visible(session.key))
        yield Fact(label=_("Number"), value=str(session.pk))
        tags = ", ".join(visible(tag) for tag in self.related.tags)
        yield Fact(label=_("Tags"), value=tags or _("none"))

    def _scope(self) -> Fact:
        """Return the scope, which leads to all sessions of the person."""
        scope = self._session.removed_scope or self._session.scope
        person = person_of(scope)
        url = person_url(self._admin, person) if is_person(person) else ""
        return Fact(label=_("Scope"), value=visible(scope), url=url)

    def _owner(self) -> Fact:
        owner = self._session.owner
        if owner is None:
            return Fact(label=_("Owner"), value=_("none"))
        users = self._admin.admin_site
        users_admin: Any = users.is_registered(type(owner)) and users.get_model_admin(type(owner))
        may_view = users_admin and users_admin.has_view_permission(self._request, owner)
        url = _user_url(owner, users.name) if may_view else ""
        return Fact(label=_("Owner"), value=visible(owner.get_username()), url=url)

    def _counts(self) -> Iterator[Fact]:
        session, related = self._session, self.related
        value = number_format(session.message_count, force_grouping=True)
        if session.message_count:
            span = _("%(first)s to %(last)s") % {
                "first": session.first_seq,
                "last": session.last_seq,
            }
            value = f"{value} ({span})"
        yield Fact(label=_("Messages"), value=value)
        if hidden := session.first_seq - session.stored_from:
            text = _("%(n)s, until vacuum deletes them") % {
                "n": number_format(hidden, force_grouping=True)
            }
            yield Fact(label=_("Removed, still stored"), value=text)
        tokens = number_format(session.tokens, force_grouping=True)
        yield Fact(label=_("Tokens"), value=_("%(n)s ever stored") % {"n": tokens})
        rated = _("%(good)s good, %(bad)s bad") % {"good": related.good, "bad": related.bad}
        yield Fact(label=_("Feedback"), value=rated)

    def _times(self) -> Iterator[Fact]:
        session = self._session
        times = {
            _("Created"): session.created_at,
            _("Last message"): session.last_message_at,
            _("Pinned"): session.pinned_at,
            _("Expires"): session.expires_at,
        }
        for label, at in times.items():
            if at is not None:
                yield Fact(label=label, value=_moment(at))

    def _retention(self) -> Iterator[Fact]:
        session = self._session
        if session.removed_at is not None:
            if session.held_at is None:
                until = session.removed_at + timedelta(days=settings.UNDO_DAYS)
                yield Fact(label=_("Deleted by vacuum"), value=_after(until))
            return
        try:
            related = self.related
            plan = retention_plan(session, tags=related.tags, oldest_at=related.oldest_at)
        except ValueError as error:
            yield Fact(label=_("RETENTION is wrong"), value=str(error))
            return
        yield Fact(label=_("Rule"), value=_rule(plan))
        if session.held_at is not None:
            yield Fact(label=_("Acts"), value=_("not while on hold"))
            return
        for deadline in plan.deadlines:
            yield _deadline(deadline)
        if not plan.deadlines:
            yield Fact(label=_("Acts"), value=_("nothing is due"))


def _since(session: Session, state: State, turns: Turns) -> datetime | None:
    """Return since when a session is in a state."""
    running, queued = turns.running, turns.queued
    times = {
        State.PURGED: session.removed_at,
        State.EXPIRED: session.ends_at,
        State.HELD: session.held_at,
        State.ARCHIVED: session.archived_at,
        State.RUNNING: (running.started_at or running.created_at) if running else None,
        State.WAITING: min((turn.created_at for turn in queued), default=None),
        State.FAILED: turns.last.ended_at if turns.last else None,
        State.INTERRUPTED: turns.last.ended_at if turns.last else None,
        State.IDLE: session.last_message_at,
    }
    return times.get(state)


def _with_age(label: str, since: datetime | None) -> str:
    if since is None:
        return label
    age = duration(datetime.now(UTC) - since)
    return _("%(state)s for %(age)s") % {"state": label, "age": age}


def _moment(at: datetime) -> str:
    return date_format(timezone.localtime(at), "DATETIME_FORMAT")


def _after(at: datetime) -> str:
    return _("after %(time)s") % {"time": _moment(at)}


def _user_url(owner: Any, site_name: str) -> str:
    opts = get_user_model()._meta
    try:
        name = f"admin:{opts.app_label}_{opts.model_name}_change"
        return reverse(name, args=[owner.pk], current_app=site_name)
    except NoReverseMatch:
        return ""


def _rule(plan: RetentionPlan) -> str:
    if plan.number is None:
        return _("none in RETENTION")
    parts = [_("tag %(tag)s") % {"tag": visible(plan.rule.tag)}] if plan.rule.tag else []
    parts += _limits(plan.rule)
    return _("rule %(number)s: %(limits)s") % {
        "number": plan.number,
        "limits": ", ".join(parts or [_("keeps everything")]),
    }


def _limits(rule: Rule) -> list[str]:
    limits = []
    if rule.max_age is not None:
        age = duration(timedelta(seconds=rule.max_age))
        limits.append(_("messages at most %(age)s old") % {"age": age})
    if rule.max_idle is not None:
        idle = duration(timedelta(seconds=rule.max_idle))
        limits.append(_("purged after %(idle)s without a message") % {"idle": idle})
    if rule.max_messages is not None:
        text = ngettext("at most %(n)s message", "at most %(n)s messages", rule.max_messages)
        limits.append(text % {"n": number_format(rule.max_messages, force_grouping=True)})
    return limits


def _deadline(deadline: Deadline) -> Fact:
    labels = {
        "expired": _("Expires, is purged"),
        "owner deleted": _("Purged, as its user was deleted"),
        "max_idle": _("Purged, if no message comes"),
        "max_age": _("Oldest messages trimmed"),
        "max_messages": _("Messages trimmed"),
    }
    at = _after(deadline.at) if deadline.at else _("at the next run of chatmemory_expire")
    if deadline.messages is not None:
        count = number_format(deadline.messages, force_grouping=True)
        at = _("at most %(count)s, %(time)s") % {"count": count, "time": at}
    return Fact(label=labels[deadline.reason], value=at)
