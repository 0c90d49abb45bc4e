"""The list and the page of audit entries, with links to the verification and the CSV file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import URLPattern, path
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _
from django.views import View

from chatmemory.admin.audit.filters import FILTERS
from chatmemory.admin.audit.pages import CsvView, VerifyView
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.text import visible
from chatmemory.models import AuditAction, AuditEntry

if TYPE_CHECKING:
    from chatmemory.admin.choices import Label

REASON_WORDS = 20
LABELS: Mapping[str, Label] = dict(AuditAction.choices)
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


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """Lists audit entries, the newest first."""

    view_codename = "view_audit"
    list_display = ("time", "done", "session", "messages", "actor", "short_reason")
    list_filter = FILTERS
    ordering = ("-pk",)
    search_fields = ("reason",)
    search_help_text = _(
        "Search in the reasons of the newest 50,000 entries, or of all between two days."
    )
    fields = (
        "time",
        "done",
        "session",
        "first_message",
        "last_message",
        "counted",
        "actor",
        "whole_reason",
        "person_hash",
    )
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

    @admin.display(description=_("time"))
    def time(self, entry: AuditEntry) -> datetime:
        return entry.created_at

    @admin.display(description=_("action"))
    def done(self, entry: AuditEntry) -> Label:
        return LABELS.get(entry.action, entry.action)

    @admin.display(description=_("first message"))
    def first_message(self, entry: AuditEntry) -> int | None:
        return entry.from_seq

    @admin.display(description=_("last message"))
    def last_message(self, entry: AuditEntry) -> int | None:
        return entry.to_seq

    @admin.display(description=_("counts"))
    def counted(self, entry: AuditEntry) -> str:
        return ", ".join(f"{name}: {number}" for name, number in entry.counts.items())

    @admin.display(description=_("hash of the person"))
    def person_hash(self, entry: AuditEntry) -> str:
        return entry.key_hash

    @admin.display(description=_("session"))
    def session(self, entry: AuditEntry) -> SafeString | Promise | None:
        if entry.session_pk is None and entry.action == AuditAction.REFUSED:
            return None
        if entry.session_pk is None:
            return _("all sessions of a person") if entry.key_hash else _("all sessions")
        address = self.url_of("session_change", entry.session_pk)
        return format_html('<a href="{}">{}</a>', address, entry.session_pk)

    @admin.display(description=_("messages"))
    def messages(self, entry: AuditEntry) -> Any:
        return entry.counts.get("messages")

    @admin.display(description=_("actor"))
    def actor(self, entry: AuditEntry) -> str:
        kind = KINDS.get(entry.actor_kind, entry.actor_kind)
        return f"{visible(entry.actor_label)} ({kind})"

    @admin.display(description=_("reason"))
    def short_reason(self, entry: AuditEntry) -> str:
        return Truncator(visible(entry.reason)).words(REASON_WORDS)

    @admin.display(description=_("reason"))
    def whole_reason(self, entry: AuditEntry) -> str:
        return visible(entry.reason)
