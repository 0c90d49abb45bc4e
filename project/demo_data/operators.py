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
class Step:
    """What an operator did, this number of days ago."""

    days: float
    action: str
    text: str = ""
    """The reason, the note or the tag."""
    undo: str = ""
    """The reason for which it was undone."""
    topic: str = ""
    """What the conversation is about; empty for any."""


STEPS: Sequence[Step] = (
    Step(39.2, "trim", "Closed orders from before the move"),
    Step(34.3, "tag", "vip"),
    Step(31.1, "note", "Called the customer: the new parcel arrives on Monday.", topic="complaint"),
    Step(28.9, "archive", "Solved by phone"),
    Step(28.2, "purge", "The customer asked for it by e-mail", "It was the wrong customer"),
    Step(27.4, "tag", "refund", topic="returns"),
    Step(26.3, "redact", "A card number", topic="returns"),
    Step(25.2, "read"),
    Step(24.6, "trim", "The customer shared an address of another person"),
    Step(23.3, "export", "A request of the customer for a copy"),
    Step(22.2, "hold", "A dispute about the payment", topic="complaint"),
    Step(22.1, "note", "The dispute is with our lawyer; do not delete it.", topic="complaint"),
    Step(21.2, "tag", "complaint", topic="complaint"),
    Step(20.9, "read"),
    Step(19.3, "job", JobAction.ARCHIVE),
    Step(18.1, "clear", "Started again after a wrong language"),
    Step(17.3, "note", "Asks for an invoice every month. The bot cannot send it yet."),
    Step(16.4, "purge", "Test of a colleague"),
    Step(15.1, "rename", "The third complaint about this order", topic="complaint"),
    Step(14.2, "tag", "refund", topic="returns"),
    Step(13.3, "job", JobAction.PURGE, "The filter was wrong: these are real customers"),
    Step(12.2, "refused", "purge_history"),
    Step(11.4, "read"),
    Step(10.3, "trim", "Too long for the model", "The older orders are still needed"),
    Step(9.2, "note", "The hours of this shop change in spring. The bot must know.", topic="hours"),
    Step(8.4, "redact", "A phone number of another person", topic="person"),
    Step(7.3, "tag", "complaint", topic="complaint"),
    Step(6.9, "read"),
    Step(6.2, "hold", "The product may be dangerous", topic="complaint"),
    Step(5.9, "clear", "Asked for by the customer", "The customer changed their mind"),
    Step(5.1, "archive", "A duplicate"),
    Step(4.3, "job", JobAction.TAG),
    Step(3.9, "trim", "A private matter"),
    Step(3.2, "purge", "Only insults"),
    Step(2.4, "note", "Waits for a call back, see the ticket.", topic="person"),
    Step(2.1, "read"),
    Step(1.8, "cancelled_job", JobAction.CLEAR),
    Step(1.3, "tag", "vip"),
    Step(1.2, "archive", "Solved"),
    Step(0.9, "redact", "A password"),
    Step(0.6, "purge", "The customer asked for it in the chat"),
    Step(0.4, "note", "Answered well. An example for new colleagues."),
    Step(0.2, "read"),
    Step(0.002, "running_job", JobAction.TAG),
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
        """Do all steps, the oldest first."""
        for step in STEPS:
            when = self._now - timedelta(days=step.days)
            if step.action.endswith("job"):
                getattr(self, f"_{step.action}")(step, when)
                continue
            session, by = self._pick(when, step.topic), self._rng.choice(self._operators)
            call: dict[str, Any] = {"session_key": session.key, "scope": session.scope, "by": by}
            entry = getattr(self, f"_{step.action}")(step, session, call)
            _date_entries([entry or _last_entry()], when)
            if column := TIMES.get(step.action):
                Session.objects.filter(pk=session.pk).update(**{column: when})
            SessionNote.objects.filter(session=session).update(created_at=when)
            SessionTag.objects.filter(session=session).update(created_at=when)
            if step.undo:
                undone = services.restore_session(
                    entry_pk=entry.pk, by=by, reason=step.undo, scope=session.scope
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

    def _trim(self, step: Step, session: Session, call: dict[str, Any]) -> AuditEntry | None:
        return services.trim_session(**call, reason=step.text, keep_turns=1)

    def _clear(self, step: Step, session: Session, call: dict[str, Any]) -> AuditEntry:
        return services.clear_session(**call, reason=step.text)

    def _purge(self, step: Step, session: Session, call: dict[str, Any]) -> AuditEntry:
        return services.purge_session(**call, reason=step.text)

    def _hold(self, step: Step, session: Session, call: dict[str, Any]) -> AuditEntry | None:
        return services.hold_session(**call, reason=step.text)

    def _archive(self, step: Step, session: Session, call: dict[str, Any]) -> AuditEntry | None:
        return services.archive_session(**call, reason=step.text)

    def _redact(self, step: Step, session: Session, call: dict[str, Any]) -> AuditEntry | None:
        return services.redact_message(**call, reason=step.text, seq=1)

    def _note(self, step: Step, session: Session, call: dict[str, Any]) -> AuditEntry | None:
        return services.add_note(**call, text=step.text)

    def _tag(self, step: Step, session: Session, call: dict[str, Any]) -> AuditEntry | None:
        return services.tag_session(**call, tag=step.text, reason="")

    def _rename(self, step: Step, session: Session, call: dict[str, Any]) -> None:
        services.update_session(**call, title=step.text)

    def _export(self, step: Step, session: Session, call: dict[str, Any]) -> None:
        services.begin_export(**call, format="jsonl", reason=step.text)

    def _refused(self, step: Step, session: Session, call: dict[str, Any]) -> None:
        record_refusal(by=call["by"], permission=step.text, session=session)

    def _read(self, step: Step, session: Session, call: dict[str, Any]) -> None:
        record_reading(session=session, by=call["by"], from_seq=1, to_seq=session.last_seq)

    def _job(self, step: Step, when: datetime) -> None:
        """Execute a job to its end, and undo it if the action is one that is undone."""
        job = self._create_job(step, when)
        run_slice(claim_of(job), seconds=60)
        _date_job(job, when)
        if step.undo:
            everything = Session.objects.all()
            order = self._order(JobAction.RESTORE, step.undo)
            undo = undo_job(job=_fresh(job), sessions=everything, order=order)
            run_slice(claim_of(undo), seconds=60)
            _date_job(undo, when + UNTIL_UNDO)

    def _cancelled_job(self, step: Step, when: datetime) -> None:
        job = self._create_job(step, when)
        run_slice(claim_of(job), seconds=0)
        cancel_job(job_pk=job.pk, by=self._operators[0])
        _date_job(job, when)
        Job.objects.filter(pk=job.pk).update(cancel_requested_at=when + timedelta(seconds=2))

    def _running_job(self, step: Step, when: datetime) -> None:
        """Let a job stay under way, until the lease of its process ends."""
        job = self._create_job(step, when)
        for _ in range(JOB_SIZE // 2):
            run_slice(claim_of(job), seconds=0)
        _date_job(job, when)
        Job.objects.filter(pk=job.pk).update(lease_owner=OWNER, lease_until=self._now + LEASE)

    def _create_job(self, step: Step, when: datetime) -> Job:
        pks = [self._pick(when).pk for _ in range(JOB_SIZE)]
        reason, params = JOBS[step.text]
        sessions = Session.objects.filter(pk__in=pks)
        order = self._order(step.text, reason)
        return create_job(action=step.text, sessions=sessions, order=order, params=params)

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
