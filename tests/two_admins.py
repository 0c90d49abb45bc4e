"""A host with two admin sites, at /admin/ and /ops/."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.urls import path

from chatmemory.admin import (
    AuditEntryAdmin,
    HealthAdmin,
    JobAdmin,
    MessageAdmin,
    NumbersAdmin,
    SessionAdmin,
)
from chatmemory.models import AuditEntry, DailyTurns, Job, Maintenance, Message, Session
from project import urls

site = AdminSite("ops")
site.register(Session, SessionAdmin)
site.register(Message, MessageAdmin)
site.register(DailyTurns, NumbersAdmin)
site.register(Maintenance, HealthAdmin)
site.register(AuditEntry, AuditEntryAdmin)
site.register(Job, JobAdmin)

urlpatterns = [*urls.urlpatterns, path("ops/", site.urls)]
