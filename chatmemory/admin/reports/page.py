"""The base of a page of tables in place of a list of rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.reports.tables import Table


class ReportPage(ReadOnlyAdmin):
    """A page of tables, each of which is also a CSV file. The rows have no pages of their own."""

    class Media:
        css = {"all": ["chatmemory/admin/reports.css"]}  # noqa: RUF012  # Django's form

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.csv_view)
        return [path("<slug:table>.csv", view, name=self._csv_name), *super().get_urls()]

    @property
    def _csv_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_csv"

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        self.check_list(request)
        return self.render(request, **(extra_context or {}))

    def csv_view(self, request: HttpRequest, table: str) -> HttpResponse:
        """Return a table of the page as CSV."""
        self.require(request, "view")
        found = next((one for one in self.tables(request, table) if one.name == table), None)
        if found is None:
            raise Http404
        response = HttpResponse(found.as_csv(), content_type="text/csv; charset=utf-8")
        name = f"{table}{self.csv_suffix(request)}.csv"
        response["Content-Disposition"] = f'attachment; filename="{name}"'
        return response

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

    def tables(self, request: HttpRequest, name: str) -> Iterable[Table]:
        """Return tables of which one may have this name."""
        raise NotImplementedError

    def csv_suffix(self, request: HttpRequest) -> str:
        """Return what follows the table's name in the name of a file."""
        return ""

    def page(
        self, request: HttpRequest, template: str, *, csv_query: str = "", **context: Any
    ) -> HttpResponse:
        """Return a page whose links to CSV files have this query."""
        full = self.page_context(
            request,
            media=self.media,
            csv_url=f"admin:{self._csv_name}",
            csv_query=csv_query,
            **context,
        )
        return TemplateResponse(request, template, full)
