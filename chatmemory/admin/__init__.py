"""The admin: operators look after conversations, and read of them what they may."""

from __future__ import annotations

from chatmemory.admin.audit import AuditEntryAdmin
from chatmemory.admin.messages import MessageAdmin
from chatmemory.admin.sessions import SessionAdmin

__all__ = ["AuditEntryAdmin", "MessageAdmin", "SessionAdmin"]
