"""Tables, constraints and the verbs that read them."""

from __future__ import annotations

from chatmemory.models.audit import AuditEntry, AuditSeal, Reading
from chatmemory.models.fields import (
    CLOCK,
    TODAY,
    DatabaseNow,
    DatabaseToday,
    KeyField,
    database_now,
)
from chatmemory.models.managers import on_primary
from chatmemory.models.messages import Message, MessageQuerySet
from chatmemory.models.sessions import Session, SessionQuerySet, unexpired, unexpired_sql
from chatmemory.models.tags import MAX_TAG_CHARS, SessionTag
from chatmemory.models.tickets import Ticket
from chatmemory.models.turns import Turn, TurnQuerySet
from chatmemory.models.values import Head, Page, StoredMessage

__all__ = [
    "CLOCK",
    "MAX_TAG_CHARS",
    "TODAY",
    "AuditEntry",
    "AuditSeal",
    "DatabaseNow",
    "DatabaseToday",
    "Head",
    "KeyField",
    "Message",
    "MessageQuerySet",
    "Page",
    "Reading",
    "Session",
    "SessionQuerySet",
    "SessionTag",
    "StoredMessage",
    "Ticket",
    "Turn",
    "TurnQuerySet",
    "database_now",
    "on_primary",
    "unexpired",
    "unexpired_sql",
]
