"""A host's admin in which operators see only one owner's sessions."""

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
from chatmemory.models import AuditEntry, Job, Maintenance, Message, Session
from chatmemory.search.admin import SearchAdmin
from chatmemory.search.models import SearchBlock
from chatmemory.statistics.admin import StatisticsAdmin
from chatmemory.statistics.models import DailyTurns
from project import urls

OWNER = "ann"


class ScopedSessionAdmin(SessionAdmin):
    """Overrides only the queryset."""

    def get_queryset(self, request):
        return super().get_queryset(request).filter(owner__username=OWNER)


site = AdminSite()
site.register(Session, ScopedSessionAdmin)
site.register(Message, MessageAdmin)
site.register(AuditEntry, AuditEntryAdmin)
site.register(DailyTurns, StatisticsAdmin)
site.register(SearchBlock, SearchAdmin)
site.register(Maintenance, HealthAdmin)
site.register(Job, JobAdmin)

others = [url for url in urls.urlpatterns if getattr(url, "app_name", "") != "admin"]
urlpatterns = [path("admin/", site.urls), *others]
