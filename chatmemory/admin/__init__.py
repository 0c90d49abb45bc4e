"""The admin: operators read and remove conversations, within their permissions."""

from __future__ import annotations

from chatmemory.admin.audit.model_admin import AuditEntryAdmin
from chatmemory.admin.health.page import HealthAdmin
from chatmemory.admin.jobs.model_admin import JobAdmin
from chatmemory.admin.messages import MessageAdmin
from chatmemory.admin.sessions.model_admin import SessionAdmin
from chatmemory.admin.users import ChatMemoryUserAdminMixin

__all__ = [
    "AuditEntryAdmin",
    "ChatMemoryUserAdminMixin",
    "HealthAdmin",
    "JobAdmin",
    "MessageAdmin",
    "SessionAdmin",
]
