"""Find, create, lock and delete threads; the fence of a run."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, TypedDict

from django.contrib.auth import get_user_model
from django.db.models import F

from chatmemory.access.actors import Actor, owner_of, visitor_of
from chatmemory.access.addresses import check_length
from chatmemory.access.visitors import lock_current_visitor
from chatmemory.codec import check_value
from chatmemory.conf import settings
from chatmemory.database.after_commit import call_host_after_commit
from chatmemory.database.faults import ignored_duplicate
from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.database.retries import retried
from chatmemory.derived import Seen, store
from chatmemory.errors import (
    BadInput,
    Conflict,
    Held,
    HistoryCleared,
    MemoryUnavailable,
    NotFound,
)
from chatmemory.langgraph.actions import ThreadAction
from chatmemory.langgraph.models import (
    MAX_THREAD_ID_CHARS,
    Checkpoint,
    Thread,
    key_of,
    newest_withdrawal,
)
from chatmemory.models import AuditAction, AuditEntry, DatabaseToday, Session
from chatmemory.models.derived import DerivedQuerySet, all_rows
from chatmemory.models.sessions import random_epoch
from chatmemory.services.audit.entries import record, record_person
from chatmemory.services.audit.keys import key_hashes

# Note [Fence of a run]
#
# LangGraph reads a thread once, at the start of a run, and then stores checkpoints from memory.
# Meanwhile another run may store its own, or the thread may be deleted. Without a fence the newer
# checkpoint hides the other run's, and a deleted thread returns with all that it contained.
#
# So the first read of a run takes a fence: the primary key and the epoch of the thread, and the
# state of its session. Each write of the run locks the row of the thread and compares them. A
# checkpoint must also continue the newest one of its namespace, unless the run began at a
# checkpoint that it named. A thread that did not exist gets its epoch from the fence, when the run
# stores something for the first time; so the run recognizes it, and no other run does. An erasure
# of the person leaves nothing of a thread, so the fence also has the last erasure: a run that began
# before a later one, or before the deletion of the account, creates no thread.
#
# The fence travels in the config, which LangGraph hands to every write and to subgraphs. The config
# of `get_tuple` is a copy that belongs to the run if it has the run's `Runtime`; only such a copy
# is changed. Otherwise the fence is in the config that `get_tuple` and `put` return.

FENCE: Final = "chatmemory_fence"
"""The key of the fence in a config that is returned to the caller."""

RUN_FENCE: Final = "__chatmemory_fence"
"""The key of the fence in the config of a run. LangGraph copies no such key to the metadata."""

RUNTIME: Final = "__pregel_runtime"
"""The key by which LangGraph's own copy of a config is recognized."""

MAX_ATTEMPTS = 10
"""Attempts to delete a thread that runs create again meanwhile."""

GONE = "The thread was deleted, or messages of it were removed, after this run started."
OVERTAKEN = "Another run has changed the thread since this run started. Run the graph again."
NO_MESSAGE = "The conversation has no message. Append one before the graph runs."
CHANGED = "A message of the conversation was changed during this run. Run the graph again."

# A run writes on several threads. Only the first one may create the thread: if it was created and
# deleted since, the others must not create it again.
_creating = tuple(threading.Lock() for _ in range(64))


class Fence(TypedDict):
    """What a run has seen of its thread. It contains nothing that JSON cannot."""

    key: str
    thread: int | None
    """The primary key; None until the run has created the thread."""
    epoch: int
    session: tuple[int, int, int, int, int] | None
    """For a thread of a session: the fields of `Seen`, `first_seq` and `last_seq`."""
    erasure: int
    """`_last_erasure` of the person, for a thread without a session that did not exist."""
    fork: bool
    """Whether the run began at a checkpoint that it named, so that it may leave the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The session or the person to whom threads belong."""

    scope: str = ""
    session_pk: int | None = None
    seq: int | None = None
    """The only message that a thread is made from; None for all, also later ones."""

    def key_of(self, thread_id: str) -> str:
        """Return the key of a thread. Raises BadInput for an id that cannot be stored."""
        check_length("thread_id", thread_id, 1, MAX_THREAD_ID_CHARS)
        check_value(thread_id, "thread_id")
        return key_of(self.scope if self.session_pk is None else self.session_pk, thread_id)

    def threads(self) -> DerivedQuerySet:
        """Select the threads that a graph may read."""
        if self.session_pk is None:
            return all_rows(Thread).filter(scope=self.scope)
        return Thread.visible(self.session_pk)


@retried(is_repeatable=True)
def begin(owner: Owner, thread_id: str, *, fork: bool) -> Fence:
    """Return the fence of a run that begins now. Raises NotFound if the session is gone."""
    key = owner.key_of(thread_id)
    # Before the thread: what is removed in between then makes the fence too old, never too new.
    seen = None if owner.session_pk is None else _see(owner.session_pk)
    found = owner.threads().filter(key=key).values_list("pk", "epoch").first()
    pk, epoch = found or (None, random_epoch())
    erasure = _last_erasure(owner.scope) if pk is None and seen is None else 0
    return Fence(key=key, thread=pk, epoch=epoch, session=seen, erasure=erasure, fork=fork)


def fence_of(configurable: Mapping[str, Any], key: str) -> Fence | None:
    """Return the fence in a config, unless it is of another thread."""
    for name in (RUN_FENCE, FENCE):
        fence: Fence | None = configurable.get(name)
        if fence is not None and fence["key"] == key:
            return fence
    return None


def create_missing(owner: Owner, thread_id: str, fence: Fence) -> int:
    """Create the thread unless it exists; return its primary key.

    Raises Conflict if another run created it, or if a message was changed since the run began;
    Unauthenticated for a visitor who has ended or was adopted.
    """
    with _creating[fence["epoch"] % len(_creating)]:
        if (pk := fence["thread"]) is None:
            create = _create_for_person if owner.session_pk is None else _create_for_session
            pk = fence["thread"] = create(owner, thread_id, fence)
        return pk


@retried(is_repeatable=True)
def _create_for_person(owner: Owner, thread_id: str, fence: Fence) -> int:
    of_key = all_rows(Thread).filter(key=fence["key"]).values_list("pk", "epoch", "deleted_day")
    thread = _new_thread(owner, None, thread_id, fence["key"], fence["epoch"])
    if thread is not None and not of_key.exists():
        with ignored_duplicate(), locked_transaction():
            if (visitor := visitor_of(owner.scope)) is not None:
                # Or an adoption during the run would leave the thread to no one.
                lock_current_visitor(visitor, Actor.known_visitor(visitor))
            thread.save(force_insert=True)
    found = of_key.first()
    if found is None:
        raise HistoryCleared(GONE)
    pk = _check_created(found, fence)
    # After the commit: an erasure that begins later finds the thread.
    if _last_erasure(owner.scope) != fence["erasure"]:
        all_rows(Thread).filter(pk=pk).delete()
        raise HistoryCleared(GONE)
    return pk


@retried(is_repeatable=True)
def _create_for_session(owner: Owner, thread_id: str, fence: Fence) -> int:
    seen, first_seq, last_seq = _seen_of(fence)
    of_key = all_rows(Thread).filter(key=fence["key"])
    with locked_transaction():
        try:
            session = lock_pk(seen.session_pk)
        except NotFound:
            raise HistoryCleared(GONE) from None
        if session.epoch != seen.epoch:
            raise HistoryCleared(GONE)
        of_thread = owner.threads().filter(key=fence["key"])
        if found := of_thread.values_list("pk", "epoch", "deleted_day").first():
            return _check_created(found, fence)
        # A hidden one. A restore would show it, but this run takes its place.
        if session.held_at is not None:
            of_key.update(key=None)
        elif Thread.bury(of_key):
            call_host_after_commit(Thread.clean_up)
        thread = _new_thread(owner, session, thread_id, fence["key"], fence["epoch"])
        if thread is None:
            raise BadInput(NO_MESSAGE, code="empty", field="session")
        # The run may have read messages that were hidden or superseded since.
        thread.low, thread.known_seq = owner.seq or first_seq, last_seq
        if not store(seen, [thread]):
            raise Conflict(CHANGED)
    return int(of_key.values_list("pk", flat=True).get())


def _check_created(found: tuple[int, int, date | None], fence: Fence) -> int:
    """Return the primary key of a thread, of which the epoch shows that this run created it."""
    pk, epoch, deleted_day = found
    if epoch == fence["epoch"]:
        return pk
    if deleted_day is None:
        raise Conflict(OVERTAKEN)
    raise HistoryCleared(GONE)


def lock(owner: Owner, thread_pk: int, fence: Fence) -> None:
    """Lock a thread, and note that it is in use. Needs a transaction.

    Raises HistoryCleared if it is not the thread that the run has read, or is hidden.
    """
    rows = all_rows(Thread).filter(pk=thread_pk, epoch=fence["epoch"])
    # By an update, since SQLite has no other lock; all others lock the row by it too.
    if not rows.update(last_active_day=DatabaseToday(), deleted_day=None):
        raise HistoryCleared(GONE)
    if owner.session_pk is None:
        return
    seen, first_seq, _ = _seen_of(fence)
    visible = owner.threads().filter(pk=thread_pk, session__epoch=seen.epoch)
    found = visible.values_list("low", "high").first()
    read = (first_seq, None) if owner.seq is None else (owner.seq, owner.seq)
    if found is not None and (wider := _widened(found, read)) != found:
        rows.update(low=wider[0], high=wider[1])
        found = visible.values_list("low", "high").first()
    if found is None:
        raise HistoryCleared(GONE)


def _widened(known: tuple[int, int | None], read: tuple[int, int | None]) -> tuple[int, int | None]:
    """Return the range of a thread with the messages that a run has read.

    They were restored since another run created it, or it had another `seq`.
    """
    high = None if None in (known[1], read[1]) else max(known[1] or 0, read[1] or 0)
    return min(known[0], read[0]), high


def lock_unfenced(thread_pk: int) -> bool:
    """Lock a thread as it is now; return whether it exists. Needs a transaction."""
    # Not a tombstone: an erasure may have ended while this waited for the lock.
    rows = all_rows(Thread).filter(pk=thread_pk).exclude(session=None, scope="")
    return bool(rows.update(epoch=F("epoch")))


def delete_thread(owner: Owner, thread_id: str, by: Actor, reason: str) -> None:
    """Hide a thread permanently, and record it; `clean_up` deletes its rows.

    No run that has begun can write to it any more, nor create it again. Raises Held.
    """
    for _ in range(MAX_ATTEMPTS):
        if _hide(owner, thread_id, by, reason):
            return
    raise MemoryUnavailable


@retried(is_repeatable=True)
def _hide(owner: Owner, thread_id: str, by: Actor, reason: str) -> bool:
    """Put an empty thread in place of a thread; return False if a run created it meanwhile."""
    key = owner.key_of(thread_id)
    of_key = all_rows(Thread).filter(key=key)
    with ignored_duplicate(), locked_transaction():
        session = lock_session(owner)
        if session is not None and session.held_at is not None:
            raise Held
        if pks := list(of_key.values_list("pk", flat=True)):
            checkpoints = Checkpoint.objects.filter(thread__in=pks).count()
            Thread.bury(of_key)
            note(owner, session, ThreadAction.DELETE, by, reason, checkpoints=checkpoints)
            call_host_after_commit(Thread.clean_up)
        trace = _new_thread(owner, session, thread_id, key, random_epoch())
        if trace is not None:
            trace.deleted_day = DatabaseToday()
            trace.save(force_insert=True)
        return True
    return False


def _new_thread(
    owner: Owner, session: Session | None, thread_id: str, key: str, epoch: int
) -> Thread | None:
    """Return an unsaved thread; None if its session has no message."""
    thread = Thread(key=key, thread_id=thread_id, epoch=epoch, last_active_day=DatabaseToday())
    if owner.session_pk is None:
        thread.scope, thread.low = owner.scope, 1
        return thread
    if session is None or session.last_seq < session.first_seq:
        return None
    thread.session, thread.high = session, owner.seq
    thread.low = session.first_seq if owner.seq is None else owner.seq
    thread.known_seq, thread.known_withdrawal = session.last_seq, newest_withdrawal(session.pk)
    return thread


@retried(is_repeatable=False)
def note_export(owner: Owner, by: Actor, reason: str) -> None:
    """Record that the threads are exported. Raises NotFound if their session is gone."""
    with locked_transaction():
        session = None if owner.session_pk is None else lock_pk(owner.session_pk)
        checkpoints = Checkpoint.objects.filter(thread__in=owner.threads()).count()
        note(owner, session, ThreadAction.EXPORT, by, reason, checkpoints=checkpoints)


def note(
    owner: Owner,
    session: Session | None,
    action: ThreadAction,
    by: Actor,
    reason: str,
    **counts: int,
) -> None:
    """Record an action in the audit, at the session or the person."""
    if session is not None:
        record(session, action, by, reason, **counts)
    elif owner.session_pk is None:
        record_person(owner.scope, action, by, reason, **counts)


def is_held(owner: Owner) -> bool:
    """Whether the threads belong to a session on hold."""
    if owner.session_pk is None:
        return False
    return Session.objects.filter(pk=owner.session_pk, held_at__isnull=False).exists()


def lock_session(owner: Owner) -> Session | None:
    """Lock the session of the threads, if they have one that is stored."""
    if owner.session_pk is None:
        return None
    try:
        return lock_pk(owner.session_pk)
    except NotFound:
        return None


def _seen_of(fence: Fence) -> tuple[Seen, int, int]:
    """Return what a run has seen of its session, with `first_seq` and `last_seq`."""
    if fence["session"] is None:
        raise TypeError("this is the fence of a thread without a session")
    *seen, first_seq, last_seq = fence["session"]
    return Seen(*seen), first_seq, last_seq


def _last_erasure(scope: str) -> int:
    """Return the primary key of the last entry of a person's erasures; 0 without one.

    For a deleted account, whose threads were deleted with it, it is -1.
    """
    owner = owner_of(scope)
    if owner is not None and settings.USER_DELETED != "keep":
        users = get_user_model()._base_manager  # also with users that another manager hides
        if not users.filter(pk=owner).exists():
            return -1
    of_person = AuditEntry.objects.filter(session_pk=None, key_hash__in=key_hashes(scope))
    # Also its end: an erasure that was interrupted has only one start.
    actions = (AuditAction.ERASURE_STARTED, AuditAction.ERASE)
    found = of_person.filter(action__in=actions).order_by("-pk")
    return found.values_list("pk", flat=True).first() or 0


def _see(session_pk: int) -> tuple[int, int, int, int, int]:
    found = Session.objects.active().filter(pk=session_pk)
    columns = found.values_list("pk", "epoch", "rows_revision", "first_seq", "last_seq")
    for seen in columns:
        return seen
    raise NotFound
