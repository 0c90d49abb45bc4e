"""The dashboard with the numbers of a period, and the page of health."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.contrib import admin
from django.contrib.admin.exceptions import NotRegistered
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from chatmemory.admin.numbers import sections
from chatmemory.admin.numbers.owners import busiest_owners
from chatmemory.admin.numbers.period import LENGTHS, Period, last_days, read_period
from chatmemory.admin.numbers.tables import Table, shown
from chatmemory.admin.numbers.tasks import facts, maintenance
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.models import DailyTurns, Maintenance, Session
from chatmemory.services.health.state import read_health
from chatmemory.services.numbers.due import read_maintenance
from chatmemory.services.numbers.figures import Numbers, read_numbers
from chatmemory.services.numbers.queue import read_queue
from chatmemory.services.numbers.storage import read_storage


class NumbersPage(ReadOnlyAdmin):
    """A page in place of a list. The rows have no pages of their own."""

    view_codename = "view_numbers"

    class Media:
        css = {"all": ["chatmemory/numbers.css"]}  # noqa: RUF012  # Django's form

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        self.check_list(request)
        return self.render(request, **(extra_context or {}))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        self.require(request, "view")
        raise Http404

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> HttpResponse:
        self.require(request, "view")
        raise Http404

    def render(self, request: HttpRequest, **context: Any) -> HttpResponse:
        """Return the page."""
        raise NotImplementedError

    def _page(self, request: HttpRequest, name: str, **context: Any) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            **context,
        }
        return TemplateResponse(request, f"admin/chatmemory/numbers/{name}.html", context)


@admin.register(DailyTurns)
class NumbersAdmin(NumbersPage):
    """Numbers of a period, as charts, tables and CSV.

    The daily numbers are those of all sessions. The busiest owners are read from the sessions that
    the registered `SessionAdmin` lets the operator see.
    """

    def get_urls(self) -> list[URLPattern]:
        def page(route: str, view: Callable[..., HttpResponse], name: str) -> URLPattern:
            wrapped = self.admin_site.admin_view(view)
            return path(route, wrapped, name=f"chatmemory_{name}")

        return [
            page("", self.changelist_view, "numbers"),
            page("<slug:table>.csv", self.csv_view, "numbers_csv"),
            *super().get_urls(),
        ]

    def render(self, request: HttpRequest, **context: Any) -> HttpResponse:
        period, form = read_period(request)
        numbers = read_numbers(period.first, period.last)
        state = read_maintenance()
        return self._page(
            request,
            "dashboard",
            title=_("Numbers"),
            period=period,
            form=form,
            lengths=[self._length(days, period) for days in LENGTHS],
            as_of=state.counted_until,
            needs_run=next(task.is_due for task in state.tasks if task.task == "numbers"),
            tiles=_tiles(numbers),
            charts=sections.charts(numbers),
            tables=[*sections.tables(numbers), *self._owners(request, period)],
            facts=facts(read_health(), read_queue(), state),
            now=[maintenance(state), sections.storage(read_storage())],
            health_url=self._health_url(),
            **context,
        )

    def csv_view(self, request: HttpRequest, table: str) -> HttpResponse:
        """Return a table of the dashboard as CSV."""
        self.require(request, "view")
        period, _form = read_period(request)
        found = next(
            (one for one in self._tables(request, period, table) if one.name == table), None
        )
        if found is None:
            raise Http404
        response = HttpResponse(found.as_csv(), content_type="text/csv; charset=utf-8")
        name = f"{table}-{period.first}-{period.last}.csv"
        response["Content-Disposition"] = f'attachment; filename="{name}"'
        return response

    def _tables(self, request: HttpRequest, period: Period, name: str) -> Iterable[Table]:
        """Return tables of which one may have this name."""
        match name:
            case "owners":
                return self._owners(request, period)
            case "storage":
                return [sections.storage(read_storage())]
            case "maintenance":
                return [maintenance(read_maintenance())]
        numbers = read_numbers(period.first, period.last)
        charts = [chart.table for chart in sections.charts(numbers)]
        return [*charts, *sections.tables(numbers)]

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

    def _health_url(self) -> str | None:
        is_registered = self.admin_site.is_registered(Maintenance)
        return self.url_of("maintenance_changelist") if is_registered else None


@admin.register(Maintenance)
class HealthAdmin(NumbersPage):
    """What `GET health/` states to monitors, for people, and the maintenance that is due."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.changelist_view)
        return [path("", view, name="chatmemory_health"), *super().get_urls()]

    def render(self, request: HttpRequest, **context: Any) -> HttpResponse:
        health, state = read_health(), read_maintenance()
        return self._page(
            request,
            "health",
            title=_("Health"),
            is_ok=health.is_ok,
            is_due=state.is_due or state.has_problems,
            facts=facts(health, read_queue(), state),
            table=maintenance(state),
            **context,
        )


def _tiles(numbers: Numbers) -> list[dict[str, Any]]:
    """Return the sums of the period."""
    turns = numbers.by_status.total()
    failed = round(100 * numbers.by_status["failed"] / max(1, turns), 1)
    share = _("%(percent)s %% failed") % {"percent": shown(failed)}
    tokens = sum(model.tokens_in + model.tokens_out for model in numbers.models)
    return [
        _tile(_("Sessions created"), sum(day.sessions for day in numbers.days)),
        _tile(_("Messages stored"), sum(day.messages for day in numbers.days)),
        _tile(_("Turns"), turns, note=share if turns else ""),
        _tile(_("Tokens"), tokens),
        _tile(_("First text, median"), numbers.first_text.median, "ms"),
        _tile(_("End, median"), numbers.duration.median, "ms"),
    ]


def _tile(label: str, value: Any, unit: str = "", note: str = "") -> dict[str, Any]:
    return {"label": label, "value": shown(value, unit), "note": note}
