"""Retention: what goes by age, by the settings `SESSION_TTL`, `RETENTION` and `USER_DELETED`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from itertools import chain

from django.contrib.auth.base_user import AbstractBaseUser
from django.db.models import Exists, F, OuterRef, Q

from chatmemory.conf import seconds, settings
from chatmemory.errors import MemoryUnavailable, NotFound
from chatmemory.models import (
    AuditEntry,
    DatabaseNow,
    Message,
    Session,
    SessionQuerySet,
    unexpired,
)
from chatmemory.services.actors import Actor, spaces_of, user_scope
from chatmemory.services.audit import actor_of, record_person
from chatmemory.services.cuts import UNKNOWN, Older, find_older_by_age, floor_after, floor_by_age
from chatmemory.services.erasure import erase_person, erase_sessions
from chatmemory.services.faults import database, durably
from chatmemory.services.floor import move_floor
from chatmemory.services.keys import key_hashes
from chatmemory.services.locks import lock_pk, unit
from chatmemory.services.news import call_after_commit
from chatmemory.services.pool import call_soon, in_pool
from chatmemory.services.removal import EXPIRED, purge
from chatmemory.services.tags import tags_of
from chatmemory.services.walk import walk

OWNER_DELETED = "owner deleted"
"""The reason of a purge or an erasure because an account was deleted."""

ACCOUNT_DELETED = "user_deleted"
"""The action of the entry that names the person who deleted an account."""

ACTOR = Actor.server("retention")

_deletion: ContextVar[tuple[Actor, bool] | None] = ContextVar("_deletion", default=None)

NOBODY = Q(pk__in=())

MAX_AGE_SECONDS = 100 * 365 * 24 * 60 * 60
"""The longest age in a rule: databases cannot compute with any."""

OWNERLESS = Q(owner__isnull=True, scope__startswith="user:", expires_at__isnull=True)
"""Its user's account was deleted, and nobody has restored it since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An entry of `RETENTION`; durations are in seconds."""

    tag: str | None = None
    max_age: float | None = None
    max_idle: float | None = None
    max_messages: int | None = None

    @classmethod
    def parse(cls, given: object) -> Rule:
        """Read one as it is set. Raises ValueError."""
        if not isinstance(given, Mapping) or not given:
            raise ValueError("a rule is a dict with at least one key")
        known = {field.name for field in fields(cls)}
        if unknown := given.keys() - known:
            raise ValueError(f"unknown {', '.join(map(repr, sorted(map(str, unknown))))}")
        tag, most = given.get("tag"), given.get("max_messages")
        if tag is not None and not isinstance(tag, str):
            raise ValueError("tag must be a text")
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
            raise ValueError("max_messages must be a whole number from 1 on")
        ages = {name: seconds(given[name]) for name in ("max_age", "max_idle") if name in given}
        if not all(0 < age <= MAX_AGE_SECONDS for age in ages.values()):  # NaN is neither
            raise ValueError("an age must be above 0, and at most 100 years")
        return cls(tag=tag, max_messages=most, **ages)

    def applies_to(self, tags: Collection[str]) -> bool:
        """Return whether the rule is for sessions with these tags."""
        return self.tag is None or self.tag in tags

    def concerns(self) -> Q:
        """The sessions that may have something to remove by this rule, whatever their tags."""
        concerned = self.is_idle()
        if self.max_messages is not None:
            concerned |= Q(last_seq__gte=F("first_seq") + self.max_messages)
        if self.max_age is not None:
            oldest = Message.stored.filter(session=OuterRef("pk"), seq=OuterRef("first_seq"))
            since = DatabaseNow() - timedelta(seconds=self.max_age)
            concerned |= Q(Exists(oldest.filter(created_at__lt=since)))
        return concerned

    def is_idle(self) -> Q:
        """Nothing was said for too long; a session with an end of its own has that instead."""
        if self.max_idle is None:
            return NOBODY
        since = DatabaseNow() - timedelta(seconds=self.max_idle)
        last = Q(last_message_at__lte=since)
        last |= Q(last_message_at__isnull=True, created_at__lte=since)
        return last & Q(running__isnull=True, waiting=0, expires_at__isnull=True)

    def older(self, session: Session) -> Older:
        """Search for the rows that `max_age` hides. Needs no lock."""
        if self.max_age is None:
            return UNKNOWN
        return find_older_by_age(session, timedelta(seconds=self.max_age))

    def floor(self, session: Session, limit: str, older: Older) -> int:
        """Where the floor goes by `max_age` or `max_messages`."""
        if limit == "max_messages" and self.max_messages is not None:
            return floor_after(session, {"keep_last": self.max_messages})
        if limit == "max_age" and self.max_age is not None:
            return floor_by_age(session, timedelta(seconds=self.max_age), older)
        return session.first_seq


@dataclass(frozen=True, slots=True, kw_only=True)
class Went:
    """How much went for one reason."""

    sessions: int = 0
    messages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What one call removed."""

    went: dict[str, Went]
    """By reason: `expired`, `owner deleted`, or the name of the limit in `RETENTION`."""
    left: int
    """Sessions that could not be reached; they wait for the next time."""


def retention_rules() -> list[Rule]:
    """The rules that are set. Raises ValueError, which names the rule."""
    given: object = settings.RETENTION
    if not isinstance(given, list | tuple):
        raise ValueError("RETENTION must be a list of rules")  # noqa: TRY004  # a wrong setting
    found: list[Rule] = []
    for place, rule in enumerate(given):
        if found and found[-1].tag is None:
            raise ValueError(f"RETENTION[{place}] never applies: the one before it fits all")
        try:
            found.append(Rule.parse(rule))
        except ValueError as error:
            raise ValueError(f"RETENTION[{place}]: {error}") from error
    return found


def expire_sessions(*, dry_run: bool = False) -> Expired:
    """Remove what is due by age: purge expired sessions and deleted users', apply `RETENTION`.

    Session by session, each in a transaction in which the condition is looked at again under the
    lock. It can be stopped at any moment; a second call finds nothing more. What is on hold
    stays. With `dry_run` nothing is removed, and the counts are what would be now.
    Raises ValueError for a wrong setting, MemoryUnavailable where not even the sessions can be
    looked at.
    """
    plan = retention_rules()
    went: dict[str, Went] = {}
    left = 0
    for session_pk in walk(_concerned(plan)):
        try:
            done = durably(partial(_settle, session_pk, plan, dry_run), is_repeatable=True)
        except MemoryUnavailable:
            left += 1
            continue
        if done is not None:
            so_far = went.get(done.reason, Went())
            went[done.reason] = Went(
                sessions=so_far.sessions + done.sessions, messages=so_far.messages + done.messages
            )
    return Expired(went=went, left=left)


@contextmanager
def deleting_users(*, by: Actor, in_background: bool = False) -> Iterator[None]:
    """Name the person who deletes user accounts in this block, for the audit.

    `in_background`: what `USER_DELETED` asks for runs on a thread of the pool, not in the thread
    that commits. Use it only in a server process: at the end of a process the thread is stopped,
    and `expire_sessions` does the rest.
    """
    token = _deletion.set((by, in_background))
    try:
        yield
    finally:
        _deletion.reset(token)


def forget_user(user: AbstractBaseUser, *, using: str) -> None:
    """Record that an account is being deleted, and apply `USER_DELETED` after the commit.

    The entry is in the transaction of the deletion, so the sessions that `expire_sessions` removes
    after a crash are still removed in the name of the person who deleted the account.
    """
    if settings.USER_DELETED == "keep":
        return
    scope = user_scope(user)
    by, in_background = _deletion.get() or (ACTOR, False)

    def forget() -> None:
        forget_person(scope=scope)

    def forget_soon() -> None:
        call_soon(forget)

    def depart() -> None:
        _record_departure(scope, by)

    if using == database().alias:
        depart()
    else:
        call_after_commit(depart, using=using)
    call_after_commit(forget_soon if in_background else forget, using=using)


def _record_departure(scope: str, by: Actor) -> None:
    """Record who deleted an account, if sessions of it are stored."""
    stored = Session.objects.of_scopes(*spaces_of(scope))
    count = stored.count()
    if count:
        held = stored.filter(held_at__isnull=False).order_by("pk").values_list("pk", flat=True)
        record_person(scope, ACCOUNT_DELETED, by, "", sessions=count, held=list(held))


def forget_person(*, scope: str) -> None:
    """Do what `USER_DELETED` says with the sessions of a user whose account is gone.

    If this is interrupted, `expire_sessions` continues it. Raises MemoryUnavailable.
    """
    if settings.USER_DELETED == "erase":
        erase_person(by=_deleted_by(scope), reason=OWNER_DELETED, scope=scope)
    elif settings.USER_DELETED == "purge":
        for session_pk in walk(Session.objects.filter(OWNERLESS, scope=scope)):
            durably(partial(_settle, session_pk, (), False), is_repeatable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetting:
    """What the deletion of accounts would do with their sessions, by primary key of a session."""

    removed: dict[int, int]
    """Messages of each session that is purged or erased."""
    held: dict[int, int]
    """Messages of each session on hold, which stays."""
    kept: dict[int, int]
    """Messages of each session that stays until its own end, or by `USER_DELETED`."""


def preview_forgetting(*, scopes: Sequence[str]) -> Forgetting:
    """What the deletion of the users with these scopes would do now. Raises MemoryUnavailable."""

    def work() -> Forgetting:
        found = Forgetting(removed={}, held={}, kept={})
        policy = settings.USER_DELETED
        sessions = Session.objects.filter(scope__in=scopes)
        if policy == "erase":
            sessions = Session.objects.of_scopes(*chain.from_iterable(map(spaces_of, scopes)))
        for session in sessions.order_by("pk").defer("instructions", "metadata").iterator():
            if session.held_at is not None:
                group = found.held
            elif policy == "erase" or (policy == "purge" and session.expires_at is None):
                group = found.removed
            else:
                group = found.kept
            group[session.pk] = session.message_count
        return found

    return durably(work, is_repeatable=True)


def _deleted_by(scope: str) -> Actor:
    """The person who deleted the account of this scope, or `ACTOR` if that is unknown."""
    entries = AuditEntry.objects.filter(
        session_pk__isnull=True, action=ACCOUNT_DELETED, key_hash__in=key_hashes(scope)
    )
    entry = durably(entries.order_by("-pk").first, is_repeatable=True)
    return ACTOR if entry is None else actor_of(entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    """What is due of a session."""

    reason: str
    messages: int
    sessions: int = 1
    floor: int | None = None
    """Where a trim puts the floor; None where all goes."""


def _concerned(plan: Sequence[Rule]) -> SessionQuerySet:
    """The sessions of which something may be due."""
    concerned = ~unexpired()
    if settings.USER_DELETED != "keep":
        concerned |= OWNERLESS
    for rule in plan:
        concerned |= rule.concerns()
    return Session.objects.filter(concerned, removed_at__isnull=True, held_at__isnull=True)


def _settle(session_pk: int, plan: Sequence[Rule], is_dry: bool) -> _Due | None:
    """Remove what is due of a session; return what that is."""
    found = Session.objects.filter(pk=session_pk).first()
    if found is None:
        return None
    rule = _rule(found, plan)
    searched = {rule: rule.older(found)}
    if is_dry:
        return _due(found, plan, searched)
    try:
        with unit():
            session = lock_pk(session_pk)
            due = _due(session, plan, searched)
            if due is None:
                return None
            by = _deleted_by(session.scope) if due.reason == OWNER_DELETED else ACTOR
            if due.floor is not None:
                move_floor(session, due.floor, "trim", ACTOR, due.reason)
            elif not _is_erasure(due):
                purge(session, by, due.reason)
    except NotFound:
        return None
    if not _is_erasure(due):
        return due
    # Not under the lock: the erasure is of a person, and is listed before its first delete.
    erased = erase_sessions(session.scope, OWNERLESS, by, due.reason)
    return _Due(reason=due.reason, sessions=erased.sessions, messages=erased.messages)


def _is_erasure(due: _Due) -> bool:
    return due.reason == OWNER_DELETED and settings.USER_DELETED == "erase"


def _rule(session: Session, plan: Sequence[Rule]) -> Rule:
    """The first rule that applies to a session."""
    tags = tags_of(session) if any(rule.tag is not None for rule in plan) else ()
    return next((rule for rule in plan if rule.applies_to(tags)), Rule())


def _due(session: Session, plan: Sequence[Rule], searched: Mapping[Rule, Older]) -> _Due | None:
    """Return what is due now. `searched` is without the lock: the rule may be another one since."""
    if session.held_at is not None or session.removed_at is not None:
        return None
    same = Session.objects.filter(pk=session.pk)
    rule = _rule(session, plan)
    ends = {EXPIRED: ~unexpired(), "max_idle": rule.is_idle()}
    if settings.USER_DELETED != "keep":
        ends[OWNER_DELETED] = OWNERLESS
    for reason, has_ended in ends.items():
        if same.filter(has_ended).exists():
            return _Due(reason=reason, messages=session.message_count)
    older = searched.get(rule, UNKNOWN)
    floors = {name: rule.floor(session, name, older) for name in ("max_age", "max_messages")}
    reason = max(floors, key=floors.__getitem__)
    messages = floors[reason] - session.first_seq
    return _Due(reason=reason, messages=messages, floor=floors[reason]) if messages else None


aexpire_sessions = in_pool(expire_sessions)
aforget_person = in_pool(forget_person)
apreview_forgetting = in_pool(preview_forgetting)
