"""When retention removes from a session, computed from its columns without SQL."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from chatmemory.access.actors import owner_of
from chatmemory.conf import settings
from chatmemory.models import Session
from chatmemory.services.removal.hide import EXPIRED
from chatmemory.services.retention.retention import OWNER_DELETED
from chatmemory.services.retention.rules import Rule, retention_rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A removal by retention. `chatmemory_expire` makes it at its first run after `at`."""

    reason: str
    """`expired`, `owner deleted`, `max_idle`, `max_age` or `max_messages`."""
    at: datetime | None
    """None: at the next run."""
    messages: int | None = None
    """At most this number of messages is trimmed, since turns are kept whole; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """The rule that applies to a session, and what is due by it or by other settings."""

    number: int | None
    """The place of the rule in `RETENTION`, from 1; None without a rule."""
    rule: Rule
    deadlines: list[Deadline]
    """Without deadlines that a hold, a running turn or a waiting turn prevents now."""


def retention_plan(
    session: Session, *, tags: Collection[str], oldest_at: datetime | None
) -> RetentionPlan:
    """Return which rule applies to a session that is not purged, and when it acts.

    `oldest_at` is the time of the oldest visible message. Raises ValueError for a wrong setting.
    """
    found = enumerate(retention_rules(), start=1)
    number, rule = next(((n, rule) for n, rule in found if rule.applies_to(tags)), (None, Rule()))
    if session.held_at is not None:
        return RetentionPlan(number=number, rule=rule, deadlines=[])
    deadlines = [*_ends(session, rule), *_trims(session, rule, oldest_at)]
    return RetentionPlan(number=number, rule=rule, deadlines=deadlines)


def _ends(session: Session, rule: Rule) -> list[Deadline]:
    """Return the removals of the whole session."""
    deadlines = []
    is_ownerless = session.owner_id is None and owner_of(session.scope) is not None
    if is_ownerless and session.expires_at is None and settings.USER_DELETED != "keep":
        deadlines.append(Deadline(reason=OWNER_DELETED, at=None))
    if session.running is not None or session.waiting:
        return deadlines
    if session.ends_at is not None:
        deadlines.append(Deadline(reason=EXPIRED, at=session.ends_at))
    if rule.max_idle is not None and session.expires_at is None:
        idle_since = session.last_message_at or session.created_at
        at = idle_since + timedelta(seconds=rule.max_idle)
        deadlines.append(Deadline(reason="max_idle", at=at))
    return deadlines


def _trims(session: Session, rule: Rule, oldest_at: datetime | None) -> list[Deadline]:
    deadlines = []
    if rule.max_age is not None and oldest_at is not None:
        at = oldest_at + timedelta(seconds=rule.max_age)
        deadlines.append(Deadline(reason="max_age", at=at))
    excess = 0 if rule.max_messages is None else session.message_count - rule.max_messages
    if excess > 0:
        deadlines.append(Deadline(reason="max_messages", at=None, messages=excess))
    return deadlines
