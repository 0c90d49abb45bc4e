"""Deleted accounts: apply `USER_DELETED` to their sessions, and record the actor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import chain

from django.contrib.auth.base_user import AbstractBaseUser

from chatmemory.access.actors import Actor, all_scopes_of, user_scope
from chatmemory.conf import settings
from chatmemory.database.after_commit import call_after_commit
from chatmemory.database.batches import in_batches, in_pages
from chatmemory.database.faults import write_connection
from chatmemory.database.pool import call_soon
from chatmemory.database.retries import retried
from chatmemory.models import AuditAction, Session
from chatmemory.services.audit.entries import record_person
from chatmemory.services.derived.removal import delete_person_rows
from chatmemory.services.erasure.erasure import erase_person
from chatmemory.services.retention.retention import (
    OWNER_DELETED,
    OWNERLESS,
    RETENTION_ACTOR,
    deleter_of,
    remove_due,
)

Deleter = Callable[[AbstractBaseUser], Actor | None]
"""Returns the person who deletes an account; None if unknown."""

_deletion: ContextVar[tuple[Deleter, bool] | None] = ContextVar("_deletion", default=None)


@contextmanager
def deleting_users(*, by: Actor, in_background: bool = False) -> Iterator[None]:
    """Name the person who deletes user accounts in this block, for the audit.

    With `in_background`, the removal by `USER_DELETED` runs on a thread of the pool, not in the
    thread that commits. Use it only in a server process: the end of a process stops that thread,
    and the next `expire_sessions` completes the removal.
    """
    with naming_deleter(lambda _user: by, in_background=in_background):
        yield


@contextmanager
def naming_deleter(deleter: Deleter, *, in_background: bool = False) -> Iterator[None]:
    """Name the person for each account that is deleted in this block; see `deleting_users`."""
    token = _deletion.set((deleter, in_background))
    try:
        yield
    finally:
        _deletion.reset(token)


def forget_user(user: AbstractBaseUser, *, using: str) -> None:
    """Record that an account is being deleted, and apply `USER_DELETED` after the commit.

    The entry is in the transaction of the deletion, so the sessions that `expire_sessions` removes
    after a crash are still recorded as removed by the person who deleted the account.
    """
    if settings.USER_DELETED == "keep":
        return
    scope = user_scope(user)
    deleter, in_background = _deletion.get() or (lambda _user: None, False)
    by = deleter(user) or RETENTION_ACTOR
    record_deletion = partial(_record_deletion, scope, by)
    if using == write_connection().alias:
        record_deletion()
    else:  # the accounts are in another database, whose transaction cannot include the entry
        call_after_commit(record_deletion, using=using)
    forget = partial(forget_person, scope=scope)
    call_after_commit(partial(call_soon, forget) if in_background else forget, using=using)


def _record_deletion(scope: str, by: Actor) -> None:
    """Record the actor who deleted an account, if it has stored sessions.

    With a purge, the rows of other apps about the person are deleted now; an erasure counts them.
    """
    if settings.USER_DELETED == "purge":
        delete_person_rows(scope)
    stored = Session.objects.of_scopes(*all_scopes_of(scope))
    if count := stored.count():
        held = stored.filter(held_at__isnull=False).order_by("pk").values_list("pk", flat=True)
        record_person(scope, AuditAction.USER_DELETED, by, "", sessions=count, held=list(held))


def forget_person(*, scope: str) -> None:
    """Apply `USER_DELETED` to the sessions of a deleted account.

    If this is interrupted, `expire_sessions` completes it. Raises MemoryUnavailable.
    """
    if settings.USER_DELETED == "erase":
        erase_person(by=deleter_of(scope), reason=OWNER_DELETED, scope=scope)
    elif settings.USER_DELETED == "purge":
        delete_person_rows(scope)  # also those that were stored until the commit
        for session_pk in in_batches(Session.objects.filter(OWNERLESS, scope=scope)):
            remove_due(session_pk)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountDeletionPlan:
    """What the deletion of accounts would do; all keys are primary keys of sessions."""

    removed: dict[int, int]
    """Number of messages in each session to be purged or erased."""
    held: dict[int, int]
    """Number of messages in each session on hold, which stays."""
    kept: dict[int, int]
    """Number of messages in each session that stays: it has a fixed end, or the policy keeps it."""


@retried(is_repeatable=True)
def preview_forgetting(*, scopes: Sequence[str]) -> AccountDeletionPlan:
    """Return what the deletion of users with these scopes would do. Raises MemoryUnavailable."""
    found = AccountDeletionPlan(removed={}, held={}, kept={})
    policy = settings.USER_DELETED
    sessions = Session.objects.filter(scope__in=scopes)
    if policy == "erase":
        sessions = Session.objects.of_scopes(*chain.from_iterable(map(all_scopes_of, scopes)))
    for session in in_pages(sessions.defer("instructions", "metadata")):
        if session.held_at is not None:
            group = found.held
        elif policy == "erase" or (policy == "purge" and session.expires_at is None):
            group = found.removed
        else:
            group = found.kept
        group[session.pk] = session.message_count
    return found
