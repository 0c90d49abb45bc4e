"""The list and the page of audit entries, with links to the verification and the CSV file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.views import View

from chatmemory.admin.audit.filters import FILTERS
from chatmemory.admin.audit.pages import CsvView, VerifyView
from chatmemory.admin.keyset import KeysetChangeList
from chatmemory.admin.privacy import visible_names
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.sections import AUDIT, may_view
from chatmemory.admin.text import ago, clamped, grouped, visible
from chatmemory.models import AuditEntry, Session
from chatmemory.services.audit.actions import action_labels

if TYPE_CHECKING:
    from chatmemory.admin.choices import Label

MAX_SEARCH_CHARS = 256
KINDS: Mapping[str, Label] = {
    "user": _("user"),
    "visitor": _("visitor"),
    "operator": _("operator"),
    "command": _("command"),
    "server": _("server"),
}
"""The labels of kinds of actors."""
SEARCHED_ENTRIES = 50_000
"""A search without a first day reads at most this many entries."""


class AuditChangeList(KeysetChangeList):
    """The list of audit entries, with the names of their sessions."""

    model_admin: Any

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.model_admin.add_names(request, self.result_list)


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """Lists audit entries, the newest first."""

    view_codename = "view_audit"
    section = AUDIT
    list_display = ("when", "who", "what", "why")
    list_filter = FILTERS
    ordering = ("-pk",)
    search_fields = ("reason",)
    search_help_text = _(
        "Search in the reasons of the newest 50,000 entries, or of all between two days."
    )
    fields = ("time", "who", "what", "messages", "counted", "why", "person_hash")
    readonly_fields = fields

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        term = search_term.strip()[:MAX_SEARCH_CHARS]
        if not term:
            return queryset, False
        if not request.GET.get("from"):
            # No index contains the words of a reason, so the number of entries is the limit.
            newest = AuditEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
            queryset = queryset.filter(pk__gt=newest - SEARCHED_ENTRIES)
        return queryset.filter(reason__icontains=term), False

    def get_urls(self) -> list[URLPattern]:
        def page(route: str, view: type[View], name: str) -> URLPattern:
            wrapped = self.admin_site.admin_view(view.as_view(model_admin=self))
            return path(route, wrapped, name=f"chatmemory_auditentry_{name}")

        return [
            page("csv/", CsvView, "csv"),
            page("verify/", VerifyView, "verify"),
            *super().get_urls(),
        ]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[AuditChangeList]:
        return AuditChangeList

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        self.add_names(request, [kwargs["obj"]])
        context["subtitle"] = None  # the name of the row, which the fields repeat
        return super().render_change_form(request, context, *args, **kwargs)

    def add_names(self, request: HttpRequest, entries: Sequence[AuditEntry]) -> None:
        """Set the `name` of the session of each entry, if the operator can view the session."""
        names: dict[int, str] = {}
        if may_view(self.admin_site, request, Session):
            pks = {entry.session_pk for entry in entries if entry.session_pk is not None}
            sessions: Any = self.admin_site.get_model_admin(Session)
            names = visible_names(sessions, request, pks)
        for entry in entries:
            entry.__dict__["name"] = names.get(entry.session_pk or 0, "")

    @admin.display(description=_("time"))
    def when(self, entry: AuditEntry) -> SafeString:
        return ago(entry.created_at)

    @admin.display(description=_("time"))
    def time(self, entry: AuditEntry) -> str:
        return date_format(timezone.localtime(entry.created_at), "DATETIME_FORMAT")

    @admin.display(description=_("actor"))
    def who(self, entry: AuditEntry) -> SafeString:
        kind = KINDS.get(entry.actor_kind, entry.actor_kind)
        html = '{} <span class="chatmemory-aside">{}</span>'
        return format_html(html, visible(entry.actor_label), kind)

    @admin.display(description=_("action"))
    def what(self, entry: AuditEntry) -> SafeString:
        named = entry.__dict__["name"]
        context = {
            "entry": entry,
            "done": action_labels().get(entry.action, entry.action),
            "url": self.url_of("session_change", entry.session_pk) if named else "",
        }
        return render_to_string("admin/chatmemory/auditentry/what.html", context)

    @admin.display(description=_("messages"))
    def messages(self, entry: AuditEntry) -> str | None:
        if entry.from_seq is None or entry.to_seq is None:
            return None
        ends = {"first": grouped(entry.from_seq), "last": grouped(entry.to_seq)}
        return _("%(first)s to %(last)s") % ends

    @admin.display(description=_("counts"))
    def counted(self, entry: AuditEntry) -> str:
        return visible(", ".join(f"{name}: {number}" for name, number in entry.counts.items()))

    @admin.display(description=_("reason"))
    def why(self, entry: AuditEntry) -> SafeString:
        return clamped(entry.reason)

    @admin.display(description=_("hash of the person"))
    def person_hash(self, entry: AuditEntry) -> str:
        return entry.key_hash
