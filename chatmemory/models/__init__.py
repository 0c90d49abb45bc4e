"""Tables, constraints, and querysets that read them."""

from __future__ import annotations

from chatmemory.models.audit import NO_READING, AuditAction, AuditEntry, AuditSeal, Reading
from chatmemory.models.changes import Change, NewRows, StartedTurn
from chatmemory.models.feedback import MAX_FEEDBACK_CHARS, Feedback, FeedbackQuerySet
from chatmemory.models.fields import (
    CLOCK,
    TODAY,
    DatabaseNow,
    DatabaseToday,
    KeyField,
    SecondsAfter,
    StatementNow,
    database_now,
)
from chatmemory.models.installed import installed_models
from chatmemory.models.jobs import Job, JobAction, JobItem, JobQuerySet
from chatmemory.models.maintenance import Maintenance
from chatmemory.models.managers import all_on_primary, on_primary
from chatmemory.models.messages import MAX_AUTHOR_CHARS, Message, MessageQuerySet
from chatmemory.models.notes import MAX_NOTE_CHARS, MAX_NOTES, SessionNote
from chatmemory.models.paging import SessionPage, session_page
from chatmemory.models.sessions import Session, SessionQuerySet, unexpired, unexpired_sql
from chatmemory.models.starts import start_of, starts_of
from chatmemory.models.superseded import (
    SupersededRange,
    is_current,
    superseded,
    superseded_seqs,
)
from chatmemory.models.tags import MAX_TAG_CHARS, SessionTag
from chatmemory.models.tickets import Ticket
from chatmemory.models.turns import Turn, TurnQuerySet
from chatmemory.models.values import (
    DIGESTED_COLUMNS,
    HEAD_COLUMNS,
    SESSION_COLUMNS,
    ContentRow,
    Head,
    Page,
    StoredMessage,
    head_of,
    page_of,
    row_digest_of,
)
from chatmemory.models.visitors import Visitor, VisitorQuerySet
from chatmemory.models.withdrawn import WithdrawnRange

__all__ = [
    "CLOCK",
    "DIGESTED_COLUMNS",
    "HEAD_COLUMNS",
    "MAX_AUTHOR_CHARS",
    "MAX_FEEDBACK_CHARS",
    "MAX_NOTES",
    "MAX_NOTE_CHARS",
    "MAX_TAG_CHARS",
    "NO_READING",
    "SESSION_COLUMNS",
    "TODAY",
    "AuditAction",
    "AuditEntry",
    "AuditSeal",
    "Change",
    "ContentRow",
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
    "SecondsAfter",
    "Session",
    "SessionNote",
    "SessionPage",
    "SessionQuerySet",
    "SessionTag",
    "StartedTurn",
    "StatementNow",
    "StoredMessage",
    "SupersededRange",
    "Ticket",
    "Turn",
    "TurnQuerySet",
    "Visitor",
    "VisitorQuerySet",
    "WithdrawnRange",
    "all_on_primary",
    "database_now",
    "head_of",
    "installed_models",
    "is_current",
    "on_primary",
    "page_of",
    "row_digest_of",
    "session_page",
    "start_of",
    "starts_of",
    "superseded",
    "superseded_seqs",
    "unexpired",
    "unexpired_sql",
]
