"""The page of health: the present state, maintenance and storage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from chatmemory.admin.health.facts import facts
from chatmemory.admin.health.tables import maintenance, storage
from chatmemory.admin.reports.page import ReportPage
from chatmemory.admin.reports.tables import Table
from chatmemory.admin.sections import HEALTH
from chatmemory.models import Maintenance
from chatmemory.services.health.queue import read_queue
from chatmemory.services.health.state import read_health
from chatmemory.services.health.storage import read_storage
from chatmemory.services.maintenance.due import read_maintenance


@admin.register(Maintenance)
class HealthAdmin(ReportPage):
    """What `GET health/` states to monitors, for people, with maintenance and storage."""

    view_codename = "view_health"
    section = HEALTH

    def render(self, request: HttpRequest, **context: Any) -> HttpResponse:
        health, state = read_health(), read_maintenance()
        return self.page(
            request,
            "admin/chatmemory/health/page.html",
            title=_("Health"),
            is_ok=health.is_ok,
            is_overdue=state.is_overdue or state.has_problems,
            tables=[maintenance(state), storage(read_storage())],
            facts=facts(health, read_queue()),
            **context,
        )

    def tables(self, request: HttpRequest, name: str) -> Iterable[Table]:
        if name == "storage":
            return [storage(read_storage())]
        return [maintenance(read_maintenance())]
