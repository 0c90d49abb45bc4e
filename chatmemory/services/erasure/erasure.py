"""Erasure: delete all data of a person immediately and permanently."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from chatmemory.access.actors import Actor, all_scopes_of, person_for, visitor_of
from chatmemory.database.after_commit import announce_change, call_after_commit
from chatmemory.database.batches import Progress, in_batches
from chatmemory.database.faults import write_connection
from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.database.pool import call_soon
from chatmemory.database.retries import durably, retried
from chatmemory.errors import NotFound
from chatmemory.models import (
    AuditAction,
    AuditEntry,
    Job,
    JobItem,
    Message,
    Session,
    SessionQuerySet,
    Turn,
    database_now,
)
from chatmemory.services.audit.entries import check_reason, is_erased, record, record_hashed
from chatmemory.services.audit.keys import key_hash, key_hashes
from chatmemory.services.audit.macs import utc_text
from chatmemory.services.derived.removal import (
    clean_up,
    count_derived,
    count_person_rows,
    delete_person_rows,
)
from chatmemory.services.erasure.erasure_list import (
    Identity,
    identity,
    list_erasure,
)
from chatmemory.services.removal.deletions import Deletion, count_before_deletion
from chatmemory.services.removal.floor import mark_removed, move_epoch
from chatmemory.services.removal.vacuum import vacuum_session
from chatmemory.services.removal.visitors import end_visitor, forget_person_rows

# Note [Order of an erasure]
#
# 1. The erasure list gets a line, so that a restored backup can be erased again.
# 2. The audit gets a start entry, so that a later call can continue an interrupted erasure.
# 3. A visitor ends. All sessions of the visitor are erased, also those that opened until then:
#    later no one could erase them.
# 4. Each session is hidden, with an entry in the same transaction, and then deleted in chunks.
# 5. What other apps stored of the person is deleted, and what their tombstones name.
# 6. The audit gets the receipt, which counts the entries of the deleted sessions.
# 7. The rows of the visitor, and the tickets, are deleted.
#
# A crash after any step loses nothing: the next call finds the start entry without a receipt. The
# line is first, since a session that is deleted but not listed would return after a restore.


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What an erasure deleted, or would delete."""

    sessions: int
    messages: int
    turns: int
    derived: int = 0
    """Rows of other apps that were made from the messages, follow the sessions or are about the
    person."""
    held: dict[int, str]
    """Primary key and key of each session on hold, which stays."""
    entry: AuditEntry | None = field(default=None)
    """The receipt in the audit; None in a preview."""


def erase_person(
    *, by: Actor, reason: str, scope: str | None = None, progress: Progress | None = None
) -> Erased:
    """Delete all sessions of a person permanently, with titles, messages and turns.

    This includes expired, purged and partly imported sessions. A session on hold stays, and the
    receipt lists it. Running turns end, and so does a visitor. If the call is interrupted, call it
    again: the receipt then also counts what the first call deleted. `progress` is called with the
    number of sessions that are done, and with their total.
    Raises BadInput, MemoryUnavailable (also if the erasure list cannot be written).
    """
    check_reason(reason)
    person = person_for(by, scope)
    interrupted = _interrupted(person)
    erasure_id = interrupted[-1].counts["erasure"] if interrupted else uuid.uuid4().hex
    erasure = Erasure(erasure_id, key_hash(person), by, reason, is_of_all=True)
    newest = durably(Session.objects.order_by("-pk").first, is_repeatable=True)
    # Read after the newest session, so that no erased session was created later than this time.
    erased_at = durably(lambda: database_now(write_connection()), is_repeatable=True)
    existed = Q(pk__lte=newest.pk if newest else 0)
    return _erase_all(erasure, person, existed, erased_at, progress)


def erase_person_soon(*, by: Actor, reason: str, scope: str | None = None) -> None:
    """Erase a person as `erase_person` does, on a thread of the pool after the commit.

    Use it only in a server process: the end of a process stops that thread, and the erasure stays
    without a receipt until it is called again. Raises BadInput.
    """
    check_reason(reason)
    person = person_for(by, scope)
    erase = partial(erase_person, by=by, reason=reason, scope=person)
    call_after_commit(partial(call_soon, erase))


def erase_sessions(person: str, only: Q, by: Actor, reason: str) -> Erased:
    """Erase the sessions of a person that match a condition, with a receipt.

    First completes interrupted erasures: of all sessions up to the time of its start, then of some
    sessions. Raises MemoryUnavailable.
    """
    interrupted = _interrupted(person)
    done = []
    for start in filter(_is_of_all, interrupted):
        erasure = Erasure(start.counts["erasure"], key_hash(person), by, reason, is_of_all=True)
        existed = Q(created_at__lte=start.created_at)
        done.append(_erase_all(erasure, person, existed, start.created_at))
    of_some = [start for start in interrupted if not _is_of_all(start)]
    found = find_sessions(person, only)
    if found or of_some or not done:
        erasure_id = of_some[-1].counts["erasure"] if of_some else uuid.uuid4().hex
        erasure = Erasure(erasure_id, key_hash(person), by, reason)
        done.append(_erase_some(erasure, person, only, found))
    return Erased(**combined_counts(done), entry=done[-1].entry)


def combined_counts(done: Sequence[Erased]) -> dict[str, Any]:
    """Return what several erasures deleted together, as the fields of `Erased`."""
    return {
        "sessions": sum(erased.sessions for erased in done),
        "messages": sum(erased.messages for erased in done),
        "turns": sum(erased.turns for erased in done),
        "derived": sum(erased.derived for erased in done),
        "held": dict(sorted(chain.from_iterable(erased.held.items() for erased in done))),
    }


def _erase_all(
    erasure: Erasure,
    person: str,
    existed: Q,
    erased_at: datetime,
    progress: Progress | None = None,
) -> Erased:
    list_erasure(erasure.id, person, erased_at, None)  # Note [Order of an erasure]
    erasure.open()
    end_visitor(person)
    if visitor_of(person) is not None:
        existed = Q()
    pks = in_batches(stored_sessions_of(person).filter(existed), progress)
    held = erasure.erase(pks, existed)
    erased = erasure.close(held, erased_at, delete_person_rows(person))
    forget_person_rows(person)
    return erased


def _erase_some(
    erasure: Erasure, person: str, only: Q, found: dict[Identity, str | None]
) -> Erased:
    erased_at = durably(lambda: database_now(write_connection()), is_repeatable=True)
    listed = [session for session, held_key in found.items() if held_key is None]
    list_erasure(erasure.id, person, erased_at, listed)  # Note [Order of an erasure]
    erasure.open()
    # Only the listed sessions: another one would return after a database restore and a replay.
    held = {pk: key for (pk, _), key in found.items() if key is not None}
    held |= erasure.erase((pk for pk, _ in listed), only)
    return erasure.close(held, erased_at)


def find_sessions(person: str, only: Q) -> dict[Identity, str | None]:
    """Return the sessions of a person that match a condition, with the keys of those on hold."""
    sessions = stored_sessions_of(person).filter(only).order_by("pk")
    rows = sessions.values_list("pk", "created_at", "held_at", "key")
    found = durably(lambda: list(rows), is_repeatable=True)
    return {
        identity(pk, created_at): None if held_at is None else key
        for pk, created_at, held_at, key in found
    }


def stored_sessions_of(person: str) -> SessionQuerySet:
    """Select all sessions of a person: also expired, purged and partly imported ones."""
    return Session.objects.of_scopes(*all_scopes_of(person))


@retried(is_repeatable=True)
def preview_erasure(*, by: Actor, scope: str | None = None) -> Erased:
    """Count what an erasure would delete now. Raises BadInput, MemoryUnavailable."""
    person = person_for(by, scope)
    found = stored_sessions_of(person)
    keys = list(found.order_by("pk").values_list("pk", "key", "held_at"))
    held = {pk: key for pk, key, held_at in keys if held_at is not None}
    free = found.filter(held_at__isnull=True)
    return Erased(
        sessions=len(keys) - len(held),
        messages=Message.stored.filter(session__in=free).count(),
        turns=Turn.objects.filter(session__in=free).count(),
        derived=count_derived(free) + count_person_rows(person),
        held=held,
    )


@dataclass(frozen=True, slots=True)
class Erasure:
    """An erasure, whose entries in the audit share its id.

    `open` records the start. Each session gets an entry in the transaction that hides it. `close`
    records the receipt with the totals of the entries of deleted sessions. So the receipt is right
    after any number of interruptions, and with concurrent calls: each call writes a receipt, and
    the last receipt has the total. Only the rows of other apps about the person are counted by the
    call that deletes them, since no entry records them before.
    """

    id: str
    person: str
    """The keyed hash of the person's scope."""
    by: Actor
    reason: str
    is_of_all: bool = False
    """Whether it erases all sessions of the person."""

    @retried(is_repeatable=True)
    def open(self) -> None:
        """Record the start, unless an earlier, interrupted call recorded it."""
        starts = list(self._starts())
        if not starts or (self.is_of_all and not any(map(_is_of_all, starts))):
            of = {"of": "all"} if self.is_of_all else {}
            record_hashed(
                self.person,
                AuditAction.ERASURE_STARTED,
                self.by,
                self.reason,
                erasure=self.id,
                **of,
            )

    def erase(self, pks: Iterable[int], only: Q) -> dict[int, str]:
        """Erase these sessions if they match a condition; return the held ones with their keys."""
        held_keys = ((pk, self._erase_session(pk, only)) for pk in pks)
        held = {pk: key for pk, key in held_keys if key is not None}
        for pk in durably(lambda: list(self._undeleted()), is_repeatable=True):
            _delete_session(pk)
        return held

    def close(self, held: dict[int, str], erased_at: datetime, person_rows: int = 0) -> Erased:
        """Record the receipt; a user's sessions created after `erased_at` were not erased.

        `person_rows` is the number of derived rows of the person that were deleted.
        """
        clean_up()
        return self._record_receipt(held, erased_at, person_rows)

    @retried(is_repeatable=False)
    def _record_receipt(
        self, held: dict[int, str], erased_at: datetime, person_rows: int
    ) -> Erased:
        counts = self._totals()
        counts["derived"] += person_rows
        held = dict(sorted(held.items()))
        entry = record_hashed(
            self.person,
            AuditAction.ERASE,
            self.by,
            self.reason,
            **{name: count for name, count in counts.items() if name != "derived" or count},
            held=[*held],  # not their keys, which can contain personal data
            erasure=self.id,
            erased_at=utc_text(erased_at),
        )
        return Erased(**counts, held=held, entry=entry)

    def _starts(self) -> QuerySet[AuditEntry]:
        starts = AuditEntry.objects.filter(
            session_pk__isnull=True, action=AuditAction.ERASURE_STARTED
        )
        return starts.filter(counts__erasure=self.id).order_by("pk")

    def _session_entries(self) -> QuerySet[AuditEntry]:
        start_pk = self._starts().values_list("pk", flat=True).first()
        return _session_entries([self.id], after=start_pk or 0)

    def _undeleted(self) -> QuerySet[AuditEntry, Any]:
        """Return the sessions that are hidden and not deleted, as after an interruption."""
        return self._session_entries().filter(_is_stored()).values_list("session_pk", flat=True)

    def _totals(self) -> dict[str, int]:
        # A session that a concurrent call has hidden and not deleted yet is in that call's receipt.
        deleted = self._session_entries().filter(~_is_stored())
        totals = {"sessions": 0, "messages": 0, "turns": 0, "derived": 0}
        for counts in deleted.values_list("counts", flat=True):
            totals["sessions"] += 1
            totals["messages"] += counts["messages"]
            totals["turns"] += counts["turns"]
            totals["derived"] += counts.get("derived", 0)
        return totals

    def _erase_session(self, session_pk: int, only: Q) -> str | None:
        """Erase a session; return its key if it is on hold."""
        try:
            held_key = self._hide_session(session_pk, only)
        except NotFound:
            return None
        if held_key is None:
            _delete_session(session_pk)
        return held_key

    @retried(is_repeatable=True)
    def _hide_session(self, session_pk: int, only: Q) -> str | None:
        """Hide a session and record it; return its key if it is on hold. Raises NotFound."""
        with locked_transaction():
            session = lock_pk(session_pk)
            if session.held_at is not None:
                key: str = session.key
                return key
            if not is_erased(session_pk):
                if not Session.objects.filter(only, pk=session_pk).exists():
                    raise NotFound  # changed since it was listed
                begin_erasure(session, self.by, self.reason, self.id)
            return None


def _delete_session(session_pk: int) -> None:
    """Delete a session whose erasure has hidden it."""
    is_more = True
    while is_more:
        _, is_more = vacuum_session(session_pk)


def begin_erasure(session: Session, by: Actor, reason: str, erasure_id: str) -> None:
    """Hide a session permanently; vacuum deletes it without delay. Needs the lock."""
    move_epoch(session)  # Note [Floor and epoch]: a run must not write to it any more
    session.turns.update(asked="", partial="")
    session.tags.all().delete()
    session.notes.all().delete()
    feedback = session.feedback.all()
    count_before_deletion(Deletion(feedback=feedback))
    feedback.delete()
    _empty_jobs(session)
    # Not deleted, so that the job still counts the session. Other items contain no address.
    items = JobItem.objects.filter(job__in=Job.objects.active(), session_pk=session.pk, outcome="")
    items.update(**JobItem.end_columns("erased"))
    if session.removed_at is None:
        mark_removed(session)
    derived = count_derived(session.pk)
    record(
        session,
        AuditAction.ERASE,
        by,
        reason,
        from_seq=session.stored_from,
        to_seq=session.last_seq,
        messages=Message.stored.filter(session=session).count(),
        turns=session.turns.count(),
        erasure=erasure_id,
        **({"derived": derived} if derived else {}),
    )
    Session.objects.filter(pk=session.pk).update(
        first_seq=F("last_seq") + 1,
        revision=F("revision") + 1,
        title="",
        instructions="",
        metadata={},
        owner=None,
        origin=None,
        origin_row=None,
    )
    announce_change(session.pk)


def _empty_jobs(session: Session) -> None:
    """Empty the texts of the ended jobs of a session; an active one does so at its end.

    Needs the session's lock.
    """
    jobs = Job.objects.filter(
        Exists(JobItem.objects.filter(job=OuterRef("pk"), session_pk=session.pk))
    )
    # The lock first: a job that ends meanwhile does not see this erasure.
    if jobs.update(fence=F("fence")):
        jobs.exclude(status__in=Job.ACTIVE_STATUSES).update(**Job.EMPTY_TEXTS)


@retried(is_repeatable=True)
def _interrupted(person: str) -> list[AuditEntry]:
    """Return the start entries of this person's incomplete erasures, oldest first.

    An erasure is incomplete if it has no receipt, or if an interrupted call erased more than the
    receipt of another call counts.
    """
    of_person = AuditEntry.objects.filter(session_pk__isnull=True, key_hash__in=key_hashes(person))
    entries = of_person.filter(
        action__in=(AuditAction.ERASURE_STARTED, AuditAction.ERASE)
    ).order_by("pk")
    starts: dict[str, AuditEntry] = {}
    in_receipt: dict[str, int] = {}  # the highest number of sessions that a receipt counts
    for entry in entries:
        erasure_id = entry.counts["erasure"]
        if entry.action == AuditAction.ERASURE_STARTED:
            starts[erasure_id] = entry
        else:
            in_receipt[erasure_id] = max(entry.counts["sessions"], in_receipt.get(erasure_id, 0))
    if not starts:
        return []
    of_sessions = _session_entries([*starts], after=entries[0].pk)
    erased = Counter(of_sessions.values_list("counts__erasure", flat=True))
    return [
        start
        for erasure_id, start in starts.items()
        if erasure_id not in in_receipt or in_receipt[erasure_id] < erased[erasure_id]
    ]


def _is_of_all(start: AuditEntry) -> bool:
    return bool(start.counts.get("of") == "all")


def _is_stored() -> Exists:
    return Exists(Session.objects.filter(pk=OuterRef("session_pk")))


def _session_entries(erasure_ids: list[str], *, after: int) -> QuerySet[AuditEntry]:
    """Return the entries of the sessions that these erasures erased, after the entry `after`.

    The primary key bounds the search: `counts`, which is JSON, has no index.
    """
    return AuditEntry.objects.filter(
        pk__gt=after,
        action=AuditAction.ERASE,
        session_pk__isnull=False,
        counts__erasure__in=erasure_ids,
    )
