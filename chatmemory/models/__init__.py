"""Tables, constraints, and querysets that read them."""

from __future__ import annotations

from chatmemory.models.audit import AuditAction, AuditEntry, AuditSeal, Reading
from chatmemory.models.changes import Change, NewRows, StartedTurn
from chatmemory.models.feedback import MAX_FEEDBACK_CHARS, Feedback, FeedbackQuerySet
from chatmemory.models.fields import (
    CLOCK,
    TODAY,
    DatabaseNow,
    DatabaseToday,
    KeyField,
    StatementNow,
    database_now,
)
from chatmemory.models.jobs import Job, JobAction, JobItem, JobQuerySet
from chatmemory.models.managers import on_primary
from chatmemory.models.messages import Message, MessageQuerySet
from chatmemory.models.notes import MAX_NOTE_CHARS, MAX_NOTES, SessionNote
from chatmemory.models.numbers import DailyActivity, DailyTurns, Maintenance
from chatmemory.models.paging import SessionPage, session_page
from chatmemory.models.sessions import Session, SessionQuerySet, unexpired, unexpired_sql
from chatmemory.models.starts import start_of, starts_of
from chatmemory.models.tags import MAX_TAG_CHARS, SessionTag
from chatmemory.models.tickets import Ticket
from chatmemory.models.turns import Turn, TurnQuerySet
from chatmemory.models.values import (
    HEAD_COLUMNS,
    MARKED_COLUMNS,
    SESSION_COLUMNS,
    ContentRow,
    Head,
    Page,
    StoredMessage,
    head_of,
    mark_of,
    page_of,
)
from chatmemory.models.visitors import Visitor, VisitorQuerySet

__all__ = [
    "CLOCK",
    "HEAD_COLUMNS",
    "MARKED_COLUMNS",
    "MAX_FEEDBACK_CHARS",
    "MAX_NOTES",
    "MAX_NOTE_CHARS",
    "MAX_TAG_CHARS",
    "SESSION_COLUMNS",
    "TODAY",
    "AuditAction",
    "AuditEntry",
    "AuditSeal",
    "Change",
    "ContentRow",
    "DailyActivity",
    "DailyTurns",
    "DatabaseNow",
    "DatabaseToday",
    "Feedback",
    "FeedbackQuerySet",
    "Head",
    "Job",
    "JobAction",
    "JobItem",
    "JobQuerySet",
    "KeyField",
    "Maintenance",
    "Message",
    "MessageQuerySet",
    "NewRows",
    "Page",
    "Reading",
    "Session",
    "SessionNote",
    "SessionPage",
    "SessionQuerySet",
    "SessionTag",
    "StartedTurn",
    "StatementNow",
    "StoredMessage",
    "Ticket",
    "Turn",
    "TurnQuerySet",
    "Visitor",
    "VisitorQuerySet",
    "database_now",
    "head_of",
    "mark_of",
    "on_primary",
    "page_of",
    "session_page",
    "start_of",
    "starts_of",
    "unexpired",
    "unexpired_sql",
]
