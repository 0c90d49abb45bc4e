"""Perform an action on one session, or on many without a stored job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from django.db import DatabaseError, InterfaceError
from django.db.models import Case, Value

from chatmemory.database.batches import Progress, batches, count_of, reported
from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.database.retries import retried
from chatmemory.errors import ChatMemoryError, MemoryUnavailable
from chatmemory.models import AuditEntry, Session, SessionQuerySet
from chatmemory.services.audit.entries import check_reason
from chatmemory.services.jobs.actions import ACTIONS, CHANGED, UNCHANGED, Skipped, Target
from chatmemory.services.jobs.create import Order
from chatmemory.services.jobs.preview import ActionPreview, preview_sessions, skip_code

DONE = "done"
"""The outcome of an action that changed the session."""

CHUNK = 100
"""Sessions that are read or previewed together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """What an action did to one session, or why it did nothing."""

    session: Session
    """As read before the action."""
    outcome: str
    entry: AuditEntry | None = None

    @property
    def messages(self) -> int:
        """The number of messages that were hidden, or that are visible again."""
        return int(self.entry.counts.get("messages", 0)) if self.entry else 0


def perform(
    action: str, target: Target, complete: Callable[[AuditEntry | None], None] = lambda _: None
) -> AuditEntry | None:
    """Act on a session in one transaction, if it still has the target's address and epoch.

    `complete` is called in that transaction. Raises Skipped, ChatMemoryError.
    """
    prepare = ACTIONS[action].prepare
    session = target.session
    try:
        found = Session.objects.filter(pk=session.pk).first() if prepare else None
        if prepare is not None and found is not None and _identity(found) == _identity(session):
            target = replace(target, params=prepare(replace(target, session=found)))
        with locked_transaction():
            locked = lock_pk(session.pk)
            if _identity(locked) != _identity(session):
                raise Skipped(CHANGED)
            entry = ACTIONS[action].service(replace(target, session=locked))
            complete(entry)
    except MemoryUnavailable as error:
        # The services do not retry inside this transaction, but the whole of it can be repeated.
        if isinstance(error.__cause__, DatabaseError | InterfaceError):
            raise error.__cause__ from None
        raise
    return entry


def _identity(session: Session) -> tuple[str, str, int]:
    return session.scope, session.key, session.epoch


def perform_each(
    *,
    action: str,
    sessions: SessionQuerySet,
    order: Order,
    params: Mapping[str, Any],
    progress: Progress | None = None,
) -> Iterator[Performed]:
    """Act on each of these sessions in turn, in transactions of their own; yield the outcomes.

    For a process that waits for the result, such as a command: nothing is stored to continue an
    interrupted call, so repeat it. Raises BadInput, and MemoryUnavailable if the sessions cannot be
    listed.
    """
    check_reason(order.reason)
    ACTIONS[action].check(params)
    found = chain.from_iterable(_chunks(sessions, skip_code(action, params)))
    for session, skipped in reported(found, progress, count_of(sessions)) if progress else found:
        if skipped:
            yield Performed(session=session, outcome=skipped)
            continue
        target = Target(session=session, by=order.by, reason=order.reason, params=params)
        yield _performed(action, target)


def preview_each(
    *,
    action: str,
    sessions: SessionQuerySet,
    params: Mapping[str, Any],
    progress: Progress | None = None,
) -> Iterator[tuple[Session, ActionPreview]]:
    """Yield what an action would do to each of these sessions.

    The number of statements grows by one set for each `CHUNK` of sessions. Raises BadInput,
    MemoryUnavailable.
    """
    ACTIONS[action].check(params)
    previewed = _previewed(action, sessions, params)
    yield from reported(previewed, progress, count_of(sessions)) if progress else previewed


def _previewed(
    action: str, sessions: SessionQuerySet, params: Mapping[str, Any]
) -> Iterator[tuple[Session, ActionPreview]]:
    for rows in _chunks(sessions, Value("")):
        chunk = [session for session, _ in rows]
        previews = preview_sessions(action=action, sessions=chunk, params=params)
        yield from ((session, previews[session.pk]) for session in chunk if session.pk in previews)


def _performed(action: str, target: Target) -> Performed:
    try:
        entry = _perform_locked(action, target)
    except ChatMemoryError as error:  # such as MemoryUnavailable, if the session stays locked
        return Performed(session=target.session, outcome=error.code)
    except Skipped as skipped:
        return Performed(session=target.session, outcome=skipped.code)
    outcome = UNCHANGED if entry is None else DONE
    return Performed(session=target.session, outcome=outcome, entry=entry)


@retried(is_repeatable=False)  # a repeated restore would undo the removal before
def _perform_locked(action: str, target: Target) -> AuditEntry | None:
    return perform(action, target)


def _chunks(
    sessions: SessionQuerySet, skipped: Case | Value
) -> Iterator[list[tuple[Session, str]]]:
    for pks in batches(sessions, CHUNK):
        yield _with_skip_codes(pks, skipped)


@retried(is_repeatable=True)
def _with_skip_codes(pks: list[int], skipped: Case | Value) -> list[tuple[Session, str]]:
    """Return sessions, each with the code of the reason why it would not be changed."""
    found = Session.objects.filter(pk__in=pks).annotate(skipped=skipped).order_by("pk")
    return [(session, session.skipped) for session in found]  # type: ignore[attr-defined]  # annotated
