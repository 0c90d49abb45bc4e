"""The rules of `RETENTION`: parse them, and find what they remove from a session."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta

from django.db.models import Exists, F, OuterRef, Q

from chatmemory.conf import seconds, settings
from chatmemory.models import DatabaseNow, Message, Session
from chatmemory.services.removal.trim_limits import (
    NONE_FOUND,
    OlderRows,
    find_rows_older_than,
    floor_for_age,
    floor_for_limit,
)

NO_SESSION = Q(pk__in=())

MAX_AGE_SECONDS = 100 * 365 * 24 * 60 * 60
"""The longest age in a rule: databases cannot subtract an arbitrarily long time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An entry of `RETENTION`; durations are in seconds."""

    tag: str | None = None
    max_age: float | None = None
    max_idle: float | None = None
    max_messages: int | None = None

    @classmethod
    def parse(cls, given: object) -> Rule:
        """Read a rule from the setting. Raises ValueError."""
        if not isinstance(given, Mapping) or not given:
            raise ValueError("a rule is a dict with at least one key")
        known = {field.name for field in fields(cls)}
        if unknown := given.keys() - known:
            raise ValueError(f"unknown {', '.join(map(repr, sorted(map(str, unknown))))}")
        tag, max_messages = given.get("tag"), given.get("max_messages")
        if tag is not None and not isinstance(tag, str):
            raise ValueError("tag must be a string")
        is_integer = isinstance(max_messages, int) and not isinstance(max_messages, bool)
        if max_messages is not None and (not is_integer or max_messages < 1):
            raise ValueError("max_messages must be an integer of at least 1")
        ages = {name: seconds(given[name]) for name in ("max_age", "max_idle") if name in given}
        if not all(0 < age <= MAX_AGE_SECONDS for age in ages.values()):  # false for NaN too
            raise ValueError("an age must be above 0, and at most 100 years")
        return cls(tag=tag, max_messages=max_messages, **ages)

    def applies_to(self, tags: Collection[str]) -> bool:
        """Return whether the rule is for sessions with these tags."""
        return self.tag is None or self.tag in tags

    def concerns(self) -> Q:
        """Return a condition on sessions: this rule may remove from them, whatever their tags."""
        concerned = self.is_idle()
        if self.max_messages is not None:
            concerned |= Q(last_seq__gte=F("first_seq") + self.max_messages)
        if self.max_age is not None:
            oldest = Message.stored.filter(session=OuterRef("pk"), seq=OuterRef("first_seq"))
            since = DatabaseNow() - timedelta(seconds=self.max_age)
            concerned |= Q(Exists(oldest.filter(created_at__lt=since)))
        return concerned

    def is_idle(self) -> Q:
        """Return a condition on sessions: idle for `max_idle`, and without a fixed end."""
        if self.max_idle is None:
            return NO_SESSION
        since = DatabaseNow() - timedelta(seconds=self.max_idle)
        last = Q(last_message_at__lte=since)
        last |= Q(last_message_at__isnull=True, created_at__lte=since)
        return last & Q(running__isnull=True, waiting=0, expires_at__isnull=True)

    def older(self, session: Session) -> OlderRows:
        """Search for the rows that `max_age` hides, without the lock."""
        if self.max_age is None:
            return NONE_FOUND
        return find_rows_older_than(session, timedelta(seconds=self.max_age))

    def floor(self, session: Session, limit: str, older: OlderRows) -> int:
        """Return the floor by `max_age` or `max_messages`."""
        if limit == "max_messages" and self.max_messages is not None:
            return floor_for_limit(session, {"keep_last": self.max_messages})
        if limit == "max_age" and self.max_age is not None:
            return floor_for_age(session, timedelta(seconds=self.max_age), older)
        return session.first_seq


def retention_rules() -> list[Rule]:
    """Return the rules of `RETENTION`. Raises ValueError, which names the rule."""
    given: object = settings.RETENTION
    if not isinstance(given, list | tuple):
        raise ValueError("RETENTION must be a list of rules")  # noqa: TRY004  # a wrong setting
    found: list[Rule] = []
    for index, rule in enumerate(given):
        if found and found[-1].tag is None:
            raise ValueError(
                f"RETENTION[{index}] never applies: the previous rule applies to all sessions"
            )
        try:
            found.append(Rule.parse(rule))
        except ValueError as error:
            raise ValueError(f"RETENTION[{index}]: {error}") from error
    return found
