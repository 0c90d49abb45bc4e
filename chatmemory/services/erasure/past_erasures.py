"""Past erasures: find a person's, and replay the erasures that a restored database lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any

from django.db.models import Q, QuerySet

from chatmemory.access.actors import Actor, person_for, person_of, visitor_of
from chatmemory.database.batches import in_batches, in_pages
from chatmemory.database.retries import durably, retried
from chatmemory.models import AuditAction, AuditEntry, Session
from chatmemory.services.audit.entries import check_reason
from chatmemory.services.audit.keys import audit_keys, key_hash, key_hashes, key_id, keyed_hash
from chatmemory.services.audit.macs import key_id_of, utc_text
from chatmemory.services.derived.removal import delete_person_rows, person_models
from chatmemory.services.erasure.erasure import (
    Erased,
    Erasure,
    combined_counts,
    find_sessions,
    stored_sessions_of,
)
from chatmemory.services.erasure.erasure_list import ListedErasure, listed_erasures
from chatmemory.services.removal.visitors import end_visitor, forget_person_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownErasure:
    """An erasure of a person, as the audit and the erasure list record it."""

    id: str
    begun_at: datetime
    completed_at: datetime | None = None
    """None if it was interrupted, or if a database restore lost its receipt."""
    by: str = ""
    """Label of the actor who completed or started it; empty if only the list records it."""
    reason: str = ""
    sessions: int = 0
    messages: int = 0
    held: list[int] = field(default_factory=list)
    """Primary keys of the sessions on hold, which stayed."""
    entry_pk: int | None = None
    """Primary key of the receipt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRecord:
    """The known erasures of a person, and what is stored now."""

    erasures: list[KnownErasure]
    """Oldest first."""
    sessions: int
    """Number of sessions that are stored now."""
    unknown_key: int
    """Number of erasures hashed with an unknown key: each may be of this person."""


@retried(is_repeatable=True)
def find_erasures(*, by: Actor, scope: str | None = None) -> ErasureRecord:
    """Find the erasures of a person, in the audit and on the erasure list.

    Persons are recognized under `AUDIT_KEY` and its fallbacks. Raises BadInput, MemoryUnavailable.
    """
    person = person_for(by, scope)
    hashes = key_hashes(person)
    listed, _ = listed_erasures()
    known_keys = {key_id(key) for key in audit_keys()}
    found = {
        line.id: KnownErasure(id=line.id, begun_at=line.erased_at)
        for line in listed
        if line.person in hashes
    }
    unknown = {line.id for line in listed if line.key_id not in known_keys}
    entries = AuditEntry.objects.filter(
        session_pk__isnull=True, action__in=(AuditAction.ERASURE_STARTED, AuditAction.ERASE)
    )
    for entry in in_pages(entries):
        erasure_id = entry.counts["erasure"]
        if entry.key_hash in hashes:
            found[erasure_id] = _known_erasure(entry, found.get(erasure_id))
        elif key_id_of(entry) not in known_keys:
            unknown.add(erasure_id)
    return ErasureRecord(
        erasures=sorted(found.values(), key=lambda erasure: erasure.begun_at),
        sessions=stored_sessions_of(person).count(),
        unknown_key=len(unknown),
    )


@retried(is_repeatable=True)
def find_erasures_of_key(*, session_key: str) -> list[KnownErasure]:
    """Find the erasures that deleted a session with this key, oldest first.

    The audit keeps only a hash of the key, so it answers also if the person is not known any more.
    Raises MemoryUnavailable.
    """
    of_key = AuditEntry.objects.filter(
        action=AuditAction.ERASE, session_pk__isnull=False, key_hash__in=key_hashes(session_key)
    )
    ids = set(of_key.values_list("counts__erasure", flat=True))
    entries = AuditEntry.objects.filter(
        session_pk__isnull=True, action__in=(AuditAction.ERASURE_STARTED, AuditAction.ERASE)
    )
    found: dict[str, KnownErasure] = {}
    for entry in entries.filter(counts__erasure__in=ids).order_by("pk"):
        erasure_id = entry.counts["erasure"]
        found[erasure_id] = _known_erasure(entry, found.get(erasure_id))
    return sorted(found.values(), key=lambda erasure: erasure.begun_at)


@retried(is_repeatable=True)
def count_unknown_erasures() -> int:
    """Count the erasures that the audit hashed with a key that is not in the settings.

    Each of them may have deleted a session for which `find_erasures_of_key` finds none. Raises
    MemoryUnavailable.
    """
    known_keys = {key_id(key) for key in audit_keys()}
    entries = AuditEntry.objects.filter(
        session_pk__isnull=True, action__in=(AuditAction.ERASURE_STARTED, AuditAction.ERASE)
    )
    return len(
        {
            entry.counts["erasure"]
            for entry in in_pages(entries)
            if key_id_of(entry) not in known_keys
        }
    )


def _known_erasure(entry: AuditEntry, earlier: KnownErasure | None) -> KnownErasure:
    """Combine a start entry or a receipt with the time of an earlier record."""
    is_receipt = entry.action == AuditAction.ERASE
    counts = entry.counts
    return KnownErasure(
        id=counts["erasure"],
        begun_at=earlier.begun_at if earlier else entry.created_at,
        completed_at=entry.created_at if is_receipt else None,
        by=entry.actor_label,
        reason=entry.reason,
        sessions=counts.get("sessions", 0),
        messages=counts.get("messages", 0),
        held=counts.get("held", []),
        entry_pk=entry.pk if is_receipt else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay of the erasure list repeated and skipped."""

    erasures: int
    """Number of erasures without a receipt in this database, which were repeated."""
    known: int
    """Number of erasures whose receipt is already in this database."""
    sessions: int
    messages: int
    turns: int
    derived: int = 0
    """Rows of other apps that were made from the messages or belong to the person."""
    held: dict[int, str]
    """Primary key and key of each session on hold, which stays."""
    unreadable: int
    """Number of invalid lines, such as a line truncated by an interrupted write."""
    unknown_key: int
    """Number of erasures hashed with an unknown key, which were not repeated."""


def replay_erasures(*, by: Actor, reason: str = "replayed after a restore") -> Replayed:
    """Repeat the erasures of `ERASURE_LIST` that this database does not know.

    Call this after the restore of a backup. Only sessions created before the erasure are erased;
    of a visitor, all. Each erasure gets a new receipt, so a repeated call erases nothing.
    Raises BadInput, MemoryUnavailable.
    """
    check_reason(reason)
    listed, unreadable = listed_erasures()
    receipts = durably(_receipts, is_repeatable=True)
    missing: dict[str, list[ListedErasure]] = {}
    for line in sorted(listed, key=lambda line: line.erased_at):
        # A receipt proves only what was erased up to its time, see `_receipts`.
        if receipts.get(line.id, "") < utc_text(line.erased_at):
            missing.setdefault(line.id, []).append(line)
    known_keys = {key_id(key) for key in audit_keys()}
    due = {
        erasure_id: lines
        for erasure_id, lines in missing.items()
        if any(line.key_id in known_keys for line in lines)
    }
    due_lines = list(chain(*due.values()))
    scopes = durably(lambda: _scopes_by_hash(due_lines), is_repeatable=True)
    done = [_replay_one(lines, scopes, by, reason) for lines in due.values()]
    return Replayed(
        erasures=len(due),
        known=len({line.id for line in listed}) - len(missing),
        **combined_counts(done),
        unreadable=unreadable,
        unknown_key=len(missing) - len(due),
    )


def _receipts() -> dict[str, str]:
    """Return the time up to which each erasure erased sessions, by its latest receipt.

    Concurrent calls continue the same interrupted erasure. The receipt of the first call does not
    prove what the second call erased.
    """
    receipts = AuditEntry.objects.filter(session_pk__isnull=True, action=AuditAction.ERASE)
    times = receipts.values_list("counts__erasure", "counts__erased_at")
    # In the order of the times, so that the latest of each erasure remains in the dict.
    return dict(sorted(times, key=lambda found: found[1]))


def _scopes_by_hash(listed: Collection[ListedErasure]) -> dict[str, str]:
    """Return the scopes in this database of the listed persons, by their hash."""
    wanted = {erasure.person for erasure in listed}
    used = {erasure.key_id for erasure in listed}
    keys = [key for key in audit_keys() if key_id(key) in used]
    found: dict[str, str] = {}
    columns: list[tuple[QuerySet[Any, Any], str]] = [
        (Session.objects.all(), "scope"),
        (Session.objects.all(), "removed_scope"),
        *((model.objects.get_queryset(), "scope") for model in person_models()),
    ]
    for rows, column in columns:
        scopes = rows.values_list(column, flat=True).distinct()
        for scope in in_pages(scopes, column, str):
            person = person_of(scope)
            hashes = (keyed_hash(person, key) for key in keys)
            found.update((hashed, person) for hashed in hashes if hashed in wanted)
    return found


def _replay_one(
    lines: list[ListedErasure], scopes: dict[str, str], by: Actor, reason: str
) -> Erased:
    """Repeat an erasure line by line; if the person has no sessions, write only the receipt."""
    person = next((scopes[line.person] for line in lines if line.person in scopes), None)
    is_of_all = any(line.sessions is None for line in lines)
    hashed = key_hash(person) if person else lines[-1].person
    erasure = Erasure(lines[-1].id, hashed, by, reason, is_of_all=is_of_all)
    erasure.open()
    held: dict[int, str] = {}
    if person is not None:
        if is_of_all:
            end_visitor(person)
        for line in lines:
            # Note [Order of an erasure]: all sessions of a visitor.
            is_visitor = line.sessions is None and visitor_of(person) is not None
            existed = Q() if is_visitor else Q(created_at__lte=line.erased_at)
            held |= erasure.erase(_sessions_in(line, person, existed), existed)
    person_rows = delete_person_rows(person) if person is not None and is_of_all else 0
    erased = erasure.close(held, lines[-1].erased_at, person_rows)
    if person is not None and is_of_all:
        forget_person_rows(person)
    return erased


def _sessions_in(line: ListedErasure, person: str, existed: Q) -> Iterable[int]:
    """Return the sessions in a line of the list that existed when it was written."""
    if line.sessions is None:
        return in_batches(stored_sessions_of(person).filter(existed))
    return [
        pk for pk, created_at in find_sessions(person, existed) if (pk, created_at) in line.sessions
    ]
