"""A host with two admin sites, at /admin/ and /ops/."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.urls import path

from chatmemory.admin import (
    AuditEntryAdmin,
    HealthAdmin,
    JobAdmin,
    MessageAdmin,
    SessionAdmin,
)
from chatmemory.langgraph.admin import ThreadAdmin
from chatmemory.langgraph.models import Thread
from chatmemory.models import AuditEntry, Job, Maintenance, Message, Session
from chatmemory.search.admin import SearchAdmin
from chatmemory.search.models import SearchBlock
from chatmemory.statistics.admin import StatisticsAdmin
from chatmemory.statistics.models import DailyTurns
from project import urls

site = AdminSite("ops")
site.register(Session, SessionAdmin)
site.register(Message, MessageAdmin)
site.register(DailyTurns, StatisticsAdmin)
site.register(SearchBlock, SearchAdmin)
site.register(Thread, ThreadAdmin)
site.register(Maintenance, HealthAdmin)
site.register(AuditEntry, AuditEntryAdmin)
site.register(Job, JobAdmin)

urlpatterns = [*urls.urlpatterns, path("ops/", site.urls)]
