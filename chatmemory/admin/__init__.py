"""The admin: operators read and remove conversations, within their permissions."""

from __future__ import annotations

from chatmemory.admin.audit import AuditEntryAdmin
from chatmemory.admin.messages import MessageAdmin
from chatmemory.admin.sessions import SessionAdmin
from chatmemory.admin.users import ChatMemoryUserAdminMixin

__all__ = ["AuditEntryAdmin", "ChatMemoryUserAdminMixin", "MessageAdmin", "SessionAdmin"]
