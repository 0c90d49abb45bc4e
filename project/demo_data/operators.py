"""What the operators did with the example conversations, by the services, at times in the past."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

from django.contrib.auth.models import User

from chatmemory import services
from chatmemory.models import AuditEntry, Job, JobAction, JobItem, Session, SessionNote, SessionTag
from chatmemory.services import Actor
from chatmemory.services.audit.entries import record_refusal
from chatmemory.services.audit.macs import mac_of
from chatmemory.services.audit.readings import record_reading
from chatmemory.services.jobs.actions import permission_of
from chatmemory.services.jobs.claims import claim_of
from chatmemory.services.jobs.create import Order, create_job, undo_job
from chatmemory.services.jobs.run import cancel_job, run_slice
from project.demo_data.rows import LEASE, OWNER, Conversation

JOB_SIZE = 12
"""Conversations of a job."""
UNTIL_UNDO = timedelta(minutes=25)
TIMES = {"hold": "held_at", "archive": "archived_at", "purge": "removed_at"}
"""The columns in which actions store their time."""


@dataclass(frozen=True, slots=True)
class Deed:
    """What an operator did, this number of days ago."""

    days: float
    action: str
    text: str = ""
    """The reason, the note or the tag."""
    undo: str = ""
    """The reason for which it was undone."""
    topic: str = ""
    """What the conversation is about; empty for any."""


DEEDS: Sequence[Deed] = (
    Deed(39.2, "trim", "Closed orders from before the move"),
    Deed(34.3, "tag", "vip"),
    Deed(31.1, "note", "Called the customer: the new parcel arrives on Monday.", topic="complaint"),
    Deed(28.9, "archive", "Solved by phone"),
    Deed(28.2, "purge", "The customer asked for it by e-mail", "It was the wrong customer"),
    Deed(27.4, "tag", "refund", topic="returns"),
    Deed(26.3, "redact", "A card number", topic="returns"),
    Deed(25.2, "read"),
    Deed(24.6, "trim", "The customer shared an address of another person"),
    Deed(23.3, "export", "A request of the customer for a copy"),
    Deed(22.2, "hold", "A dispute about the payment", topic="complaint"),
    Deed(22.1, "note", "The dispute is with our lawyer; do not delete it.", topic="complaint"),
    Deed(21.2, "tag", "complaint", topic="complaint"),
    Deed(20.9, "read"),
    Deed(19.3, "job", JobAction.ARCHIVE),
    Deed(18.1, "clear", "Started again after a wrong language"),
    Deed(17.3, "note", "Asks for an invoice every month. The bot cannot send it yet."),
    Deed(16.4, "purge", "Test of a colleague"),
    Deed(15.1, "rename", "The third complaint about this order", topic="complaint"),
    Deed(14.2, "tag", "refund", topic="returns"),
    Deed(13.3, "job", JobAction.PURGE, "The filter was wrong: these are real customers"),
    Deed(12.2, "refused", "purge_history"),
    Deed(11.4, "read"),
    Deed(10.3, "trim", "Too long for the model", "The older orders are still needed"),
    Deed(9.2, "note", "The hours of this shop change in spring. The bot must know.", topic="hours"),
    Deed(8.4, "redact", "A phone number of another person", topic="person"),
    Deed(7.3, "tag", "complaint", topic="complaint"),
    Deed(6.9, "read"),
    Deed(6.2, "hold", "The product may be dangerous", topic="complaint"),
    Deed(5.9, "clear", "Asked for by the customer", "The customer changed their mind"),
    Deed(5.1, "archive", "A duplicate"),
    Deed(4.3, "job", JobAction.TAG),
    Deed(3.9, "trim", "A private matter"),
    Deed(3.2, "purge", "Only insults"),
    Deed(2.4, "note", "Waits for a call back, see the ticket.", topic="person"),
    Deed(2.1, "read"),
    Deed(1.8, "cancelled_job", JobAction.CLEAR),
    Deed(1.3, "tag", "vip"),
    Deed(1.2, "archive", "Solved"),
    Deed(0.9, "redact", "A password"),
    Deed(0.6, "purge", "The customer asked for it in the chat"),
    Deed(0.4, "note", "Answered well. An example for new colleagues."),
    Deed(0.2, "read"),
    Deed(0.002, "running_job", JobAction.TAG),
)

JOBS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    JobAction.ARCHIVE: ("Older than three weeks, and solved", {}),
    JobAction.PURGE: ("Tests of the new bot", {}),
    JobAction.TAG: ("Samples for the report of the month", {"tag": "sample"}),
    JobAction.CLEAR: ("Spam of last week", {}),
}
"""The reason and the arguments of the job of each action."""


class Desk:
    """Two operators, and the conversations on which none has acted yet."""

    def __init__(
        self,
        conversations: Iterable[Conversation],
        operators: Sequence[User],
        now: datetime,
        rng: Random,
    ) -> None:
        self._now, self._rng = now, rng
        self._operators = [Actor.operator(user) for user in operators]
        usual = (one.session for one in conversations if 2 <= len(one.turns) <= 50)
        self._free = [one for one in usual if not (one.running or one.expires_at)]
        rng.shuffle(self._free)

    def work(self) -> None:
        """Do all deeds, the oldest first."""
        for deed in DEEDS:
            when = self._now - timedelta(days=deed.days)
            if deed.action.endswith("job"):
                getattr(self, f"_{deed.action}")(deed, when)
                continue
            session, by = self._pick(when, deed.topic), self._rng.choice(self._operators)
            call: dict[str, Any] = {"session_key": session.key, "scope": session.scope, "by": by}
            entry = getattr(self, f"_{deed.action}")(deed, session, call)
            _date_entries([entry or _last_entry()], when)
            if column := TIMES.get(deed.action):
                Session.objects.filter(pk=session.pk).update(**{column: when})
            SessionNote.objects.filter(session=session).update(created_at=when)
            SessionTag.objects.filter(session=session).update(created_at=when)
            if deed.undo:
                undone = services.restore_session(
                    entry_pk=entry.pk, by=by, reason=deed.undo, scope=session.scope
                )
                _date_entries([undone], when + UNTIL_UNDO)

    def _pick(self, before: datetime, topic: str = "") -> Session:
        """Take a conversation that had ended by then, if possible shortly before and on a topic."""
        ages = {
            session: before - session.last_message_at
            for session in self._free
            if session.last_message_at and session.last_message_at < before
        }

        def rank(session: Session) -> tuple[bool, int]:
            return topic not in ("", session.metadata["topic"]), ages[session].days // 4

        session = min(ages, key=rank)
        self._free.remove(session)
        return session

    def _trim(self, deed: Deed, session: Session, call: dict[str, Any]) -> AuditEntry | None:
        return services.trim_session(**call, reason=deed.text, keep_turns=1)

    def _clear(self, deed: Deed, session: Session, call: dict[str, Any]) -> AuditEntry:
        return services.clear_session(**call, reason=deed.text)

    def _purge(self, deed: Deed, session: Session, call: dict[str, Any]) -> AuditEntry:
        return services.purge_session(**call, reason=deed.text)

    def _hold(self, deed: Deed, session: Session, call: dict[str, Any]) -> AuditEntry | None:
        return services.hold_session(**call, reason=deed.text)

    def _archive(self, deed: Deed, session: Session, call: dict[str, Any]) -> AuditEntry | None:
        return services.archive_session(**call, reason=deed.text)

    def _redact(self, deed: Deed, session: Session, call: dict[str, Any]) -> AuditEntry | None:
        return services.redact_message(**call, reason=deed.text, seq=1)

    def _note(self, deed: Deed, session: Session, call: dict[str, Any]) -> AuditEntry | None:
        return services.add_note(**call, text=deed.text)

    def _tag(self, deed: Deed, session: Session, call: dict[str, Any]) -> AuditEntry | None:
        return services.tag_session(**call, tag=deed.text, reason="")

    def _rename(self, deed: Deed, session: Session, call: dict[str, Any]) -> None:
        services.update_session(**call, title=deed.text)

    def _export(self, deed: Deed, session: Session, call: dict[str, Any]) -> None:
        services.begin_export(**call, format="jsonl", reason=deed.text)

    def _refused(self, deed: Deed, session: Session, call: dict[str, Any]) -> None:
        record_refusal(by=call["by"], permission=deed.text, session=session)

    def _read(self, deed: Deed, session: Session, call: dict[str, Any]) -> None:
        record_reading(session=session, by=call["by"], from_seq=1, to_seq=session.last_seq)

    def _job(self, deed: Deed, when: datetime) -> None:
        """Execute a job to its end, and undo it if the deed says so."""
        job = self._create_job(deed, when)
        run_slice(claim_of(job), seconds=60)
        _date_job(job, when)
        if deed.undo:
            everything = Session.objects.all()
            order = self._order(JobAction.RESTORE, deed.undo)
            undo = undo_job(job=_fresh(job), sessions=everything, order=order)
            run_slice(claim_of(undo), seconds=60)
            _date_job(undo, when + UNTIL_UNDO)

    def _cancelled_job(self, deed: Deed, when: datetime) -> None:
        job = self._create_job(deed, when)
        run_slice(claim_of(job), seconds=0)
        cancel_job(job_pk=job.pk, by=self._operators[0])
        _date_job(job, when)
        Job.objects.filter(pk=job.pk).update(cancel_requested_at=when + timedelta(seconds=2))

    def _running_job(self, deed: Deed, when: datetime) -> None:
        """Let a job stay under way, until the lease of its process ends."""
        job = self._create_job(deed, when)
        for _ in range(JOB_SIZE // 2):
            run_slice(claim_of(job), seconds=0)
        _date_job(job, when)
        Job.objects.filter(pk=job.pk).update(lease_owner=OWNER, lease_until=self._now + LEASE)

    def _create_job(self, deed: Deed, when: datetime) -> Job:
        pks = [self._pick(when).pk for _ in range(JOB_SIZE)]
        reason, params = JOBS[deed.text]
        sessions = Session.objects.filter(pk__in=pks)
        order = self._order(deed.text, reason)
        return create_job(action=deed.text, sessions=sessions, order=order, params=params)

    def _order(self, action: str, reason: str) -> Order:
        permissions = (permission_of(action),)
        return Order(by=self._operators[0], reason=reason, permissions=permissions, owner=OWNER)


def _last_entry() -> AuditEntry:
    return AuditEntry.objects.order_by("-pk")[0]


def _fresh(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def _date_entries(entries: Iterable[AuditEntry], when: datetime) -> None:
    """Move entries back in time, a second apart. They are not sealed yet, so a new MAC is valid."""
    for number, entry in enumerate(entries):
        entry.created_at = when + timedelta(seconds=number)
        entry.mac = mac_of(entry)
        entry.save(update_fields=["created_at", "mac"])


def _date_job(job: Job, when: datetime) -> None:
    """Move a job and what it did back in time."""
    done = JobItem.objects.filter(job=job, outcome=JobItem.DONE).order_by("pk")
    entries = AuditEntry.objects.filter(pk__in=done.values("entry_pk")).order_by("pk")
    _date_entries(entries, when + timedelta(seconds=1))
    sessions = Session.objects.filter(pk__in=done.values("session_pk"))
    if column := TIMES.get(job.action):
        sessions.filter(**{f"{column}__isnull": False}).update(**{column: when})
    SessionTag.objects.filter(session__in=sessions, tag=job.params.get("tag")).update(
        created_at=when
    )
    Job.objects.filter(pk=job.pk).update(created_at=when, started_at=when + timedelta(seconds=1))
    ended = Job.objects.filter(pk=job.pk, ended_at__isnull=False)
    ended.update(ended_at=when + timedelta(seconds=4))
