"""Erasure: deletes everything of a person immediately and for good."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import F, Q

from chatmemory.errors import NotFound
from chatmemory.models import AuditEntry, Session, Turn, database_now
from chatmemory.services.actors import Actor, person_for, person_of, spaces_of
from chatmemory.services.audit import check_reason, is_erased, record, record_hashed
from chatmemory.services.erasure_list import ListedErasure, list_erasure, listed_erasures
from chatmemory.services.faults import database, durably
from chatmemory.services.floor import mark_removed, move_epoch
from chatmemory.services.keys import audit_keys, key_hash, key_hashes, key_id, keyed_hash
from chatmemory.services.locks import lock_pk, unit
from chatmemory.services.macs import key_id_of, written
from chatmemory.services.news import tell
from chatmemory.services.pool import in_pool
from chatmemory.services.vacuum import vacuum_session
from chatmemory.services.walk import walk

BEGUN = "erase_begun"
"""The action of the entry that is written before the first delete of an erasure."""

RECEIPT = "erase"
"""The action of the entry that is written after the last, and of the one of each session."""

ALL = Q()


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What an erasure deleted, or would delete."""

    sessions: int
    messages: int
    turns: int
    held: list[int]
    """The primary keys of sessions on hold, which stay."""
    entry: AuditEntry | None = field(default=None)
    """The receipt in the audit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay of the erasure list did."""

    erasures: int
    """Erasures without a receipt in this database, which were repeated."""
    known: int
    """Erasures whose receipt is in this database already."""
    sessions: int
    messages: int
    turns: int
    held: list[int]
    """The primary keys of sessions on hold, which stay."""
    unreadable: int
    """Lines that are no erasure, such as one that an interrupted write cut off."""
    unknown_key: int
    """Erasures whose hash was made with a key that is not given: they were not repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownErasure:
    """An erasure of a person, as the audit and the erasure list record it."""

    id: str
    begun_at: datetime
    completed_at: datetime | None = None
    """None if it was interrupted, or if a restore lost its receipt."""
    by: str = ""
    """The person who completed it, or began it; empty if only the list records it."""
    reason: str = ""
    sessions: int = 0
    messages: int = 0
    held: list[int] = field(default_factory=list)
    """The primary keys of sessions on hold, which were kept."""
    entry_pk: int | None = None
    """The receipt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRecord:
    """The answer to "was this person erased?"."""

    erasures: list[KnownErasure]
    """The oldest first."""
    sessions: int
    """Sessions that are stored now."""
    unknown_key: int
    """Erasures, of any person, under a key that is not given: they may be of this person."""


def find_erasures(*, by: Actor, scope: str | None = None) -> ErasureRecord:
    """Find the erasures of a person, in the audit and on the erasure list.

    Persons are recognized under `AUDIT_KEY` and its fallbacks. Raises BadInput, MemoryUnavailable.
    """
    person = person_for(by, scope)
    hashes = key_hashes(person)
    listed, _ = listed_erasures()
    known_keys = {key_id(key) for key in audit_keys()}

    def work() -> ErasureRecord:
        acts = AuditEntry.objects.filter(session_pk__isnull=True, action__in=(BEGUN, RECEIPT))
        found = {line.id: _of_line(line) for line in listed if line.person in hashes}
        unknown = {line.id for line in listed if line.key_id not in known_keys}
        for entry in acts.order_by("pk").iterator():
            if entry.key_hash in hashes:
                begun = found.get(entry.counts["erasure"])
                found[entry.counts["erasure"]] = _of_entry(entry, begun)
            elif key_id_of(entry) not in known_keys:
                unknown.add(entry.counts["erasure"])
        return ErasureRecord(
            erasures=sorted(found.values(), key=lambda erasure: erasure.begun_at),
            sessions=Session.objects.of_scopes(*spaces_of(person)).count(),
            unknown_key=len(unknown),
        )

    return durably(work, is_repeatable=True)


def erase_person(*, by: Actor, reason: str, scope: str | None = None) -> Erased:
    """Delete all sessions of a person, with titles, messages and turns, for good.

    This includes expired and half-imported sessions and what could still be restored. A session
    on hold stays, and the receipt lists it. Running turns end. If the call is interrupted, call it
    again: the receipt then counts what the first call deleted, too.
    Raises BadInput, MemoryUnavailable (also if the erasure list cannot be written).
    """
    check_reason(reason)
    return erase_sessions(person_for(by, scope), ALL, by, reason)


def erase_sessions(person: str, only: Q, by: Actor, reason: str) -> Erased:
    """Erase the sessions of a scope that meet a condition, with a receipt.

    Continues an interrupted erasure. If that was of all sessions, those that existed then are
    erased too: else the receipt would state that it was completed.
    Raises MemoryUnavailable.
    """
    hashes = key_hashes(person)
    begun = _interrupted(hashes)
    erasure_id = begun.counts["erasure"] if begun else uuid.uuid4().hex
    erasure = _Erasure(erasure_id, hashes[0], by, reason, is_of_all=only == ALL)
    if only != ALL and begun and begun.counts.get("of") == "all":
        only |= Q(created_at__lte=begun.created_at)
    newest = durably(Session.objects.order_by("-pk").first, is_repeatable=True)
    # After the newest session was read, so that none of those erased was created later.
    erased_at = durably(lambda: database_now(database()), is_repeatable=True)
    list_erasure(erasure.id, person, erased_at)
    erasure.open()
    held = erasure.erase(person, only & Q(pk__lte=newest.pk if newest else 0))
    return erasure.close(held, erased_at)


def preview_erasure(*, by: Actor, scope: str | None = None) -> Erased:
    """What an erasure would delete now. Raises BadInput, MemoryUnavailable."""
    person = person_for(by, scope)

    def work() -> Erased:
        sessions = messages = turns = 0
        held = []
        found = Session.objects.of_scopes(*spaces_of(person))
        columns = found.values_list("pk", "held_at", F("last_seq") - F("stored_from") + 1)
        for session_pk, held_at, rows in columns.order_by("pk").iterator():
            if held_at is not None:
                held.append(session_pk)
                continue
            sessions += 1
            messages += rows
        turns = Turn.objects.filter(session__in=found.filter(held_at__isnull=True)).count()
        return Erased(sessions=sessions, messages=messages, turns=turns, held=held)

    return durably(work, is_repeatable=True)


def replay_erasures(*, by: Actor, reason: str = "replayed after a restore") -> Replayed:
    """Repeat the erasures of `ERASURE_LIST` that this database does not know.

    For the time after a backup was restored. Only sessions that were created before the erasure
    are erased, and each erasure gets its receipt again, so a second call does nothing.
    Raises BadInput, MemoryUnavailable.
    """
    check_reason(reason)
    listed, unreadable = listed_erasures()
    receipts = durably(_receipts, is_repeatable=True)
    by_time = sorted(listed, key=lambda erasure: erasure.erased_at)
    newest = {erasure.id: erasure for erasure in by_time}  # of repeated lines the last
    missing = {
        erasure_id: erasure
        for erasure_id, erasure in newest.items()
        if receipts.get(erasure_id, "") < written(erasure.erased_at)
    }
    known_keys = {key_id(key) for key in audit_keys()}
    due = [erasure for erasure in missing.values() if erasure.key_id in known_keys]
    scopes = durably(lambda: _scopes_by_hash(due), is_repeatable=True)
    done = [_replay(erasure, scopes.get(erasure.person), by, reason) for erasure in due]
    return Replayed(
        erasures=len(due),
        known=len(newest) - len(missing),
        sessions=sum(erased.sessions for erased in done),
        messages=sum(erased.messages for erased in done),
        turns=sum(erased.turns for erased in done),
        held=sorted({pk for erased in done for pk in erased.held}),
        unreadable=unreadable,
        unknown_key=len(missing) - len(due),
    )


@dataclass(frozen=True, slots=True)
class _Erasure:
    """An erasure, whose entries in the audit share its id.

    `open` writes the begin, each session gets an entry in the transaction that hides it, and
    `close` writes the receipt, with the totals of these entries. So the receipt is right however
    often the erasure was interrupted and continued.
    """

    id: str
    person: str
    """The keyed hash of the person's scope."""
    by: Actor
    reason: str
    is_of_all: bool = False
    """Whether it erases all sessions of the person."""

    def open(self) -> None:
        """Record the begin, unless an interrupted call did."""

        def work() -> None:
            if self._begun() is None:
                of = {"of": "all"} if self.is_of_all else {}
                record_hashed(self.person, BEGUN, self.by, self.reason, erasure=self.id, **of)

        durably(work, is_repeatable=True)

    def erase(self, person: str, only: Q) -> list[int]:
        """Erase the sessions of a scope that meet a condition; return those on hold, which stay."""
        sessions = Session.objects.of_scopes(*spaces_of(person)).filter(only)
        return [pk for pk in walk(sessions) if not self._erase_session(pk, only)]

    def close(self, held: list[int], erased_at: datetime) -> Erased:
        """Record the receipt, with the time up to which sessions were erased."""

        def work() -> Erased:
            counts = self._totals()
            entry = record_hashed(
                self.person,
                RECEIPT,
                self.by,
                self.reason,
                **counts,
                held=held,
                erasure=self.id,
                erased_at=written(erased_at),
            )
            return Erased(**counts, held=held, entry=entry)

        return durably(work, is_repeatable=False)

    def _begun(self) -> int | None:
        """The primary key of the begin."""
        begun = AuditEntry.objects.filter(session_pk__isnull=True, action=BEGUN)
        pks = begun.filter(counts__erasure=self.id).order_by("pk").values_list("pk", flat=True)
        return pks.first()

    def _totals(self) -> dict[str, int]:
        acts = AuditEntry.objects.filter(
            pk__gt=self._begun() or 0,
            action=RECEIPT,
            session_pk__isnull=False,
            counts__erasure=self.id,
        )
        totals = {"sessions": 0, "messages": 0, "turns": 0}
        for counts in acts.values_list("counts", flat=True).iterator():
            totals["sessions"] += 1
            totals["messages"] += counts["messages"]
            totals["turns"] += counts["turns"]
        return totals

    def _erase_session(self, session_pk: int, only: Q) -> bool:
        """Erase a session; False if it is on hold."""

        def begin() -> bool:
            with unit():
                session = lock_pk(session_pk)
                if session.held_at is not None:
                    return False
                if not is_erased(session_pk):
                    _check_still(session_pk, only)
                    begin_erasure(session, self.by, self.reason, self.id)
                return True

        try:
            if not durably(begin, is_repeatable=True):
                return False
        except NotFound:
            return True
        is_more = True
        while is_more:
            _, is_more = vacuum_session(session_pk)
        return True


def _check_still(session_pk: int, only: Q) -> None:
    """Check the condition again under the lock. Raises NotFound."""
    if not Session.objects.filter(only, pk=session_pk).exists():
        raise NotFound


def begin_erasure(session: Session, by: Actor, reason: str, erasure_id: str) -> None:
    """Hide a session for good; vacuum deletes it without delay. Needs the lock."""
    move_epoch(session)
    session.turns.update(asked="", partial="")
    session.tags.all().delete()
    if session.removed_at is None:
        mark_removed(session)
    record(
        session,
        RECEIPT,
        by,
        reason,
        from_seq=session.stored_from,
        to_seq=session.last_seq,
        messages=session.last_seq - session.stored_from + 1,
        turns=session.turns.count(),
        erasure=erasure_id,
    )
    Session.objects.filter(pk=session.pk).update(
        first_seq=F("last_seq") + 1,
        revision=F("revision") + 1,
        title="",
        instructions="",
        metadata={},
        owner=None,
    )
    tell(session.pk)


def _interrupted(hashes: list[str]) -> AuditEntry | None:
    """The begin of the last erasure of this person if it has no receipt."""

    def work() -> AuditEntry | None:
        of_person = AuditEntry.objects.filter(session_pk__isnull=True, key_hash__in=hashes)
        begun = of_person.filter(action=BEGUN).order_by("-pk").first()
        if begun is None:
            return None
        receipts = of_person.filter(action=RECEIPT, counts__erasure=begun.counts["erasure"])
        return None if receipts.exists() else begun

    return durably(work, is_repeatable=True)


def _of_line(line: ListedErasure) -> KnownErasure:
    return KnownErasure(id=line.id, begun_at=line.erased_at)


def _of_entry(entry: AuditEntry, begun: KnownErasure | None) -> KnownErasure:
    """What the begin or the receipt states, with what is known from earlier records."""
    is_receipt = entry.action == RECEIPT
    counts = entry.counts
    return KnownErasure(
        id=counts["erasure"],
        begun_at=begun.begun_at if begun else entry.created_at,
        completed_at=entry.created_at if is_receipt else None,
        by=entry.actor_label,
        reason=entry.reason,
        sessions=counts.get("sessions", 0),
        messages=counts.get("messages", 0),
        held=counts.get("held", []),
        entry_pk=entry.pk if is_receipt else None,
    )


def _receipts() -> dict[str, str]:
    """Up to when each erasure erased sessions, as its last receipt in this database states.

    Two calls at the same moment continue the same interrupted erasure. The receipt of the first
    does not prove what the second one erased.
    """
    receipts = AuditEntry.objects.filter(session_pk__isnull=True, action=RECEIPT)
    counts = receipts.values_list("counts__erasure", "counts__erased_at")
    return dict(sorted(counts.iterator(), key=lambda found: found[1]))


def _scopes_by_hash(listed: Iterable[ListedErasure]) -> dict[str, str]:
    """The scopes in this database of the persons on the list, by their hash."""
    wanted = {erasure.person for erasure in listed}
    used = {erasure.key_id for erasure in listed}
    keys = [key for key in audit_keys() if key_id(key) in used]
    found: dict[str, str] = {}
    for column in ("scope", "removed_scope"):
        scopes = Session.objects.order_by(column).values_list(column, flat=True).distinct()
        for scope in scopes.iterator():
            person = person_of(scope)
            hashes = (keyed_hash(person, key) for key in keys)
            found.update((hashed, person) for hashed in hashes if hashed in wanted)
    return found


def _replay(listed: ListedErasure, person: str | None, by: Actor, reason: str) -> Erased:
    """Repeat an erasure; of a person without sessions here, only the receipt."""
    erasure = _Erasure(listed.id, key_hash(person) if person else listed.person, by, reason)
    erasure.open()
    held = erasure.erase(person, Q(created_at__lte=listed.erased_at)) if person else []
    return erasure.close(held, listed.erased_at)


aerase_person = in_pool(erase_person)
apreview_erasure = in_pool(preview_erasure)
afind_erasures = in_pool(find_erasures)
areplay_erasures = in_pool(replay_erasures)
