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
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from chatmemory.access.actors import person_of
from chatmemory.admin.people.finding import is_person
from chatmemory.admin.people.pages import person_url
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.sessions.conversation.history import History, PastAction
from chatmemory.admin.sessions.conversation.turns import Turns
from chatmemory.admin.states import State
from chatmemory.admin.text import duration, grouped, visible
from chatmemory.conf import settings
from chatmemory.models import AuditAction, Feedback, Message, Session, SessionNote, Turn, start_of
from chatmemory.services.retention.plan import Deadline, RetentionPlan, retention_plan
from chatmemory.services.retention.rules import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A label with a value."""

    label: str
    value: str
    url: str = ""
    action: PastAction | None = None
    """The audit entry that explains the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactGroup:
    """Facts that the page folds together."""

    title: str
    facts: list[Fact]
    is_open: bool = False


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
            _count_ratings(feedback, Feedback.Value.GOOD),
            _count_ratings(feedback, Feedback.Value.BAD),
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


def _count_ratings(feedback: Any, value: Feedback.Value) -> Coalesce:
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

    def groups(self, turns: Turns) -> list[FactGroup]:
        """Return the facts in groups, without empty ones."""
        groups = [
            FactGroup(
                title=_("Conversation"),
                facts=[*self._identity_facts(), *self._count_facts(), *self._time_facts()],
                is_open=True,
            ),
            FactGroup(title=_("State"), facts=[*self._state_facts(turns)], is_open=True),
            FactGroup(title=_("Retention"), facts=[*self._end_facts(), *self._retention()]),
        ]
        return [group for group in groups if group.facts]

    def _state_facts(self, turns: Turns) -> Iterator[Fact]:
        session = self._session
        others = {
            State.HELD: (session.held_at, AuditAction.HOLD),
            State.ARCHIVED: (session.archived_at, AuditAction.ARCHIVE),
            State.PURGED: (session.removed_at, AuditAction.PURGE),
        }
        for other, (at, code) in others.items():
            if at is not None:
                action = self._history.newest(code)
                label = str(other.label).capitalize()
                value = _("since %(time)s") % {"time": _shown_moment(at)}
                yield Fact(label=label, value=value, action=action)
        if session.running is not None and turns.running is not None:
            status = str(Turn.Status(turns.running.status).label)
            since = turns.running.started_at or turns.running.created_at
            yield Fact(label=_("Running turn"), value=_with_age(status, since))
        if session.waiting:
            yield Fact(label=_("Waiting messages"), value=grouped(session.waiting))

    def _identity_facts(self) -> Iterator[Fact]:
        session = self._session
        yield self._owner()
        yield self._scope()
        yield Fact(label=_("Key"), value=visible(session.key))
        yield Fact(label=_("ID"), value=str(session.pk))
        if session.origin:
            yield Fact(label=_("Imported from"), value=visible(session.origin))
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

    def _count_facts(self) -> Iterator[Fact]:
        session, related = self._session, self.related
        value = grouped(session.message_count)
        if session.message_count:
            span = _("%(first)s to %(last)s") % {
                "first": session.first_seq,
                "last": session.last_seq,
            }
            value = f"{value} ({span})"
        yield Fact(label=_("Messages"), value=value)
        if hidden := session.first_seq - session.stored_from:
            text = _("%(n)s, until vacuum deletes them") % {"n": grouped(hidden)}
            yield Fact(label=_("Removed, still stored"), value=text)
        tokens = grouped(session.tokens)
        yield Fact(label=_("Tokens"), value=_("%(n)s ever stored") % {"n": tokens})
        rated = _("%(good)s good, %(bad)s bad") % {"good": related.good, "bad": related.bad}
        yield Fact(label=_("Feedback"), value=rated)

    def _time_facts(self) -> Iterator[Fact]:
        session = self._session
        times = {
            _("Created"): session.created_at,
            _("Last message"): session.last_message_at,
            _("Pinned"): session.pinned_at,
        }
        for label, at in times.items():
            if at is not None:
                yield Fact(label=label, value=_shown_moment(at))

    def _end_facts(self) -> Iterator[Fact]:
        session = self._session
        if session.expires_at is not None:
            yield Fact(label=_("Expires"), value=_shown_moment(session.expires_at))
        if session.ttl_seconds is not None:
            lifetime = duration(timedelta(seconds=session.ttl_seconds))
            value = _("%(time)s after the last message") % {"time": lifetime}
            yield Fact(label=_("Lifetime"), value=value)

    def _retention(self) -> Iterator[Fact]:
        session = self._session
        if session.removed_at is not None:
            if session.held_at is None:
                until = session.removed_at + timedelta(days=settings.UNDO_DAYS)
                yield Fact(label=_("Deleted by vacuum"), value=_after_time(until))
            return
        try:
            related = self.related
            plan = retention_plan(session, tags=related.tags, oldest_at=related.oldest_at)
        except ValueError as error:
            yield Fact(label=_("RETENTION is wrong"), value=str(error))
            return
        yield Fact(label=_("Rule"), value=_rule_text(plan))
        if session.held_at is not None:
            yield Fact(label=_("Due"), value=_("not while on hold"))
            return
        for deadline in plan.deadlines:
            yield _deadline(deadline)
        if not plan.deadlines:
            yield Fact(label=_("Due"), value=_("nothing"))


def _with_age(label: str, since: datetime | None) -> str:
    if since is None:
        return label
    age = duration(datetime.now(UTC) - since)
    return _("%(state)s for %(age)s") % {"state": label, "age": age}


def _shown_moment(at: datetime) -> str:
    return date_format(timezone.localtime(at), "DATETIME_FORMAT")


def _after_time(at: datetime) -> str:
    return _("after %(time)s") % {"time": _shown_moment(at)}


def _user_url(owner: Any, site_name: str) -> str:
    opts = get_user_model()._meta
    try:
        name = f"admin:{opts.app_label}_{opts.model_name}_change"
        return reverse(name, args=[owner.pk], current_app=site_name)
    except NoReverseMatch:
        return ""


def _rule_text(plan: RetentionPlan) -> str:
    if plan.number is None:
        return _("none in RETENTION")
    parts = [_("tag %(tag)s") % {"tag": visible(plan.rule.tag)}] if plan.rule.tag else []
    parts += _limit_texts(plan.rule)
    return _("rule %(number)s: %(limits)s") % {
        "number": plan.number,
        "limits": ", ".join(parts or [_("keeps everything")]),
    }


def _limit_texts(rule: Rule) -> list[str]:
    limits = []
    if rule.max_age is not None:
        age = duration(timedelta(seconds=rule.max_age))
        limits.append(_("messages at most %(age)s old") % {"age": age})
    if rule.max_idle is not None:
        idle = duration(timedelta(seconds=rule.max_idle))
        limits.append(_("purged after %(idle)s without a message") % {"idle": idle})
    if rule.max_messages is not None:
        text = ngettext("at most %(n)s message", "at most %(n)s messages", rule.max_messages)
        limits.append(text % {"n": grouped(rule.max_messages)})
    return limits


def _deadline(deadline: Deadline) -> Fact:
    labels = {
        "expired": _("Expires, is purged"),
        "owner deleted": _("Purged, as its user was deleted"),
        "max_idle": _("Purged, if no message comes"),
        "max_age": _("Oldest messages trimmed"),
        "max_messages": _("Messages trimmed"),
    }
    at = _after_time(deadline.at) if deadline.at else _("at the next run of chatmemory_expire")
    if deadline.messages is not None:
        count = grouped(deadline.messages)
        at = _("at most %(count)s, %(time)s") % {"count": count, "time": at}
    return Fact(label=labels[deadline.reason], value=at)
