"""Tables, constraints and the verbs that read them."""

from __future__ import annotations

from chatmemory.models.audit import AuditEntry
from chatmemory.models.fields import CLOCK, TODAY, DatabaseNow, DatabaseToday, KeyField
from chatmemory.models.messages import Message, MessageQuerySet
from chatmemory.models.sessions import UNEXPIRED, Session, SessionQuerySet
from chatmemory.models.turns import Turn, TurnQuerySet
from chatmemory.models.values import Head, Page, StoredMessage

__all__ = [
    "CLOCK",
    "TODAY",
    "UNEXPIRED",
    "AuditEntry",
    "DatabaseNow",
    "DatabaseToday",
    "Head",
    "KeyField",
    "Message",
    "MessageQuerySet",
    "Page",
    "Session",
    "SessionQuerySet",
    "StoredMessage",
    "Turn",
    "TurnQuerySet",
]
