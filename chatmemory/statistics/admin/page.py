"""The page with the figures of a period, as charts, tables and CSV."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.contrib.admin.exceptions import NotRegistered
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from chatmemory.admin.reports.page import ReportPage
from chatmemory.admin.reports.tables import Table, shown
from chatmemory.admin.sections import Section, register_section
from chatmemory.models import Maintenance, Session
from chatmemory.services.maintenance.due import read_maintenance
from chatmemory.statistics.admin import sections
from chatmemory.statistics.admin.owners import busiest_owners
from chatmemory.statistics.admin.period import LENGTHS, Period, last_days, read_period
from chatmemory.statistics.figures import Figures, read_figures
from chatmemory.statistics.models import DailyTurns
from chatmemory.statistics.roll_up import Task
from chatmemory.statistics.watermark import read_watermark, turns_until

SECTION = Section(
    label=gettext_lazy("Statistics"),
    page="chatmemory_statistics_dailyturns_changelist",
    model=DailyTurns,
)
register_section(SECTION)


@admin.register(DailyTurns)
class StatisticsAdmin(ReportPage):
    """Figures of a period, as charts, tables and CSV.

    The daily figures count all sessions. The busiest owners are read from the sessions that
    the registered `SessionAdmin` lets the operator see.
    """

    view_codename = "view_statistics"
    section = SECTION

    class Media:
        css = {"all": ["chatmemory_statistics/statistics.css"]}  # noqa: RUF012  # Django's form

    def render(self, request: HttpRequest, **context: Any) -> HttpResponse:
        period, form = read_period(request)
        figures = read_figures(period.first, period.last)
        return self.page(
            request,
            "admin/chatmemory_statistics/page.html",
            csv_query=period.query,
            title=_("Statistics"),
            period=period,
            form=form,
            lengths=[self._length(days, period) for days in LENGTHS],
            as_of=turns_until(read_watermark()),
            needs_run=_is_overdue(),
            tiles=_tiles(figures),
            charts=sections.charts(figures),
            tables=[*sections.tables(figures), *self._owners(request, period)],
            health_url=self._health_url(request),
            **context,
        )

    def tables(self, request: HttpRequest, name: str) -> Iterable[Table]:
        period, _form = read_period(request)
        if name == "owners":
            return self._owners(request, period)
        figures = read_figures(period.first, period.last)
        charts = [chart.table for chart in sections.charts(figures)]
        return [*charts, *sections.tables(figures)]

    def csv_suffix(self, request: HttpRequest) -> str:
        period, _form = read_period(request)
        return f"-{period.first}-{period.last}"

    def _owners(self, request: HttpRequest, period: Period) -> list[Table]:
        """Return the busiest owners, if the operator may see sessions on this site.

        None, if the site decides about each session: a sum would contain the others.
        """
        try:
            session_admin: Any = self.admin_site.get_model_admin(Session)
        except NotRegistered:
            return []
        if not session_admin.has_view_permission(request) or session_admin.decides_by_row("view"):
            return []
        return [busiest_owners(session_admin.get_queryset(request), period)]

    def _length(self, days: int, period: Period) -> dict[str, Any]:
        return {
            "label": _("%(days)s days") % {"days": days},
            "query": last_days(days).query,
            "is_selected": period.days == days,
        }

    def _health_url(self, request: HttpRequest) -> str | None:
        """Return the address of the page Health, if the operator may see it on this site."""
        if not self.admin_site.is_registered(Maintenance):
            return None
        health_admin = self.admin_site.get_model_admin(Maintenance)
        may_view = health_admin.has_view_permission(request)
        return self.url_of("maintenance_changelist") if may_view else None


def _is_overdue() -> bool:
    """Return whether the roll-up is overdue."""
    tasks = read_maintenance().tasks
    return any(task.is_overdue for task in tasks if task.schedule.task is Task.STATISTICS)


def _tiles(figures: Figures) -> list[dict[str, Any]]:
    """Return the sums of the period."""
    turns = figures.by_status.total()
    failed = round(100 * figures.by_status["failed"] / max(1, turns), 1)
    share = _("%(percent)s %% failed") % {"percent": shown(failed)}
    tokens = sum(model.tokens_in + model.tokens_out for model in figures.models)
    return [
        _tile(_("Conversations created"), sum(day.sessions for day in figures.days)),
        _tile(_("Messages stored"), sum(day.messages for day in figures.days)),
        _tile(_("Turns"), turns, note=share if turns else ""),
        _tile(_("Tokens"), tokens),
        _tile(_("First text, median"), figures.first_text.median, "ms"),
        _tile(_("End, median"), figures.duration.median, "ms"),
    ]


def _tile(label: str, value: Any, unit: str = "", note: str = "") -> dict[str, Any]:
    return {"label": label, "value": shown(value, unit), "note": note}
