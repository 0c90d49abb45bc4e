"""The admin: operators manage conversations, and read of them what they may."""

from __future__ import annotations

from chatmemory.admin.audit import AuditEntryAdmin
from chatmemory.admin.messages import MessageAdmin
from chatmemory.admin.sessions import SessionAdmin
from chatmemory.admin.users import ChatMemoryUserAdminMixin

__all__ = ["AuditEntryAdmin", "ChatMemoryUserAdminMixin", "MessageAdmin", "SessionAdmin"]
